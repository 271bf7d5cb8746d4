#!/usr/bin/env bash
# Gets the source of Rust's own library. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'END'
Usage: scripts/std-source.sh FOLDER

Makes FOLDER/library: the source of Rust's own library, of the version of the compiler in use, from Debian's
package rust-src. For building programs for another processor where rustup has no library for it. Needs apt-get
and dpkg-deb.
END
}

[ $# -eq 1 ] || {
    usage >&2
    exit 2
}
version=$(rustc --version | cut -d ' ' -f 2)
[ "$(cat "$1/version" 2>/dev/null)" != "$version" ] || exit 0
rm -rf "$1"
for suite in trixie-backports sid trixie; do
    if scripts/debian-package.sh "$suite" amd64 "$1" "rust-src=$version*" 2>/dev/null; then
        mv "$1/root/usr/src/rustc-$version/library" "$1/library"
        rm -rf "$1/root"
        printf '%s\n' "$version" >"$1/version"
        exit 0
    fi
done
printf "std-source.sh: no suite of Debian's has rust-src %s\n" "$version" >&2
exit 1
