#!/usr/bin/env bash
# Instructions that the limiter spends on a cuMemAlloc and its cuMemFree, counted by callgrind on the simulated
# driver: two runs of the benchmark `alloc` of different lengths, so that the start cancels out.
# Needs valgrind, and the release build: cargo build --release --workspace.
# Usage: scripts/callgrind.sh [PAIRS, 20000 by default]. Prints: instructions per pair in the limiter's library,
# then in all of the process, then the functions that take most.
# Usage: scripts/callgrind.sh launches [COUNT, 40000 by default]. The same for a cuLaunchKernel, in the thread that
# launches, with a memory limit only and at an open gate (99 %), and how many of the driver's other functions are
# called there for a thousand launches.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "${CARGO_TARGET_DIR:-target}")/release
work=$(mktemp -d /dev/shm/sluice-callgrind-XXXXXX)
trap 'rm -rf "$work"' EXIT
ln -s "$folder/libfake_cuda.so" "$work/libcuda.so.1"
ln -s "$folder/libfake_nvml.so" "$work/libnvidia-ml.so.1"

launches() { # COUNT LIMIT...: two runs of tenant launch-cost
    local count=$1 run
    shift
    for run in 1 2; do
        mkdir -p "$work/$run"
        LD_LIBRARY_PATH=$work SLUICE_FAKE_NODE=$work/node SLUICE_FAKE_DEVICES=1 SLUICE_SESSION_DIR=$work/$run \
            LD_PRELOAD=$folder/libcuda_limiter.so env "$@" valgrind -q --smc-check=all --tool=callgrind \
            --separate-threads=yes --callgrind-out-file="$work/launches-$run" \
            "$folder/tenant" launch-cost --launches $((count * run)) >/dev/null
        rm -rf "${work:?}/$run"
    done
    for run in 1 2; do
        callgrind_annotate --threshold=100 "$work/launches-$run-01" |
            sed -nE 's/^ *([0-9,]+) \([^)]*\) +(.*)$/\1\t\2/p' | tr -d ',' >"$work/functions-$run"
        # Calls by the name of what is called.
        awk '/^c?fn=/ { id = $0; sub(/^c?fn=/, "", id); name = id; sub(/\).*/, ")", id)
                if (sub(/^\([0-9]+\) /, "", name)) names[id] = name
                if (/^cfn=/) called = id }
            /^calls=/ { split(substr($0, 7), n, " "); calls[called] += n[1] }
            END { for (id in calls) if (names[id] ~ /^cu[A-Z]/) print calls[id] "\t" names[id] }' \
            "$work/launches-$run-01" >"$work/calls-$run"
    done
    awk -F'\t' -v count="$count" 'NR == FNR { before[$2] = $1; next }
        $2 ~ /cuda_limiter::/ { own += ($1 - before[$2]) / count }
        END { printf "%.0f instructions per cuLaunchKernel in the limiter\n", own }' \
        "$work/functions-1" "$work/functions-2"
    awk -F'\t' -v count="$count" 'NR == FNR { before[$2] += $1; next }
        $2 !~ /Launch|StreamSynchronize/ { sub(/\x27.*/, "", $2); sums[$2] += ($1 - before[$2]) * 1000 / count }
        END { for (name in sums) if (sums[name] >= 0.05) printf "%8.1f  %s\n", sums[name], name }' \
        "$work/calls-1" "$work/calls-2" | sort -rn
}

if [ "${1:-}" = launches ]; then
    echo "With a memory limit:"
    launches "${2:-40000}" TENSOR_FUSION_CUDA_MEM_LIMIT='{"0": "8GiB"}'
    echo "At 99 %:"
    launches "${2:-40000}" TENSOR_FUSION_CUDA_UP_LIMIT='{"0": 99}'
    exit
fi
pairs=${1:-20000}
bench=$(cargo bench -q -p cuda-limiter --bench alloc --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*alloc-[^"]*\)".*/\1/p' | tail -1)

count() { # PAIRS: the functions' own instructions
    mkdir -p "$work/session-$1"
    LD_LIBRARY_PATH=$work SLUICE_FAKE_NODE=$work/node SLUICE_SESSION_DIR=$work/session-$1 \
        LD_PRELOAD=$folder/libcuda_limiter.so TENSOR_FUSION_CUDA_MEM_LIMIT='{"0": "8GiB"}' \
        SLUICE_BENCH_WORKER=1 valgrind -q --smc-check=all --tool=callgrind --callgrind-out-file="$work/out-$1" \
        "$bench" "$1" only-pairs </dev/null
    callgrind_annotate --threshold=100 "$work/out-$1" |
        sed -nE 's/^ *([0-9,]+) \([^)]*\) +(.*)$/\1\t\2/p' | tr -d ',' >"$work/functions-$1"
}
count "$pairs"
count $((pairs * 2))
awk -F'\t' -v pairs="$pairs" '
    /PROGRAM TOTALS/ { next }
    NR == FNR { before[$2] = $1; next }
    {
        more = ($1 - before[$2]) / pairs
        all += more
        if ($2 ~ /libcuda_limiter\.so/) { own += more }
        if (more >= 20) { printf "%8.0f  %s\n", more, $2 | "sort -rn | head -25 >&2" }
    }
    END {
        close("sort -rn | head -25 >&2")
        printf "%.0f instructions per cuMemAlloc + cuMemFree in the limiter, %.0f in all\n", own, all
    }' "$work/functions-$pairs" "$work/functions-$((pairs * 2))"
