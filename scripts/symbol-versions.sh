#!/usr/bin/env bash
# How old may the C library be? See usage below.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'END'
Usage: scripts/symbol-versions.sh [--musl LIBC] NEWEST FILE...

Checks that programs and libraries start with a glibc of version NEWEST (as in 2.17): prints each version of a
symbol that a FILE needs and that is newer, as "FILE: GLIBC_2.34". A version that is no number, as GLIBC_PRIVATE, is
never accepted.

  --musl LIBC   also checks that musl, of which LIBC is the library, can load each FILE: prints each library and each
                symbol that it does not have, as "FILE: not in musl: dlmopen". Names that end with 64 may be missing
                there: newer versions look up the name without it instead

Exit status: 0 all are old enough; 1 one is not; 2 wrong usage, or a file that cannot be read.
END
}

wrong() {
    printf 'symbol-versions.sh: %s\n' "$*" >&2
    exit 2
}

musl=''
case ${1:-} in
-h | --help)
    usage
    exit
    ;;
--musl)
    musl=${2:-}
    [ -r "$musl" ] || wrong "$musl cannot be read"
    shift 2
    ;;
esac
newest=${1:-}
[[ $newest =~ ^[0-9]+(\.[0-9]+)+$ ]] || wrong "'$newest' is not a version as in 2.17"
shift
[ $# -gt 0 ] || {
    usage >&2
    exit 2
}
command -v readelf >/dev/null || wrong 'readelf is missing; it comes with binutils'

# of_file COMMAND... FILE: what readelf shows, which has status 0 for a file that is no ELF file.
of_file() {
    local shown
    shown=$(readelf --wide "$@" 2>&1) || wrong "${*: -1}: $shown"
    [[ $shown != *'Not an ELF file'* ]] || wrong "${*: -1} is no ELF file"
    printf '%s\n' "$shown"
}

# needed_versions FILE: each version of glibc's that it needs. It stands behind "Name:" in the section .gnu.version_r.
needed_versions() {
    of_file --version-info "$1" | awk '
        /^Version needs section/ { inside = 1; next }
        /^Version (symbols|definition) section/ { inside = 0 }
        inside { for (i = 1; i < NF; i++) if ($i == "Name:" && $(i + 1) ~ /^GLIBC_/) print $(i + 1) }' | sort -uV
}

# is_newer VERSION: than the newest that is accepted.
is_newer() {
    [[ $1 =~ ^[0-9]+(\.[0-9]+)*$ ]] || return 0
    [ "$1" != "$newest" ] && [ "$(printf '%s\n' "$1" "$newest" | sort -V | tail -1)" = "$1" ]
}

# unknown_to_musl FILE: the libraries and symbols that musl lacks. It stands in for glibc's own libraries itself.
unknown_to_musl() {
    of_file --dynamic "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' |
        grep -vE '^lib(c|pthread|rt|m|dl|util)\.' || true
    comm -23 \
        <(of_file --dyn-syms "$1" | awk '$7 == "UND" && $5 == "GLOBAL" { sub(/@.*/, "", $8); print $8 }' |
            grep -v '64$' | sort -u) \
        <(of_file --dyn-syms "$musl" | awk '$7 != "UND" && $8 != "" { sub(/@.*/, "", $8); print $8 }' | sort -u)
}

status=0
for file in "$@"; do
    [ -r "$file" ] || wrong "$file cannot be read"
    versions=$(needed_versions "$file")
    for version in $versions; do
        if is_newer "${version#GLIBC_}"; then
            printf '%s: %s\n' "$file" "$version"
            status=1
        fi
    done
    if [ -n "$musl" ]; then
        unknown=$(unknown_to_musl "$file")
        for name in $unknown; do
            printf '%s: not in musl: %s\n' "$file" "$name"
            status=1
        done
    fi
done
exit "$status"
