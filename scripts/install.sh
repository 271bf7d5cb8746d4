#!/usr/bin/env bash
# Installs, upgrades or removes Sluice without disturbing programs that run. See usage below.
set -euo pipefail
shopt -s inherit_errexit

usage() {
    cat <<'END'
Usage: scripts/install.sh [--from FOLDER] [--uninstall]

  --from FOLDER   what was built; target/release of this checkout by default. Nothing is built
  --uninstall     remove what was installed

Programs go to $PREFIX/bin, libraries to $PREFIX/lib, manual pages and completions to $PREFIX/share;
PREFIX is /usr/local by default. The units of systemd go to $PREFIX/lib/systemd/system, where systemd
finds them if PREFIX is /usr/local or /usr; nothing is enabled or started. With DESTDIR everything is
put below that folder, as a package wants it.

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
    lib/fake-nvidia-smi
    lib/tenant
    bin/hypervisor
    bin/sluice
)

units=(sluice.socket sluice.service)
deploy="$(dirname "$0")/../deploy/systemd"
for unit in "${units[@]}"; do
    parts+=("lib/systemd/system/$unit")
done

# Written by the programs themselves. One that cannot run here (another glibc) is installed all the same.
documents=(
    share/bash-completion/completions/sluice
    share/bash-completion/completions/hypervisor
    share/zsh/site-functions/_sluice
    share/zsh/site-functions/_hypervisor
    share/fish/vendor_completions.d/sluice.fish
    share/fish/vendor_completions.d/hypervisor.fish
)

if [ -n "$uninstall" ]; then
    for document in "${documents[@]}"; do
        rm -f -- "$root/$document"
    done
    rm -f -- "$root"/share/man/man1/{sluice,hypervisor}{,-*}.1
    for part in "${parts[@]}"; do
        rm -f -- "$root/$part"
    done
    # Others may have units there.
    rmdir -- "$root/lib/systemd/system" "$root/lib/systemd" 2>/dev/null || true
    exit
fi

# source_of PART: the file that it is made of.
source_of() {
    case $1 in
    lib/systemd/*) printf '%s' "$deploy/${1##*/}" ;;
    *) printf '%s' "$from/${1##*/}" ;;
    esac
}

for part in "${parts[@]}"; do
    [ -f "$(source_of "$part")" ] || fail "$(source_of "$part") is missing: build it with cargo build --release --workspace"
    [ ! -d "$root/$part" ] || fail "$root/$part is a folder"
done

copies=()
trap 'rm -f -- ${copies[@]+"${copies[@]}"}' EXIT
mkdir -p -- "$root/bin" "$root/lib/systemd/system"
for part in "${parts[@]}"; do
    # In the same folder, or it could not be renamed.
    copy=$(mktemp -- "$root/${part%/*}/.${part##*/}.XXXXXXXX")
    copies+=("$copy")
    case $part in
    lib/systemd/*)
        # The unit names the program where it is installed.
        sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" -- "$(source_of "$part")" >"$copy"
        chmod 644 -- "$copy"
        ;;
    *)
        cat -- "$(source_of "$part")" >"$copy"
        chmod 755 -- "$copy"
        ;;
    esac
    # What takes the place must be complete, also after a power failure.
    sync -- "$copy"
done
for index in "${!parts[@]}"; do
    mv -T -f -- "${copies[$index]}" "$root/${parts[$index]}"
done
copies=()
sync -- "$root/lib" "$root/lib/systemd/system" "$root/bin"

# For shells and `man`. Nothing depends on them, so what fails here is only said.
write_documents() {
    local program shell document drafts
    drafts=$(mktemp -d)
    for program in sluice hypervisor; do
        "$root/bin/$program" man "$drafts/man1" || return 1
        for shell in bash zsh fish; do
            "$root/bin/$program" completions "$shell" >"$drafts/$program.$shell" || return 1
        done
    done
    mkdir -p -- "$root/share/man/man1"
    install -m 644 -- "$drafts"/man1/*.1 "$root/share/man/man1/"
    for document in "${documents[@]}"; do
        program=${document##*/}
        program=${program#_}
        program=${program%.fish}
        case $document in
        */bash-completion/*) shell=bash ;;
        */zsh/*) shell=zsh ;;
        *) shell=fish ;;
        esac
        install -D -m 644 -- "$drafts/$program.$shell" "$root/$document"
    done
    rm -rf -- "$drafts"
}
write_documents || printf 'install.sh: completions and manual pages are not installed: a program does not run here\n' >&2
