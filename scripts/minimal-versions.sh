#!/usr/bin/env bash
# Does all compile with the oldest versions of crates that the manifests allow? See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'END'
Usage: scripts/minimal-versions.sh

Takes for each crate that a manifest names the oldest version that it allows, and for those that these need what cargo
likes, and checks the workspace without its tests. It works in target/minimal, on a copy of the files that
git knows: Cargo.lock stays as it is. The option of cargo is not stable; RUSTC_BOOTSTRAP makes a stable one take it.

Exit status: 0 it compiles; 1 it does not, or no such versions fit together; 3 the registry cannot be reached.
END
}

case ${1:-} in
'') ;;
-h | --help)
    usage
    exit
    ;;
*)
    usage >&2
    exit 2
    ;;
esac
own=$(realpath -m "${CARGO_TARGET_DIR:-target}")/minimal
rm -rf "$own/tree"
mkdir -p "$own/tree"
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$own/tree"
cd "$own/tree"
export CARGO_TARGET_DIR=$own/build SLUICE_COMMIT=minimal
if ! said=$(RUSTC_BOOTSTRAP=1 cargo update -Zdirect-minimal-versions 2>&1); then
    printf '%s\n' "$said" >&2
    [[ $said == *'failed to select a version'* ]] || exit 3
    exit 1
fi
cargo fetch --locked || exit 3
cargo check --locked --workspace --keep-going || exit 1
