#!/usr/bin/env bash
# Builds Sluice and shows two programs sharing one GPU, each held to its memory and its share. On a
# machine without a GPU it uses one simulated in software. Options are those of `sluice demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh

require_build_tools
cargo build --release --locked -p hypervisor -p sluice -p cuda-limiter -p fake-cuda -p fake-nvml -p fake-smi -p tenant
exec "${CARGO_TARGET_DIR:-target}/release/sluice" demo "$@"
