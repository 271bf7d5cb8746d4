#!/usr/bin/env bash
# Makes what README.md and docs/operations.md show: prints `sluice status`, `sluice explain` and `nvidia-smi`, and draws
# `sluice top` and a plot as docs/pictures/*.svg. It is real output, of programs on the simulated GPU under a daemon.
#
#   cargo build --workspace && scripts/pictures.sh [FOLDER OF THE BINARIES]
set -euo pipefail
bin=$(cd "${1:-target/debug}" && pwd)
pictures=$(cd "$(dirname "$0")/.." && pwd)/docs/pictures
folder=$(mktemp -d)
mkdir -p "$pictures"
export PATH="$bin:$PATH" SLUICE_FAKE_NODE="$folder/node" SLUICE_DAEMON="$folder/d.sock"
pids=()
end() {
    kill "${pids[@]}" 2>/dev/null
    wait
    rm -rf "$folder"
}
trap end EXIT
start() {
    "$@" >/dev/null &
    pids+=($!)
}
session() {
    start sluice run --fake-gpu --device 0 --name "$@"
}
start hypervisor daemon --log warn --socket "$SLUICE_DAEMON" --nvml "$bin/libfake_nvml.so"
until [ -S "$SLUICE_DAEMON" ]; do sleep 0.1; done
session train --mem 8GiB --compute 50 tenant dense --kernel-us 2000 --seconds 90
session serve --mem 2GiB --compute 20 --soft 40 tenant dense --kernel-us 500 --seconds 90
session notebook --mem 1GiB tenant mem --api alloc --chunk 384MiB --cap 4GiB --hold 90
sleep 3
# What happens in the recording: another session comes, limits change, one is frozen for a while.
start sluice record "$folder/run.jsonl" --for 45s
recorder=${pids[-1]}
sleep 8
session batch --mem 4GiB --compute 25 --policy balance tenant dense --kernel-us 1000 --seconds 60
sleep 8
sluice limit train --compute 30 >/dev/null
sleep 10
sluice freeze serve >/dev/null
sleep 8
sluice thaw serve >/dev/null
wait "$recorder"
sluice plot "$folder/run.jsonl" -o "$pictures/plot.svg"
COLUMNS=110 LINES=16 sluice top --replay "$folder/run.jsonl" --picture "$pictures/top.svg"
COLUMNS=110 LINES=22 sluice top --replay "$folder/run.jsonl" --picture "$pictures/session.svg" serve
for arguments in 'status' 'status train' 'explain notebook'; do
    printf '$ sluice %s\n' "$arguments"
    # shellcheck disable=SC2086
    sluice $arguments || true
done
printf '$ sluice run --fake-gpu --mem 1GiB -- nvidia-smi\n'
sluice run --fake-gpu --mem 1GiB -- nvidia-smi
