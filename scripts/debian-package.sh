#!/usr/bin/env bash
# Unpacks packages of Debian without installing them. See usage below.
set -euo pipefail

usage() {
    cat <<'EOF'
Usage: scripts/debian-package.sh SUITE ARCHITECTURE FOLDER PACKAGE...

Fetches each PACKAGE of Debian's SUITE (bullseye, bookworm, ...) for ARCHITECTURE (amd64, arm64), checks its
signature as apt-get does, and unpacks it into FOLDER/root, which is made anew. FOLDER/versions tells which versions
these are. What this machine has and wants is not touched. COMPONENTS names other parts of Debian than main, such as
"non-free". Needs apt-get and dpkg-deb.
EOF
}

[ $# -ge 4 ] || {
    usage >&2
    exit 2
}
suite=$1 architecture=$2
mkdir -p "$3"
folder=$(realpath "$3")
shift 3

apt="$folder/apt"
rm -rf "$apt" "$folder/root"
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts" "$folder/root"
: >"$apt/status"
# shellcheck disable=SC2016 # apt-get expands it
mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -m 1 '/debian/\?$') || {
    printf 'debian-package.sh: apt-get knows no mirror of Debian\n' >&2
    exit 1
}
printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s %s\n' "$mirror" "$suite" "${COMPONENTS:-main}" >"$apt/sources.list"
get=(apt-get -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/parts"
    -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Dir::State::status="$apt/status"
    -o APT::Architecture="$architecture" -o APT::Architectures="$architecture"
    -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)")
"${get[@]}" update
(cd "$apt" && "${get[@]}" download "$@")
for package in "$apt"/*.deb; do
    dpkg-deb -x "$package" "$folder/root"
    # shellcheck disable=SC2016 # dpkg-deb expands it
    dpkg-deb --show --showformat '${Package} ${Version}\n' "$package"
done >"$folder/versions"
rm -rf "$apt"
