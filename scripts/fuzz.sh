#!/usr/bin/env bash
# Runs the fuzz target of the page reader: scripts/fuzz.sh [SECONDS, 60 by default] [libFuzzer option ...]
# With the pinned toolchain: RUSTC_BOOTSTRAP lets it take the instrumentation's flags, which are rustc's own.
# Needs a C++ compiler. Ends with 0 if nothing was found.
set -euo pipefail
cd "$(dirname "$0")/../utils/session/fuzz"
seconds=${1:-60}
shift || true
export RUSTC_BOOTSTRAP=1
# What `cargo fuzz build --sanitizer none` passes.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# A target of its own, so that build scripts are not instrumented.
target=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS=$flags cargo build --release --bin page --target "$target"
folder=${CARGO_TARGET_DIR:-target}
exec "$folder/$target/release/page" -max_total_time="$seconds" -timeout=20 -max_len=4096 -print_final_stats=1 "$@"
