#!/usr/bin/env bash
# The units under systemd itself: systemd.sh TOOLS PARTS FOLDER, started by scripts/engines.sh in namespaces of its own.
# systemd is the first process of a container that has this machine's files under a layer of its own.
set -euo pipefail
tools=$1 parts=$2 folder=$3
log="$folder/log"
project=$(realpath "$(dirname "$0")/../..")
root="$folder/root"
mkdir -p "$log" "$folder"/{upper,work,root}

die() {
    printf 'systemd: %s\n' "$*" >&2
    exit 1
}

# until_so SECONDS WHAT COMMAND...
until_so() {
    local most=$1 end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "not within $most s: $what"
        sleep 0.2
    done
}

mount -t overlay none -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
cp "$parts/hypervisor" "$parts/sluice" "$parts/tenant" "$root/usr/bin"
mkdir -p "$root/usr/lib/sluice"
cp "$parts/libcuda_limiter.so" "$parts/libfake_cuda.so" "$parts/libfake_nvml.so" "$root/usr/lib/sluice"
# Where the daemon looks for the driver.
cp "$parts/libfake_nvml.so" "$root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
cp "$project"/deploy/systemd/* "$root/usr/lib/systemd/system"
# Nothing else of this machine is started there.
rm -rf "$root"/etc/systemd/system/*.{wants,requires} "$root/etc/machine-id"
echo 00000000000000000000000000005a1e >"$root/etc/machine-id"

PATH="$tools/usr/bin:$PATH"
systemd-nspawn --directory "$root" --register no --keep-unit --private-network --console passive --boot \
    systemd.unit=multi-user.target >"$log/nspawn" 2>&1 </dev/null &
nspawn=$!
is_first() {
    leader=$(pgrep --parent "$nspawn" systemd) && [ -n "$leader" ]
}
until_so 20 'systemd is started' is_first
inside() {
    nsenter --target "$leader" --all "$@"
}
is_up() {
    inside systemctl is-system-running 2>/dev/null | grep -E 'running|degraded' >/dev/null
}
until_so 60 'systemd is up' is_up
inside systemctl --version | head -1
