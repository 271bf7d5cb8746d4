#!/usr/bin/env bash
# Runs a fuzz target: scripts/fuzz.sh [TARGET, page by default] [SECONDS, 60 by default] [libFuzzer option ...]
#   page      any bytes as a session's page
#   library   any bytes as a library that a program loads
#   code      any bytes as a function that is patched, and as the list of mappings
#   values    any text as the value of an option or a variable
#   authority any bytes as what a client of gRPC sends
# The suite runs the same checks over random bytes, a fixed number of times.
# With the pinned toolchain: RUSTC_BOOTSTRAP lets it take the instrumentation's flags, which are rustc's own.
# Needs a C++ compiler. Ends with 0 if nothing was found.
set -euo pipefail
cd "$(dirname "$0")/../utils/session/fuzz"
target=page
case ${1:-} in
page | library | code | values | authority)
    target=$1
    shift
    ;;
[a-z]*)
    printf 'fuzz.sh: %s is no target: page, library, code, values and authority are\n' "$1" >&2
    exit 2
    ;;
esac
seconds=${1:-60}
shift || true
export RUSTC_BOOTSTRAP=1
# What `cargo fuzz build --sanitizer none` passes.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# A target of its own, so that build scripts are not instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS=$flags cargo build --release --bin "$target" --target "$host"
folder=${CARGO_TARGET_DIR:-target}
exec "$folder/$host/release/$target" -max_total_time="$seconds" -timeout=20 -max_len=4096 -print_final_stats=1 "$@"
