#!/usr/bin/env bash
# Containers of a real engine under the daemon of a node: run.sh docker|podman TOOLS PARTS FOLDER, started by
# scripts/xtask in namespaces of its own. The lines are those of docs/operations.md, the Compose file is the one that
# is shipped. Ends with 0 if all is as documented.
set -euo pipefail
engine=$1 tools=$2 parts=$3 folder=$4
log="$folder/log"
here=$(realpath "$(dirname "$0")")
project=$(realpath "$here/../..")
mkdir -p "$log"

who=$engine
# shellcheck source=scripts/inside-namespaces.sh
. scripts/inside-namespaces.sh

# The machine's own folders stay as they are: those of the engine and of the daemon are this namespace's.
ip link set lo up
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount -t tmpfs none /usr/local/bin
mkdir -p "$folder"/{engine,simulated,image}
mount --bind "$folder/engine" /var/lib
for at in /usr/lib /etc; do
    mkdir -p "$folder/over$at/upper" "$folder/over$at/work"
    mount -t overlay none -o "lowerdir=$at,upperdir=$folder/over$at/upper,workdir=$folder/over$at/work" "$at"
done
mkdir -p /usr/lib/sluice /run/cdi /run/sluice
cp "$parts/libcuda_limiter.so" /usr/lib/sluice
cp -an "$tools/usr/lib/x86_64-linux-gnu/." /usr/lib/x86_64-linux-gnu
export SIMULATED="$folder/simulated"
cp "$parts/libfake_cuda.so" "$SIMULATED/libcuda.so.1"
cp "$parts/libfake_nvml.so" "$SIMULATED/libnvidia-ml.so.1"
strip -g "$SIMULATED"/*

# An image without a download: a shell, some programs, and the libraries that they need.
with_libraries() {
    local file library
    for file in "$@"; do
        mkdir -p "$folder/image/usr/bin"
        cp -L "$file" "$folder/image/usr/bin"
        for library in $(ldd "$file" | grep -o '/[^ ]*'); do
            mkdir -p "$folder/image${library%/*}"
            cp -Lu "$library" "$folder/image$library"
        done
    done
}
mkdir -p "$folder"/image/{etc,tmp,proc,sys,dev,run,opt,usr/lib/x86_64-linux-gnu}
for at in lib lib64 bin; do [ ! -L "/$at" ] || cp -P "/$at" "$folder/image/$at"; done
mkdir -p "$folder/image/usr/lib64"
with_libraries "$(command -v bash)" "$(command -v cat)" "$(command -v sleep)" "$parts/sluice" "$parts/tenant"
# The limiter's and the simulated driver's libraries.
for library in libgcc_s.so.1 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
    cp -Lu "/usr/lib/x86_64-linux-gnu/$library" "$folder/image/usr/lib/x86_64-linux-gnu"
done
ln -s bash "$folder/image/usr/bin/sh"
strip -g "$folder"/image/usr/bin/{sluice,tenant}
# The documented lines run `python train.py`: here that keeps a GPU busy.
printf '#!/bin/sh\nexec tenant dense --kernel-us 2000 --seconds 600\n' >"$folder/image/usr/bin/python"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$folder/image/etc/passwd"
chmod +x "$folder/image/usr/bin/python"

PATH="$tools/usr/bin:$tools/usr/sbin:$here:$PATH"
case $engine in
docker)
    export DOCKER_HOST=unix:///run/docker.sock
    dockerd --bridge none --iptables=false --ip6tables=false --ip-masq=false --storage-driver vfs --host "$DOCKER_HOST" \
        >"$log/dockerd" 2>&1 </dev/null &
    until_so 60 'Docker answers' docker info
    ;;
podman)
    cp -a "$tools/etc/containers" /etc
    export CONTAINERS_CONF="$folder/containers.conf" \
        CONTAINERS_STORAGE_CONF="$folder/storage.conf"
    cat >"$CONTAINERS_CONF" <<EOF
[containers]
netns = "none"
seccomp_profile = "$tools/usr/share/containers/seccomp.json"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = ["$tools/usr/bin/conmon"]
runtime = "runc"
[engine.runtimes]
runc = ["$tools/usr/sbin/runc"]
EOF
    cat >"$CONTAINERS_STORAGE_CONF" <<EOF
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
EOF
    # What `nvidia-ctk cdi generate` writes, with the simulated driver.
    jq -n --arg from "$SIMULATED" '{cdiVersion: "0.5.0", kind: "nvidia.com/gpu", devices: [{name: "all", containerEdits: {
        mounts: ["libcuda.so.1", "libnvidia-ml.so.1"] | map({hostPath: "\($from)/\(.)",
            containerPath: "/usr/lib/x86_64-linux-gnu/\(.)", options: ["ro", "bind"]})}}]}' >/run/cdi/nvidia.json
    ;;
*) die 'is no engine that is known here' ;;
esac
"$engine" version >"$log/version" 2>&1 || { cat "$log/version"; die 'does not work here'; }
tar -C "$folder/image" -c . | "$engine" import - sluice-test >"$log/import" 2>&1 || die "$(cat "$log/import")"
rm -rf "$folder/image"
echo "$engine $(sed -n 's/^ *Version: *//p' "$log/version" | tail -1)"

start_daemon() {
    "$parts/hypervisor" daemon --nvml "$SIMULATED/libnvidia-ml.so.1" >>"$log/daemon" 2>&1 </dev/null &
    daemon=$!
    until_so 20 'the daemon answers' test -S /run/sluice/hypervisor.sock
}
start_daemon
on_host() {
    "$parts/sluice" "$@"
}

# documented ENGINE: its line under "Containers", on one line.
documented() {
    awk -v engine="$1" '/^### Containers$/ { there = 1 } !there { next } /^```/ { code = !code; if (!code) exit; next }
        code && $1 == engine { on = 1 } on { line = line $0; on = sub(/\\$/, " ", line) } END { print line }' \
        "$project/docs/operations.md"
}
line=$(documented "$engine")
[[ $line == "$engine run "*' --name train '*' python train.py' ]] || die "docs/operations.md has no such line: $line"
line=${line/ run / run -d }
line=${line/ IMAGE / sluice-test }
echo "+ $line"
eval "$line" >"$log/run" 2>&1 || die "$(cat "$log/run")"
id=$(tail -1 "$log/run")
eval "${line/--name train/--name serve}" >"$log/run" 2>&1 || die "$(cat "$log/run")"

# A figure of a container in the host's status: of NAME, a jq expression.
figure() {
    on_host status --json | jq -r --arg name "$1" "(.sessions + .elsewhere)[] | select(.container.name == \$name) | $2"
}
has() {
    [ "$(figure "$1" "$2")" = "$3" ]
}
# above NAME FIGURE MOST
above() {
    [ "$(figure "$1" "$2")" -gt "$3" ]
}
shows() {
    local pattern=$1
    shift
    { "$@" || true; } | grep -E "$pattern" >/dev/null
}
delivered='.devices[0].compute.delivered_us'
share='.devices[0].compute.share_ppm'
for name in train serve; do
    until_so 30 "$name is seen and computes" above "$name" "$delivered" 0
    until_so 30 "$name's memory is seen" has "$name" '.devices[0].memory.limit' 8589934592
    has "$name" "$share" 300000 || die "$name has a share of $(figure "$name" "$share")"
done
on_host status
[[ $(figure train .container.id) == "$id" ]] || die "the container is $id, and seen as $(figure train .container.id)"

# By its name, and by the beginning of its id.
limited() {
    on_host limit "$@" >"$log/limit" 2>&1 || die "limit $*: $(cat "$log/limit")"
    sed 's/^/  /' "$log/limit"
}
limited train --compute 20 --mem 4GiB
until_so 10 'train has a share of 20 %' has train "$share" 200000
has serve "$share" 300000 || die 'the other container was limited'
granted=$("$engine" exec train tenant mem --api alloc --chunk 256MiB --cap 8GiB | jq .granted_bytes)
if [ "$granted" -gt $((4 << 30)) ] || [ "$granted" -lt $((2 << 30)) ]; then
    die "a program in a container of 4 GiB got $granted bytes"
fi
echo "  a program in the container of 4 GiB got $((granted >> 20)) MiB"
limited "${id:0:12}" --compute 25
until_so 10 'train has a share of 25 %' has train "$share" 250000

# What the container itself sees: its own, and nobody else's.
seen=$(COLUMNS=100 "$engine" exec train sluice top --once)
printf '%s\n' "$seen"
seen=$("$engine" exec train sluice top --json | jq -c '[(.sessions + .elsewhere)[].devices[0].compute.share_ppm]')
[ "$seen" = '[250000]' ] ||
    die "sluice top in the container shows the shares $seen"

on_host freeze train >/dev/null || die 'train cannot be frozen'
until_so 10 'it is frozen' has train .frozen true
shows frozen on_host explain train || die 'explain does not say that it is frozen'
on_host thaw train >/dev/null || die 'train cannot be thawed'

# A daemon that is killed and started anew: both are served again, with the limits as they were changed.
kill -9 "$daemon"
wait "$daemon" 2>/dev/null || true
rm -f /run/sluice/hypervisor.sock
start_daemon
for name in train serve; do
    until_so 30 "$name is seen again" has "$name" '.devices | length' 1
    before=$(figure "$name" "$delivered")
    until_so 30 "$name computes again" above "$name" "$delivered" "$before"
done
has train "$share" 250000 || die "after a restart train has a share of $(figure train "$share")"
sleep 11
recent=$(figure train '.devices[0].compute.recent_ppm')
if [ "$recent" -gt 280000 ] || [ "$recent" -lt 100000 ]; then die "train got $recent ppm of the device, of 250000"; fi
echo "  train got $((recent / 10000)) % in the last 10 s, of 25 %"
"$engine" rm -f train serve >/dev/null
until_so 60 'no container is seen' test -z "$(figure train .frozen)$(figure serve .frozen)"

# The Compose file that is shipped.
if [ -x "$tools/compose/bin/$engine-compose" ]; then
    cd "$project/deploy/containers"
    files=(--file compose.yaml)
    if [ "$engine" = podman ]; then
        # Its networks need programs of their own.
        echo 'services: {train: {network_mode: none}, serve: {network_mode: none}}' >"$folder/network.yaml"
        files+=(--file "$folder/network.yaml")
    fi
    compose() {
        PATH="$tools/compose/bin:$PATH" IMAGE=sluice-test "$engine-compose" "${files[@]}" "$@" >>"$log/compose" 2>&1
    }
    compose up -d || die "$(cat "$log/compose")"
    for name in train serve; do
        until_so 30 "$name is seen and computes" above "$name" "$delivered" 0
    done
    [ "$(figure train "$share") $(figure serve "$share")" = '300000 700000' ] || die 'the shares are not those of compose.yaml'
    on_host status
    compose down || die "$(cat "$log/compose")"
else
    echo 'SKIPPED: the Compose file'
fi

# The hook of `hypervisor node --keep-image-preloads`: Podman reads CDI files by the library of Kubernetes' runtimes, and runc runs it.
if [ "$engine" = podman ]; then
    mkdir -p "$folder"/{kubelet/device-plugins,library}
    cp "$parts"/{libcuda_limiter.so,libadd_path.so} "$folder/library"
    "$parts/hypervisor" node --nvml "$SIMULATED/libnvidia-ml.so.1" --kubelet-dir "$folder/kubelet" --library "$folder/library" \
        --keep-image-preloads --hook "$parts/hypervisor" >"$log/node" 2>&1 </dev/null &
    until_so 20 'the hook is offered' test -s /var/run/cdi/sluice.dev-preload.json
    # As the agent makes an allocation.
    list="/run/sluice-allocations/$(printf 'a%.0s' {1..64})/ld.so.preload"
    mkdir "${list%/*}"
    cp /run/sluice-allocations/ld.so.preload "$list"
    echo '/opt/own.so' >"$folder/own"
    podman create --name preloading sluice-test true >/dev/null
    podman cp "$folder/own" preloading:/etc/ld.so.preload
    podman commit -q preloading sluice-preloading >/dev/null
    for time in first second; do
        podman run --rm --device sluice.dev/preload=image --volume "$list:/etc/ld.so.preload:ro" \
            --volume "$folder/library:/run/sluice/library:ro" sluice-preloading cat /etc/ld.so.preload >"$folder/list" 2>"$folder/said" ||
            die "$(cat "$folder/said")"
        diff "$folder/list" - <<<'/run/sluice/library/libcuda_limiter.so
/run/sluice/library/libadd_path.so
/opt/own.so' || die "the $time container has another list: $(cat "$folder/said")"
        grep -q "object '/opt/own.so' from /etc/ld.so.preload" "$folder/said" || die "its loader looks for: $(cat "$folder/said")"
    done
    echo "what an image preloads: $(cat "${list%/*}/image-preloads.txt")"
fi
