#!/usr/bin/env bash
# Installs, upgrades or removes Sluice without disturbing programs that run. See usage below.
set -euo pipefail
shopt -s inherit_errexit

usage() {
    cat <<'END'
Usage: scripts/install.sh [--from FOLDER] [--uninstall]

  --from FOLDER   what was built; target/release of this checkout by default. Nothing is built
  --uninstall     remove what was installed

Programs go to $PREFIX/bin, all else to $PREFIX/lib; PREFIX is /usr/local by default. With DESTDIR
everything is put below that folder, as a package wants it.

Each file is written under another name first and then takes its place in one step. A program that
runs keeps the file that it has loaded. If anything fails before that step, nothing has changed.
END
}

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

from="$(dirname "$0")/../target/release"
uninstall=''
while [ $# -gt 0 ]; do
    case $1 in
    --from)
        [ -n "${2:-}" ] || fail '--from needs a folder'
        from=$2
        shift
        ;;
    --uninstall) uninstall=yes ;;
    -h | --help)
        usage
        exit
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done

prefix=${PREFIX:-/usr/local}
case $prefix in
/*) ;;
*) fail "PREFIX='$prefix' is not a path that starts with /" ;;
esac
root=${DESTDIR:-}$prefix

# The library comes first: a new sluice never meets an old library.
parts=(
    lib/libcuda_limiter.so
    lib/libadd_path.so
    lib/libfake_cuda.so
    lib/libfake_nvml.so
    lib/tenant
    bin/hypervisor
    bin/sluice
)

if [ -n "$uninstall" ]; then
    for part in "${parts[@]}"; do
        rm -f -- "$root/$part"
    done
    exit
fi

for part in "${parts[@]}"; do
    [ -f "$from/${part##*/}" ] || fail "$from/${part##*/} is missing: build it with cargo build --release --workspace"
    [ ! -d "$root/$part" ] || fail "$root/$part is a folder"
done

copies=()
trap 'rm -f -- ${copies[@]+"${copies[@]}"}' EXIT
mkdir -p -- "$root/bin" "$root/lib"
for part in "${parts[@]}"; do
    # In the same folder, or it could not be renamed.
    copy=$(mktemp -- "$root/${part%/*}/.${part##*/}.XXXXXXXX")
    copies+=("$copy")
    cat -- "$from/${part##*/}" >"$copy"
    chmod 755 -- "$copy"
    # What takes the place must be complete, also after a power failure.
    sync -- "$copy"
done
for index in "${!parts[@]}"; do
    mv -T -f -- "${copies[$index]}" "$root/${parts[$index]}"
done
copies=()
sync -- "$root/lib" "$root/bin"
