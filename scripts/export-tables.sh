#!/usr/bin/env bash
# Which private tables of functions do programs get from the driver, and what is in them? See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

usage() {
    cat <<END
Usage: scripts/export-tables.sh [PROGRAM ARGUMENT...]
       scripts/export-tables.sh --check

Starts PROGRAM with a library preloaded that tells which tables it gets from libcuda (cuGetExportTable) and from
libnvidia-ml (nvmlInternalGetExportTable), who asks for them, which functions are in them, and which of these are called.
Of each function it tells where it is, under which name it is exported, and whether Sluice patches it (docs/hooks.md).
Without PROGRAM: nvidia-smi in several ways beside a program that uses the GPU, PyTorch, CuPy and JAX where Python finds
them, and where there is an nvcc a program with the CUDA runtime linked into it.

Each program is started twice: once as it is, and once with a breakpoint at each private function, which goes at its
first call. What the library itself calls is told, too; a function that has several numbers is told under each.
Results go to \$OUT, or to ./export-tables-out: NAME.tables, NAME.calls, NAME.output and summary.txt.

  --check   on a driver made for the purpose, which needs no GPU

Needs a C compiler. x86-64 only. Sluice takes no part.
END
}

cc=${CC:-cc}
command -v "$cc" >/dev/null || {
    echo 'export-tables.sh: a C compiler is missing; install it with: apt-get install gcc libc6-dev (as root)' >&2
    exit 2
}
work=$(mktemp -d)
beside=''
trap 'if [ -n "$beside" ]; then kill "$beside" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
# What other compilers warn of must not keep it from running.
strict=()
[ "${1:-}" != --check ] || strict=(-Wall -Wextra -Werror)
"$cc" -O2 ${strict[@]+"${strict[@]}"} -shared -fPIC -o "$work/probe.so" scripts/export-tables/probe.c -ldl -lpthread
awk -F'`' '/^\| `lib/ { print $4 }' docs/hooks.md >"$work/patched"

# probed NAME PROGRAM ARGUMENT...: the program, twice.
probed() {
    local name=$1 way told status
    shift
    for way in 0 1; do
        told=$out/$name.$([ "$way" = 0 ] && echo tables || echo calls)
        : >"$told"
        status=0
        EXPORT_TABLES_OUT=$told EXPORT_TABLES_PATCHED=$work/patched EXPORT_TABLES_COUNT=$way EXPORT_TABLES_NAMES=1 \
            LD_PRELOAD=$work/probe.so timeout 120 "$@" >"$out/$name.output" 2>&1 || status=$?
        summary "$name" "$way" "$status" "$told"
    done
}

# The tables of a program, each once, and how many functions of each are what.
summary() {
    local name=$1 way=$2 status=$3 told=$4
    printf '\n%s, %s: exit status %s\n' "$name" "$([ "$way" = 0 ] && echo 'as it is' || echo 'first calls told')" "$status"
    awk '
        $2 == "table" && !($3 in asked) { asked[$3] = $0; order[++tables] = $3 }
        $2 == "slot" && !(($3, $4) in seen) {
            seen[$3, $4] = 1
            functions[$3]++
            if (/, PATCHED as /) patched[$3]++
            else if (/, exported as /) exported[$3]++
            else if (/, jumps to .* patched,/) jumps[$3]++
        }
        $2 == "first" && !(("called", $3, $4) in seen) {
            seen["called", $3, $4] = 1
            called[$3] = called[$3] " " substr($4, 1, length($4) - 1)
        }
        END {
            for (i = 1; i <= tables; i++) {
                id = order[i]
                sub(/^[0-9]+ /, "", asked[id])
                printf "  %s\n    %d functions: %d patched, %d exported and not patched, %d that jump to patched ones",
                    asked[id], functions[id], patched[id], exported[id], jumps[id]
                if (called[id] != "") printf "; called, in this order:%s", called[id]
                print ""
            }
            if (!tables) print "  asked for no table"
        }' "$told"
}

check() {
    local failed=0 wanted
    for part in '-DDRIVER -DCUDA -shared -o libcuda.so.1' '-DDRIVER -shared -o libnvidia-ml.so.1' '-o program'; do
        # shellcheck disable=SC2086 # several options
        (cd "$work" && "$cc" -O1 -fPIC -D_GNU_SOURCE $part "$OLDPWD/scripts/export-tables/example.c" -ldl)
    done
    out=$work
    LD_LIBRARY_PATH=$work probed example "$work/program" >"$work/summary.txt"
    for wanted in "$work/example.tables:table 01ab.* of libcuda.so.1, asked for by program.*: bytes 48\$" \
        "$work/example.tables:table 01ab.* of libnvidia-ml.so.1, asked for by program" \
        "$work/example.tables:table 02ab.* its size is not told" "$work/example.tables:table 03ab.*: refused, 1\$" \
        "$work/example.tables:slot 01ab[^ ]* 1: libcuda.so.1+0x[0-9a-f]*, not exported, not patched, code [0-9a-f]\{48\}\$" \
        "$work/example.tables:slot 01ab[^ ]* 2: libcuda.so.1+0x[0-9a-f]*, exported as cuMemAlloc_v2, PATCHED as cuMemAlloc_v2," \
        "$work/example.tables:slot 01ab[^ ]* 4: .*not patched, jumps to libcuda.so.1+0x[0-9a-f]* cuMemAlloc_v2 patched," \
        "$work/example.tables:slot 02ab[^ ]* 0: .* exported as cuNotPatched, not patched," \
        "$work/example.tables:slot 02ab[^ ]* 3: no code of the driver: 0x12345678\$" "$work/example.calls:first 02ab[^ ]* 4: 0x1 0x1 0x1 0x1\$" \
        "$work/example.tables:end 01ab[^ ]* the last function is 5\$" "$work/example.tables:name nvmlInit_v2 asked for by program" \
        "$work/example.calls:first 01ab[^ ]* 1: 0x1 0x2 0x3 0x4\$" "$work/example.calls:first 01ab[^ ]* 5: 0x4 " \
        "$work/summary.txt:example, first calls told: exit status 0\$" \
        "$work/summary.txt:4 functions: 1 patched, 0 exported and not patched, 1 that jump to patched ones; called, in this order: 1 5 4\$"; do
        grep -q -- "${wanted#*:}" "${wanted%%:*}" || {
            printf '%s lacks: %s\n' "$(basename "${wanted%%:*}")" "${wanted#*:}"
            failed=1
        }
    done
    # None without breakpoints, and with them each function once in each library.
    ! grep -q '^[0-9]* first' "$work/example.tables" || failed=1
    [ "$(grep -c '^[0-9]* first 01ab[^ ]* 1:' "$work/example.calls")" = 2 ] || failed=1
    # The program itself looks whether it gets the driver's own tables.
    grep -q '^status 0$' "$work/example.output" || failed=1
    [ "$failed" = 0 ] || cat "$work"/example.* "$work/summary.txt"
    return "$failed"
}

has() {
    python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null
}

# What there is on a machine with a GPU.
all() {
    if command -v nvcc >/dev/null && nvcc -O2 -arch=native -o "$work/runtime" scripts/gpu-proof/programs/runtime_ops.cu; then
        probed runtime "$work/runtime"
    else
        printf '\nruntime: SKIPPED, there is no nvcc that compiles here\n'
    fi
    if has torch; then
        probed torch python3 -c 'import torch; x = torch.randn(512, 512, device="cuda"); print((x @ x).sum().item())'
        python3 -c 'import time, torch; x = torch.ones(1 << 28, device="cuda"); print("ready", flush=True); time.sleep(400)' \
            >"$work/beside" &
        beside=$!
        for _ in {1..60}; do
            if grep -q ready "$work/beside"; then break; fi
            sleep 1
        done
    else
        printf '\ntorch: SKIPPED, Python does not find it\n'
    fi
    if has cupy; then probed cupy python3 -c 'import cupy; print(cupy.arange(1000).sum())'; fi
    if has jax; then probed jax python3 -c 'import jax.numpy as n; print(n.arange(1000).sum())'; fi
    if command -v nvidia-smi >/dev/null; then
        probed smi-list nvidia-smi -L
        probed smi nvidia-smi
        probed smi-apps nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv
        probed smi-memory nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv
        probed smi-pmon nvidia-smi pmon -c 1
        probed smi-xml nvidia-smi -q -x
    else
        printf '\nnvidia-smi: SKIPPED, it is not found\n'
    fi
}

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
--check)
    check
    exit
    ;;
esac
out=${OUT:-export-tables-out}
mkdir -p "$out"
out=$(realpath "$out")
if [ $# -gt 0 ]; then
    probed "$(basename "$1")" "$@"
else
    all
fi | tee "$out/summary.txt"
