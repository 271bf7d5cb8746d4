#!/usr/bin/env bash
# Proves Sluice on a real GPU, from prebuilt binaries; see gpu-proof/proof.py --help.
#
#   scripts/gpu-proof.sh [DIRECTORY-WITH-BINARIES] [OPTIONS]
#
# The result goes to $OUT, or to ./gpu-proof-out: gpu-proof.json, gpu-proof.txt, gpu-proof.log.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v python3 >/dev/null; then
    echo "gpu-proof: python3 is missing: install it, for instance with 'apt-get install python3'" >&2
    exit 2
fi
exec python3 "$here/gpu-proof/proof.py" "$@"
