# Sourced by test.sh: checks in namespaces of their own, which see the machine's files and change none.
# shellcheck shell=bash disable=SC2154 # variables of test.sh

can_have_namespaces() {
    unshare --mount --net --pid --fork --mount-proc sh -c 'ip link set lo up && mount -t tmpfs none /mnt' 2>/dev/null
}

# in_namespaces SCRIPT ARGUMENT...: runs it with these, the folder of what was built and a folder of its own. Every process
# that it starts ends with its namespaces.
in_namespaces() {
    local folder status=0
    folder=$(mktemp -d)
    unshare --mount --net --pid --fork --mount-proc --kill-child --propagation private \
        bash "$@" "$(realpath "$target/debug")" "$folder" || status=1
    if [ "$status" -ne 0 ]; then
        tail -n 15 "$folder"/log/*
    fi
    rm -rf --one-file-system "$folder"
    return "$status"
}
