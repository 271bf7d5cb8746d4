#!/usr/bin/env bash
# Instructions that the limiter spends on a cuMemAlloc and its cuMemFree, counted by callgrind on the simulated
# driver: two runs of the benchmark `alloc` of different lengths, so that the start cancels out.
# Needs valgrind, and the release build: cargo build --release --workspace.
# Usage: scripts/callgrind.sh [PAIRS, 20000 by default]. Prints: instructions per pair in the limiter's library,
# then in all of the process, then the functions that take most.
set -euo pipefail
cd "$(dirname "$0")/.."
pairs=${1:-20000}
folder=$(realpath "${CARGO_TARGET_DIR:-target}")/release
bench=$(cargo bench -q -p cuda-limiter --bench alloc --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*alloc-[^"]*\)".*/\1/p' | tail -1)
work=$(mktemp -d /dev/shm/sluice-callgrind-XXXXXX)
trap 'rm -rf "$work"' EXIT
ln -s "$folder/libfake_cuda.so" "$work/libcuda.so.1"
ln -s "$folder/libfake_nvml.so" "$work/libnvidia-ml.so.1"

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
