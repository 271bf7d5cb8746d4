#!/usr/bin/env bash
# Installs, upgrades or removes Sluice without disturbing programs that run. See usage below.
set -euo pipefail
shopt -s inherit_errexit

usage() {
    cat <<'END'
Usage: install.sh [--prefix FOLDER] [--from FOLDER] [--uninstall [--purge]]

  --prefix FOLDER   where to; /usr/local by default
  --from FOLDER     in a checkout: what was built; target/release by default. Nothing is built. An archive of
                    Sluice has what it installs beside this script
  --uninstall       remove what was installed. End the programs that run under limits first
  --purge           ... and the daemon's state and configuration: /var/lib/sluice, /etc/sluice, and what no process
                    uses of /run/sluice, /run/sluice-library, /run/sluice-allocations

Programs go to FOLDER/bin, libraries to FOLDER/lib/sluice, documents to FOLDER/share. The units of systemd go to
FOLDER/lib/systemd/system, where systemd finds them if FOLDER is /usr/local or /usr; nothing is enabled or started.

Each file is written under another name first and then takes its place in one step. A program that
runs keeps the file that it has loaded. If anything fails before that step, nothing has changed.
END
}

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

here=$(realpath -- "$(dirname "$0")")
from=$here/../target/release
prefix=/usr/local
uninstall='' purge=''
while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix)
        [ -n "${2:-}" ] || fail "$1 needs a folder"
        declare "${1#--}=$2"
        shift
        ;;
    --uninstall) uninstall=yes ;;
    --purge) purge=yes ;;
    -h | --help)
        usage
        exit
        ;;
    *)
        printf "install.sh: %s is not an option\n\n" "'$1'" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done
[ -z "$purge" ] || [ -n "$uninstall" ] || fail '--purge goes with --uninstall'
case $prefix in
/*) ;;
*) fail "--prefix '$prefix' is not a path that starts with /" ;;
esac
# Units and the list of what is installed could not name it.
[[ $prefix != *[[:cntrl:]\"\'\\\$]* ]] ||
    fail "--prefix $(printf %q "$prefix"): control characters, quotes, \\ and \$ are not accepted"

# What is installed: a path below the prefix in each line. Folders that were made for it end with a slash.
list=lib/sluice/installed

# listed: the lines of the list that is there, none of which leads out of the prefix.
listed() {
    [ -f "$prefix/$list" ] || return 0
    grep -vE '^/|(^|/)\.\.(/|$)|^$' -- "$prefix/$list" || true
}

# remove LINE...: these files, then these folders if they are empty.
remove() {
    local line
    for line in "$@"; do
        [[ $line == */ ]] || rm -f -- "$prefix/$line"
    done
    printf '%s\n' "$@" | grep '/$' | LC_ALL=C sort -r | while read -r line; do
        rmdir -- "$prefix/${line#./}" 2>/dev/null || true
    done || true
}

if [ -n "$uninstall" ]; then
    mapfile -t lines < <(listed)
    # The packages' script that purges, beside this one in an archive.
    after_removal=$here/after-removal
    [ -e "$after_removal" ] || after_removal=$here/../deploy/packages/postrm
    [ -z "$purge" ] || [ -x "$after_removal" ] || fail "$after_removal is missing, which purges"
    [ "${#lines[@]}" -gt 0 ] || fail "$prefix/$list is missing: nothing of Sluice was installed there by this script"
    # A package in /usr has the units and names in /etc/ld.so.preload for itself.
    if [ "$prefix" = /usr ] || [ ! -e /usr/lib/sluice/before-removal ]; then
        "$prefix/lib/sluice/before-removal" || true
    fi
    remove "${lines[@]}"
    [ -z "$purge" ] || "$after_removal" purge
    exit
fi

# The copies that have not taken their places, and what is made for this alone.
copies=() own=$(mktemp -d)
# Folders that were not there: below the prefix, and those that the prefix is in, the lowest first.
made=() above=() is_changed=''
at_end() {
    local index
    rm -rf -- "$own" ${copies[@]+"${copies[@]}"}
    [ -z "$is_changed" ] || return 0
    for ((index = ${#made[@]} - 1; index >= 0; index--)); do
        rmdir -- "$prefix/${made[index]#./}" || true
    done
    [ "${#above[@]}" -eq 0 ] || rmdir -- "${above[@]}" || true
}
trap at_end EXIT
tree=$here
if [ ! -d "$here/lib/sluice" ]; then
    tree=$own/tree
    "$here/lay-out.sh" "$from" "$tree"
fi

# The libraries come first, the programs last: a new sluice never meets an old library.
mapfile -t files < <(cd "$tree" && find lib/sluice share lib/systemd bin -type f | LC_ALL=C sort -r)
mapfile -t before < <(listed)
for file in "${files[@]}"; do
    [ ! -d "$prefix/$file" ] || fail "$prefix/$file is a folder"
done

# make_folder FOLDER: and those that it is in. What was not there is in `made`.
make_folder() {
    [ ! -d "$prefix/$1" ] || return 0
    if [ "$1" = . ]; then
        local folder
        folder=$(dirname -- "$prefix")
        until [ -d "$folder" ]; do
            above+=("$folder")
            folder=$(dirname -- "$folder")
        done
        mkdir -p -- "$prefix"
    else
        make_folder "$(dirname -- "$1")"
        mkdir -- "$prefix/$1"
    fi
    made+=("$1/")
}

# draft FILE MODE SOURCE: copies it under another name into the same folder, or it could not be renamed.
draft() {
    local copy=$prefix/${1%/*}/.${1##*/}.$$
    make_folder "${1%/*}"
    copies+=("$copy")
    install -m "$2" -- "$3" "$copy"
}

# unit FILE: that unit of systemd, which names the programs where they are installed.
unit() {
    local line program
    while IFS= read -r line; do
        if [[ $line =~ ^ExecStart=/usr(/bin/[^ ]*)(.*)$ ]]; then
            program=$prefix${BASH_REMATCH[1]} line=${BASH_REMATCH[2]}
            [[ $program =~ ^[A-Za-z0-9/._+-]*$ ]] || program="\"${program//%/%%}\""
            line=ExecStart=$program$line
        fi
        printf '%s\n' "$line"
    done <"$1"
}
for file in "${files[@]}"; do
    case $file in
    lib/systemd/*)
        unit "$tree/$file" >"$own/unit"
        draft "$file" 644 "$own/unit"
        ;;
    share/*) draft "$file" 644 "$tree/$file" ;;
    *) draft "$file" 755 "$tree/$file" ;;
    esac
done
files+=("$list")
{
    printf '%s\n' "${files[@]}"
    printf '%s\n' ${before[@]+"${before[@]}"} ${made[@]+"${made[@]}"} | grep '/$' | LC_ALL=C sort -u || true
} >"$own/list"
draft "$list" 644 "$own/list"
# What takes the place must be complete, also after a power failure.
sync -- "${copies[@]}"
is_changed=yes
for index in "${!files[@]}"; do
    mv -T -f -- "${copies[$index]}" "$prefix/${files[$index]}"
done
copies=()
# What a former version had and this one has not; folders only if they are empty.
mapfile -t before < <(printf '%s\n' ${before[@]+"${before[@]}"} | grep -vxFf <(printf '%s\n' "${files[@]}") | grep .)
remove ${before[@]+"${before[@]}"}
sync -- "$prefix/bin" "$prefix/lib/sluice" "$prefix/lib/systemd/system"
