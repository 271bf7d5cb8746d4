#!/usr/bin/env bash
# The units under systemd itself: systemd.sh TOOLS PARTS FOLDER, started by scripts/xtask in namespaces of its own.
# systemd is the first process of a container that has this machine's files under a layer of its own.
set -euo pipefail
tools=$1 parts=$2 folder=$3
log="$folder/log"
project=$(realpath "$(dirname "$0")/../..")
root="$folder/root"
mkdir -p "$log" "$folder"/{upper,work,root}

who=systemd
# shellcheck source=scripts/inside-namespaces.sh
. scripts/inside-namespaces.sh

mount -t overlay none -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
cp "$parts/hypervisor" "$parts/sluice" "$parts/tenant" "$root/usr/bin"
mkdir -p "$root/usr/lib/sluice"
cp "$parts/libcuda_limiter.so" "$parts/libfake_cuda.so" "$parts/libfake_nvml.so" "$parts/fake-nvidia-smi" "$root/usr/lib/sluice"
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

# As docs/operations.md has it.
inside systemctl daemon-reload
inside systemctl enable --now sluice.socket sluice.service >"$log/enable" 2>&1 || die "$(cat "$log/enable")
$(inside journalctl --no-pager -u sluice)"
property() {
    inside systemctl show --value -p "$1" "${2:-sluice.service}"
}
is_active() {
    [ "$(property ActiveState)" = active ]
}
daemon_is_not() {
    is_active && [ "$(property MainPID)" != "$1" ]
}
[ "$(property ActiveState sluice.socket)" = active ] || die 'the socket is not active'
[ "$(property NotifyAccess) $(property Type)" = 'main notify' ] || die 'it is no service that notifies'
is_active || die 'the service is not active'

# It reads a session's pages from within its restrictions, and says so to systemd.
inside sluice run --fake-gpu --device 0 --compute 30 --mem 4GiB --name train -- \
    tenant dense --kernel-us 2000 --seconds 600 >"$log/tenant" 2>&1 </dev/null &
figure() {
    inside sluice status --json | jq "[.sessions[], .elsewhere[]] | .[] | select(.name == \"train\") | $1"
}
above() {
    [ "$(figure "$1")" -gt "$2" ]
}
charged='.devices[0].compute.delivered_us'
until_so 30 'a session is served' above "$charged" 0
says_one() {
    property StatusText | grep -E '\b1 session' >/dev/null
}
until_so 30 'systemctl status tells of one session' says_one
echo "StatusText: $(property StatusText)"
until_so 30 'its state is kept' inside test -s /var/lib/sluice/hypervisor.json

# A daemon that is killed, and one that hangs: the watchdog of the unit is 30 s, here it is 4 s.
was=$(property MainPID)
inside kill -KILL "$was"
until_so 20 'a killed daemon is started anew' daemon_is_not "$was"
inside sh -c 'mkdir -p /run/systemd/system/sluice.service.d &&
    printf "[Service]\nWatchdogSec=4\n" >/run/systemd/system/sluice.service.d/watchdog.conf'
inside systemctl daemon-reload
inside systemctl restart sluice.service
was=$(property MainPID)
sleep 9
[ "$(property MainPID)" = "$was" ] || die 'a daemon that is well was ended by the watchdog'
inside kill -STOP "$was"
until_so 60 'a daemon that hangs is started anew' daemon_is_not "$was"
before=$(figure "$charged")
until_so 30 'the session is served again' above "$charged" "$before"

# A call starts it: the socket is there without it.
inside systemctl stop sluice.service
[ "$(property ActiveState)" = inactive ] || die 'it cannot be stopped'
inside sluice status >/dev/null
until_so 20 'a call has started it' is_active

# The journal has its lines, with their levels.
inside journalctl --no-pager -u sluice -o json >"$log/journal"
told() {
    jq -e -s "any(.[]; $1)" "$log/journal" >/dev/null || die "the journal has no line with $1"
}
told '._COMM == "hypervisor" and .PRIORITY == "6" and (.MESSAGE | tostring | contains("serving"))'
told '.MESSAGE | tostring | contains("Watchdog timeout")'
echo "journal: $(jq -s 'length' "$log/journal") lines"
inside systemctl status --no-pager --lines 0 sluice.service
