#!/usr/bin/env bash
# Makes packages of what is shipped, from a clean clone. See usage below.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
# shellcheck source=scripts/prerequisites.sh
. scripts/prerequisites.sh

usage() {
    cat <<'END'
Usage: scripts/package.sh [--arch ARCH] [--check-reproducible] [--tools]

Builds what is shipped (scripts/build-release.sh) and puts into target/packages:
  sluice_VERSION-1_amd64.deb           Debian, Ubuntu
  sluice-VERSION-1.x86_64.rpm          Fedora, RHEL, openSUSE
  sluice-VERSION-x86_64.tar.gz         runs from any folder; install.sh in it installs and removes
  sluice-VERSION-x86_64.oci.tar        a container image with the daemon and the libraries
  libcuda_limiter-x64.tar.gz           the library alone, as users of vgpu.rs download it
  libadd_path-x64.tar.gz
  sluice-VERSION-x86_64.cdx.json       what it is made of (CycloneDX); LICENSES-of-others is in each package
  SHA256SUMS
The same commit is to make the same bytes, with the same tools, the same source of Rust's own library or none, and for
the image with the same glibc of Debian.

  --arch ARCH             x86_64, which is the default, or aarch64
  --check-reproducible    makes them once more, from a clone of this commit in another folder, and compares
  --tools                 only get the tools

Packages are made by dpkg-deb (Debian: dpkg, Fedora: dpkg) and rpmbuild (Debian: rpm, Fedora: rpm-build).
END
}

arch=x86_64 check='' only_tools=''
while [ $# -gt 0 ]; do
    case $1 in
    --arch)
        arch=${2:-}
        shift
        ;;
    --check-reproducible) check=yes ;;
    --tools) only_tools=yes ;;
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
case $arch in
x86_64) debian=amd64 plain=x64 place=shipped ;;
aarch64) debian=arm64 plain=arm64 place=shipped-aarch64 ;;
*) fail "--arch '$arch': x86_64 and aarch64 are known" ;;
esac

require_build_tools
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out="$target/packages"

command -v dpkg-deb >/dev/null || fail 'dpkg-deb is missing. Install it with: apt-get install dpkg, or dnf install dpkg (as root)'
command -v rpmbuild >/dev/null || fail 'rpmbuild is missing. Install it with: apt-get install rpm, or dnf install rpm-build (as root)'
scripts/build-release.sh --tools
[ -z "$only_tools" ] || exit 0

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
name=sluice-$version-$arch
# A package is as old as its commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} ||
    fail 'this is no repository: say when the source was made by SOURCE_DATE_EPOCH, and which it is by SLUICE_COMMIT'
export LC_ALL=C TZ=UTC
umask 022

scripts/build-release.sh --arch "$arch"
# Who writes the manual pages has to run here.
documents_by=$place
if [ "$arch" != "$(uname -m)" ]; then
    [ "$(uname -m)" = x86_64 ] || fail "packages for $arch are made on x86_64 or on $arch"
    scripts/build-release.sh --arch x86_64 sluice hypervisor
    documents_by=shipped
fi
# The build does without it: nothing that is built holds a date, and cargo would build anew what was built without it.
export SOURCE_DATE_EPOCH

# archive FILE ARGUMENT...: a tar archive that tells nothing of who made it and when.
archive() {
    local file=$1
    shift
    tar --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$@" |
        gzip -9 --no-name >"$file"
}

rm -rf "$out"
stage="$out/stage"
mkdir -p "$stage"
scripts/lay-out.sh "$target/$place" "$stage/usr" "$target/$documents_by"
documents="$stage/usr/share/doc/sluice"
python3 scripts/third-party.py "$arch-unknown-linux-gnu" "$out/$name.cdx.json" "$documents/LICENSES-of-others"
cp "$out/$name.cdx.json" "$documents/sluice.cdx.json"

printf '== %s\n' "archives"
cp -R "$stage/usr" "$out/$name"
install -m 755 scripts/install.sh "$out/$name"
install -m 755 deploy/packages/postrm "$out/$name/after-removal"
archive "$out/$name.tar.gz" -C "$out" "$name"
rm -rf "${out:?}/$name"
for library in libcuda_limiter libadd_path; do
    archive "$out/$library-$plain.tar.gz" -C "$stage/usr/lib/sluice" "$library.so"
done

printf '== %s\n' ".deb"
deb="$stage/deb"
mkdir -p "$deb/DEBIAN"
cp -R "$stage/usr" "$deb/usr"
install -m 644 deploy/packages/copyright "$deb/usr/share/doc/sluice/copyright"
printf 'sluice (%s-1) unstable; urgency=medium\n\n  * See the repository for what has changed.\n\n -- %s  %s\n' "$version" \
    "$(sed -n 's/^Maintainer: //p' deploy/packages/control)" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
    gzip -9 --no-name >"$deb/usr/share/doc/sluice/changelog.Debian.gz"
install -m 755 deploy/packages/{postinst,prerm,postrm} "$deb/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$debian/" -e "s/@KIB@/$(du -sk --apparent-size "$deb/usr" | cut -f 1)/" \
    deploy/packages/control >"$deb/DEBIAN/control"
(cd "$deb" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zgzip --build "$deb" "$out/sluice_$version-1_$debian.deb"

printf '== %s\n' ".rpm"
rpmbuild -bb --quiet --target "$arch-linux" --define "_topdir $stage/rpm" --define "_rpmdir $out" \
    --define "_rpmfilename %{name}-%{version}-%{release}.%{_target_cpu}.rpm" --define "_binary_payload w9.gzdio" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" --define "build_mtime_policy clamp_to_source_date_epoch" \
    --define "number $version" --define "tree $stage" --define "scripts $PWD/deploy/packages" deploy/packages/sluice.spec
# The image has the glibc of this suite of Debian.
suite=bookworm
printf '== %s\n' "container image"
if command -v apt-get >/dev/null; then
    glibc="$stage/glibc"
    scripts/debian-package.sh "$suite" "$debian" "$glibc" libc6
    image="$stage/image"
    mkdir -p "$image"/{etc,dev,proc,run,sys,tmp,usr/bin,usr/lib/sluice,usr/share/doc/libc6,var/lib}
    chmod 1777 "$image/tmp"
    for folder in lib lib64 usr/lib usr/lib64; do
        [ ! -d "$glibc/root/$folder" ] || cp -a "$glibc/root/$folder" "$image/usr/"
    done
    rm -rf "$image"/usr/lib/*/{gconv,audit}
    cp "$glibc/root/usr/share/doc/libc6/copyright" "$image/usr/share/doc/libc6"
    ln -s usr/lib "$image/lib"
    [ ! -d "$image/usr/lib64" ] || ln -s usr/lib64 "$image/lib64"
    printf 'root:x:0:0:root:/:/nonexistent\n' >"$image/etc/passwd"
    cp "$stage"/usr/bin/* "$image/usr/bin"
    cp "$stage"/usr/lib/sluice/* "$image/usr/lib/sluice"
    # There is no shell.
    rm "$image/usr/lib/sluice/before-removal"
    mkdir "$image/usr/share/doc/sluice"
    cp "$documents"/LICENSE* "$image/usr/share/doc/sluice"
    python3 scripts/oci-image.py "$image" "$out/$name.oci.tar" "$debian" "sluice:$version" "$SOURCE_DATE_EPOCH" \
        org.opencontainers.image.title=sluice "org.opencontainers.image.version=$version" \
        "org.opencontainers.image.revision=${SLUICE_COMMIT:-$(git rev-parse HEAD)}" \
        org.opencontainers.image.licenses=Apache-2.0 "sluice.libc=$(cat "$glibc/versions")"
else
    echo 'SKIPPED: the image, whose glibc comes by apt-get'
fi

rm -rf "$stage"
(cd "$out" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum >"$target/packages.sums" && mv "$target/packages.sums" SHA256SUMS)
ls -l "$out"

# Once more from nothing, elsewhere. Only what is in the commit can be equal.
if [ -n "$check" ]; then
    [ -z "$(git status --porcelain)" ] || fail 'what is not committed cannot be made again from a clone'
    again=$(mktemp -d)
    trap 'rm -rf "$again"' EXIT
    git clone --quiet --no-hardlinks . "$again/of/another/name"
    mkdir "$again/of/another/name/target"
    ln -s "$target/tools" "$again/of/another/name/target/tools"
    env -u CARGO_TARGET_DIR "$again/of/another/name/scripts/package.sh" --arch "$arch"
    diff "$out/SHA256SUMS" "$again/of/another/name/target/packages/SHA256SUMS" || {
        rm -rf "$out-again"
        mv "$again/of/another/name/target/packages" "$out-again"
        fail "these differ; compare $out with $out-again"
    }
    echo 'Two builds in different folders are equal.'
fi
