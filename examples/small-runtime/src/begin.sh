root=$1
# First of the host's user ids that the container's user namespace maps; empty without a user namespace.
users=$2
# File to create once all is mounted, after which a line on stdin is awaited; or empty.
ready=$3
count=$4
shift 4
chmod 755 "$root"
chown "${users:-0}:${users:-0}" "$root"
mount --bind "$root" "$root"
# Users of the namespace cannot reach this directory from the root.
cd "$root"
as() {
    if [ -n "$users" ]; then
        setpriv --reuid="$users" --regid="$users" --clear-groups "$@"
    else
        "$@"
    fi
}
for folder in usr bin sbin lib lib64; do
    if [ -L "/$folder" ]; then
        cp -P "/$folder" "$folder"
    elif [ -d "/$folder" ]; then
        mkdir "$folder"
        mount --bind "/$folder" "$folder"
    fi
done
as mkdir -p proc dev tmp etc run
mount --bind /proc proc
for file in null zero urandom; do
    as touch "dev/$file"
    mount --bind "/dev/$file" "dev/$file"
done
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then
        as mkdir -p ".$2"
    else
        as mkdir -p "$(dirname ".$2")"
        [ -e ".$2" ] || as touch ".$2"
    fi
    mount --bind "$1" ".$2"
    [ "$3" = rw ] || mount -o remount,bind,ro ".$2"
    shift 3
    count=$((count - 1))
done
if [ -n "$ready" ]; then
    : >"$ready"
    read -r _
    exec </dev/null
fi
[ -n "$users" ] || exec chroot . /usr/bin/env -i "$@"
# Root in the container has root's rights in its user namespace, and none outside.
own=$(readlink /proc/$$/ns/user)
{
    while [ "$(readlink /proc/$$/ns/user)" = "$own" ]; do sleep 0.01; done
    echo "0 $users 65536" >/proc/$$/gid_map
    echo "0 $users 65536" >/proc/$$/uid_map
} &
exec unshare --user --keep-caps sh -ec 'while [ -z "$(cat /proc/self/uid_map)" ]; do sleep 0.01; done
    exec setpriv --reuid=0 --regid=0 --clear-groups --inh-caps=-all --ambient-caps=-all chroot . /usr/bin/env -i "$@"' sh "$@"
