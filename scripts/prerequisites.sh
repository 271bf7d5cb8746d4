# Sourced by the other scripts: what has to be there before anything can be built.
# shellcheck shell=bash

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Names what is missing, and the command that installs it.
require_build_tools() {
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        export PATH
    fi
    [ "$(uname -sm)" = 'Linux x86_64' ] ||
        fail "Sluice runs on Linux on x86-64; this is $(uname -sm)."
    command -v cargo >/dev/null ||
        fail "cargo (Rust) is missing. Install it with:
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    command -v cc >/dev/null ||
        fail "cc (a C compiler) is missing. Install it with:
    apt-get install -y gcc libc6-dev        (Debian, Ubuntu; as root)
    dnf install -y gcc                      (Fedora, RHEL; as root)"
}
