#!/usr/bin/env bash
# Run by xtask in a clean root: installs /test/sluice.deb, uses it, upgrades to /test/later.deb while
# programs run, removes and purges; the same with the archive /test/sluice.tar.gz. Nothing may be left.
set -euo pipefail

say() { printf -- '-- %s\n' "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}
# within SECONDS COMMAND...: waits until it holds; only a hang takes so long.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "not within the time: $*"
        sleep 0.1
    done
}
# /run is a file system of its own here.
files() { find / /run -xdev \( -path /proc -o -path /dev -o -path /test -o -path /var/lib/dpkg -o -path /var/log \) -prune -o -print | sort; }
library=/usr/lib/sluice/libcuda_limiter.so
# loaded PATH: whether a process has that mapping, which may end with " (deleted)".
loaded() { grep -qs " $1\$" /proc/[0-9]*/maps; }

printf '# of others\n' >/etc/ld.so.preload
files >/test/before

say 'install'
dpkg -i /test/sluice.deb
[ -z "$(dpkg --verify sluice)" ] || fail 'files differ from what the package says'
sluice version --verbose | tee /test/version
grep -q "$library" /test/version || fail 'sluice does not find its library'
sluice config check /usr/share/doc/sluice/examples/config.toml

say 'use'
# It measures time, on a machine that may be busy.
sluice doctor --fake-gpu || sluice doctor --fake-gpu || sluice doctor --fake-gpu || fail 'the doctor, three times'
mv /usr/lib/sluice/tenant /test
sluice doctor --fake-gpu >/test/lacking && fail 'the doctor misses no part'
grep -q -- '-> sudo dpkg --install sluice_' /test/lacking || fail "the doctor's remedy: $(cat /test/lacking)"
mv /test/tenant /usr/lib/sluice
hypervisor daemon 2>/test/daemon &
daemon=$!
within 60 test -S /run/sluice/hypervisor.sock
# Here status 1 can only mean a share that the busy machine did not deliver.
sluice demo --fake-gpu --seconds 3 --json >/test/demo || [ $? -eq 1 ] || fail 'the demo'
[ "$(grep -o CUDA_ERROR_OUT_OF_MEMORY /test/demo | wc -l)" -eq 2 ] || fail "memory was not limited: $(cat /test/demo)"

say 'upgrade under a running program'
sluice run --fake-gpu --daemon none --mem 1GiB --compute 50 -- /usr/lib/sluice/tenant dense --kernel-us 500 --seconds 3600 &
program=$!
within 60 loaded "$library"
dpkg -i /test/later.deb
loaded "$library (deleted)" || fail 'the running program has not kept its library'
sluice run --fake-gpu --daemon none --mem 1GiB -- /usr/lib/sluice/tenant mem --api alloc --chunk 128MiB --cap 4GiB |
    grep -q '"granted_bytes":536870912[,}]' || fail 'the new version does not limit memory'
kill -0 "$program" || fail 'the running program has ended'
kill "$program"
status=0
wait "$program" || status=$?
[ "$status" -eq 143 ] || fail "the running program has ended with status $status, not by the signal that was sent"

say 'remove'
sluice inject / | tee /test/injected
# bullseye's, whose libc.so.6 has no symbol that came with it.
grep -qF '(glibc 2.31)' /test/injected || fail 'inject does not know this glibc'
grep -qx "$library" /etc/ld.so.preload || fail 'inject has not named the library'
sluice inject --remove /
[ -e "$library" ] || fail 'inject --remove has taken the library of the package'
sluice inject /
dpkg -r sluice 2>&1 | tee /test/removed
! grep -q 'cannot be preloaded' /test/removed || fail 'programs looked for a library that was gone'
[ "$(cat /etc/ld.so.preload)" = '# of others' ] || fail 'ld.so.preload is not as it was'
[ -d /var/lib/sluice ] || fail 'the state is gone before the purge'

say 'purge while programs use what is in /run'
mkdir -p /run/sluice-library/copy /run/sluice-allocations/one
cp /test/sluice.deb /run/sluice-library/copy/file
sleep 3600 3</run/sluice-library/copy/file &
holder=$!
dpkg -P sluice 2>&1 | tee /test/purged
for folder in sluice sluice-library; do
    grep -q "^/run/$folder stays" /test/purged || fail "it is not said that /run/$folder stays"
done
[ -S /run/sluice/hypervisor.sock ] || fail 'the socket of a daemon that runs is gone'
[ -e /run/sluice-library/copy/file ] || fail 'a file that a program has open is gone'
[ ! -e /run/sluice-allocations ] || fail "something is left: $(ls /run)"
kill "$holder" "$daemon"
wait "$holder" "$daemon" || true

nothing_is_left() {
    files >/test/after
    diff /test/before /test/after || fail 'something is left, or gone'
    [ -z "$(compgen -G '/dev/shm/sluice*')" ] || fail "something is left: $(find /dev/shm)"
}
say 'purge'
dpkg -i /test/later.deb
dpkg -P sluice
nothing_is_left

say 'the archive: purge while a program uses what is in /run, and again'
mkdir /test/archive
tar -xzf /test/sluice.tar.gz -C /test/archive --strip-components 1
for used in yes ''; do
    /test/archive/install.sh
    mkdir -p /var/lib/sluice /etc/sluice /run/sluice-library/copy /run/sluice-allocations/one
    : >/run/sluice-library/copy/file
    holder=''
    if [ -n "$used" ]; then
        sleep 3600 3</run/sluice-library/copy/file &
        holder=$!
    fi
    /test/archive/install.sh --uninstall --purge 2>&1 | tee /test/purged
    if [ -n "$used" ]; then
        grep -q '^/run/sluice-library stays' /test/purged || fail 'it is not said that /run/sluice-library stays'
        [ -e /run/sluice-library/copy/file ] || fail 'a file that a program has open is gone'
        kill "$holder"
        wait "$holder" || true
    fi
done
nothing_is_left
say 'nothing is left'
