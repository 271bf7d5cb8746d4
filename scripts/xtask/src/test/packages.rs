//! The tier `packages`: what `cargo xtask package` makes, and the crates that it is made of.

use super::checks::BUILD;
use super::job::{Job, Outcome, missing, wrong};
use super::{Check, Need, Tier, When, tools};
use crate::process::files_in;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const MADE: &str = "packages are made";
const INPUTS: [&str; 19] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "CHANGELOG.md",
    "deploy",
    "LICENSE",
    "deny.toml",
    "**/Cargo.toml",
    "hypervisor/cli/src",
    "scripts/xtask/src/tools/package.rs",
    "scripts/packages",
    "scripts/install.sh",
    "scripts/lay-out.sh",
    "scripts/xtask/src/tools/build_release.rs",
    "scripts/xtask/src/tools/debian.rs",
    "scripts/oci-image.py",
    "scripts/third-party.py",
    "scripts/wheel.py",
    "scripts/xtask/src/test/packages.rs",
];

const PACKAGERS: Need = Need::Tool(
    tools::has_packagers,
    "they need dpkg-deb, rpmbuild, python3 and PyPI; see cargo xtask package",
);
const DENY: Need = Need::Tool(
    tools::has_deny,
    "cargo-deny is missing; install it with: cargo install --locked cargo-deny",
);
const ALL_CRATES: Need =
    Need::Tool(tools::has_all_crates, "the crates of other systems cannot be fetched");
const ADVISORIES: Need =
    Need::Tool(tools::has_advisories, "the database of advisories (RustSec) cannot be fetched");
const VALIDATOR: Need =
    Need::Tool(tools::has_sbom_validator, "its validator is cyclonedx-python-lib of PyPI");
const CLEAN_ROOT: Need = Need::Tool(
    tools::has_clean_root,
    "it needs root, namespaces, mmdebstrap and a mirror of Debian",
);

pub(super) fn table(table: &mut Vec<Check>) {
    let check = |name: &str, work: fn(&Job) -> Outcome| {
        Check::single(Tier::Packages, name, work).when(When::Changed(INPUTS.to_vec()))
    };
    let made = |name: &str, work: fn(&Job) -> Outcome| check(name, work).needs(Need::Check(MADE));
    table.extend([
        check(MADE, |job| job.run(&mut tools::tool("package"))).needs(PACKAGERS).when(When::Needed),
        made("packages hold the same", packages_hold_the_same),
        made("archive: installed, run, removed", archive_installs).needs(Need::Check(BUILD)),
        made("wheel: installed in a venv, run, removed", wheel_installs),
        check("crates and their licences", crates_and_their_licences).needs(DENY).needs(ALL_CRATES),
        check("crates with known faults", |job| job.line("cargo deny --locked check advisories"))
            .needs(ADVISORIES),
        made("bill of materials", bill_of_materials).needs(VALIDATOR),
        made("image: layout, run", image_is_whole),
        made(".deb: installed, run, upgraded under a program, removed", deb_in_a_clean_root)
            .needs(CLEAN_ROOT),
        made(".rpm: installed, run, removed", rpm_in_a_clean_root).needs(CLEAN_ROOT),
        check("the oldest versions of crates that are allowed", oldest_versions),
    ]);
}

/// The one package whose name has this beginning and end.
fn package(job: &Job, beginning: &str, end: &str) -> Outcome<PathBuf> {
    let mut found = files_in(&job.built("packages"));
    found.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(beginning) && name.ends_with(end)
    });
    match <[PathBuf; 1]>::try_from(found) {
        Ok([file]) => Ok(file),
        Err(found) => wrong(format_args!("{beginning}*{end}: one package expected: {found:?}")),
    }
}

fn deb(job: &Job) -> Outcome<PathBuf> {
    package(job, "sluice", ".deb")
}

fn rpm(job: &Job) -> Outcome<PathBuf> {
    package(job, "sluice", ".rpm")
}

fn archive(job: &Job) -> Outcome<PathBuf> {
    package(job, "sluice-", ".tar.gz")
}

fn wheel(job: &Job) -> Outcome<PathBuf> {
    package(job, "sluice-", ".whl")
}

/// All hold the same, and nothing of where it was built.
fn packages_hold_the_same(job: &Job) -> Outcome {
    let script = r#"
        folder=$1 deb=$2 rpm=$3 archive=$4 wheel=$5 packages=$6 shipped=$7
        (cd "$packages" && sha256sum --quiet --check SHA256SUMS)
        mkdir "$folder"/{deb,rpm,of-archive}
        dpkg-deb -x "$deb" "$folder/deb"
        rpm2archive - <"$rpm" | tar -xz -C "$folder/rpm"
        tar -xzf "$archive" -C "$folder/of-archive" --strip-components 1
        zcat "$folder/deb/usr/share/doc/sluice/changelog.gz" | cmp - CHANGELOG.md
        rm "$folder"/deb/usr/share/doc/sluice/{copyright,changelog.gz,changelog.Debian.gz} "$folder"/of-archive/{install.sh,after-removal}
        mv "$folder/deb/usr" "$folder/of-deb"
        mv "$folder/rpm/usr" "$folder/of-rpm"
        for other in of-rpm of-archive; do
            diff -r "$folder/of-deb" "$folder/$other"
            diff <(cd "$folder/of-deb" && find . -printf '%M %P\n' | sort) <(cd "$folder/$other" && find . -printf '%M %P\n' | sort)
        done
        python3 -m zipfile -e "$wheel" "$folder/of-wheel"
        (cd "$folder/of-wheel" && mv sluice-*.data data && mv sluice-*.dist-info info)
        rm "$folder/of-wheel/data/data/lib/sluice/installed-by-pip"
        diff -r "$folder/of-deb/bin" "$folder/of-wheel/data/scripts"
        diff -r -x before-removal "$folder/of-deb/lib/sluice" "$folder/of-wheel/data/data/lib/sluice"
        for file in "$shipped"/*; do
            cmp "$file" "$(find "$folder/of-deb/bin" "$folder/of-deb/lib" -type f -name "${file##*/}")"
        done
        if grep -rlF -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" "$folder/of-deb/bin" "$folder/of-deb/lib"; then
            echo 'These name the folder that they were built in.'
            exit 1
        fi
        for file in libcuda_limiter libadd_path; do
            [ "$(tar -tzf "$packages/$file-x64.tar.gz")" = "$file.so" ]
            tar -xzOf "$packages/$file-x64.tar.gz" | cmp - "$shipped/$file.so"
        done
        dpkg-deb --info "$deb" | grep -x ' Depends: libc6 (>= 2.17)'
        rpm -qp --requires "$rpm" | grep -x 'glibc >= 2.17'
        homepage=$(dpkg-deb --field "$deb" Homepage)
        [ "$(rpm -qp --queryformat '%{URL}' "$rpm")" = "$homepage" ]
        grep -Fx "Project-URL: Homepage, $homepage" "$folder/of-wheel/info/METADATA"
        { dpkg-deb --info "$deb"; rpm -qp --info --changelog "$rpm"; cat "$folder/of-wheel/info/METADATA"; } >"$folder/about"
        if grep -E '@[A-Z]+@' "$folder/about"; then
            echo 'These placeholders were not filled in.'
            exit 1
        fi"#;
    let folder = tempfile::tempdir()?;
    let arguments = [
        folder.path(),
        &deb(job)?,
        &rpm(job)?,
        &archive(job)?,
        &wheel(job)?,
        &job.built("packages"),
        &job.shipped(),
    ];
    job.bash(script, &arguments)
}

/// The bill of materials is of its format, complete, and of what is shipped alone.
fn bill_of_materials(job: &Job) -> Outcome {
    let bill = package(job, "sluice", ".cdx.json")?;
    job.run(
        Command::new(job.built("tools/sbom/bin/python"))
            .arg("scripts/packages/check-sbom.py")
            .arg(bill),
    )?;
    let mut tar = Command::new("tar");
    tar.arg("-xzOf").arg(archive(job)?).args(["--wildcards", "*/LICENSES-of-others"]);
    let licences = job.output(&mut tar)?;
    let of_detour = |line: &str| line.starts_with("detour ") && line.contains("BSD-2-Clause");
    let has_text = licences.lines().any(|line| line.starts_with("Permission is hereby granted"));
    match has_text && licences.lines().any(of_detour) {
        true => Ok(()),
        false => wrong("LICENSES-of-others lacks detour's license, or the text of MIT"),
    }
}

/// The archive runs where it is, is installed, runs there on the simulated GPU under its limit, and goes again.
fn archive_installs(job: &Job) -> Outcome {
    let script = r#"
        tar -xzf "$2" -C "$1"
        mv "$1"/sluice-* "$1/archive"
        "$1/archive/install.sh" --prefix "$1/prefix"
        for place in archive prefix; do
            "$1/$place/bin/hypervisor" --version
            "$1/$place/bin/sluice" run --fake-gpu --daemon none --mem 1GiB -- "$1/$place/lib/sluice/tenant" \
                mem --api alloc --chunk 128MiB --cap 4GiB | tee "$1/granted"
            grep -q '"granted_bytes":536870912[,}]' "$1/granted"
        done
        "$1/archive/install.sh" --prefix "$1/prefix" --uninstall
        [ ! -e "$1/prefix" ] || { find "$1/prefix"; exit 1; }"#;
    job.bash(script, &[tempfile::tempdir()?.path(), &archive(job)?])
}

/// pip installs the wheel into a new environment. There programs run under limits within a minute, by both names of the
/// command; nothing is left when it is removed.
fn wheel_installs(job: &Job) -> Outcome {
    let script = r#"
        folder=$(realpath "$1") wheel=$2
        venv=$folder/venv
        python3 scripts/packages/check-wheel.py "$wheel"
        python3 -m zipfile -t "$wheel"
        python3 -m venv "$venv"
        files() { (cd "$venv" && find . -path '*/site-packages/pip' -prune -o -print | sort); }
        files >"$folder/before"
        PATH=$venv/bin:$PATH
        limited() {
            "$@" run --fake-gpu --device 0 --mem 1GiB --daemon none -- "$venv/lib/sluice/tenant"                 mem --api alloc --chunk 128MiB --cap 4GiB | tee "$folder/granted"
            grep -q '"granted_bytes":536870912[,}]' "$folder/granted"
        }
        begin=$(date +%s%N)
        pip install --no-index --no-deps "$wheel"
        limited sluice
        taken=$((($(date +%s%N) - begin) / 1000000))
        echo "From pip install to the end of the first limited program: $taken ms"
        [ "$taken" -lt 60000 ]
        sluice version --verbose | grep -F "library: $venv/lib/sluice/libcuda_limiter.so: "
        hypervisor --version
        limited python -m sluice
        python -m sluice version
        status=0
        python -m sluice run --fake-gpu --daemon none --mem 1GiB -- sh -c 'exit 7' || status=$?
        [ "$status" -eq 7 ]
        mv "$venv/lib/sluice/tenant" "$folder"
        sluice doctor --fake-gpu >"$folder/lacking" && exit 1
        grep -F -e '-> pip install --force-reinstall --no-deps sluice-' "$folder/lacking"
        mv "$folder/tenant" "$venv/lib/sluice"
        pip uninstall --yes sluice
        diff "$folder/before" <(files)"#;
    job.bash(script, &[tempfile::tempdir()?.path(), &wheel(job)?])
}

/// For both processors, with every feature. The check has to notice a licence that is not accepted.
fn crates_and_their_licences(job: &Job) -> Outcome {
    job.line("cargo deny --locked check bans licenses sources")?;
    let other = tempfile::NamedTempFile::new()?;
    let config = fs::read_to_string("deny.toml")?;
    let lines: Vec<&str> = config.lines().filter(|line| *line != "    \"MIT\",").collect();
    fs::write(other.path(), lines.join("\n"))?;
    let mut check = Command::new("cargo");
    check.args(["deny", "--locked", "--config"]).arg(other.path()).args(["check", "licenses"]);
    job.refused(&mut check, "MIT")
}

/// The layout, and what runs in it. A byte that differs is noticed.
fn image_is_whole(job: &Job) -> Outcome {
    let Ok(image) = package(job, "sluice", ".oci.tar") else {
        return missing("its glibc comes by apt-get");
    };
    let script = r#"
        folder=$1 image=$2
        [ "$(python3 scripts/packages/check-image.py "$image" "$folder")" = '/usr/bin/hypervisor daemon' ]
        sed 's/"imageLayoutVersion":"1.0.0"/"imageLayoutVersion":"1.0.1"/' "$image" >"$folder/other"
        ! python3 scripts/packages/check-image.py "$folder/other" "$folder" 2>/dev/null
        tar -xOf "$image" index.json | grep '"architecture":"amd64"'
        if [ "$(id -u)" -ne 0 ]; then
            echo 'SKIPPED: running it needs root'
            exit
        fi
        chroot "$folder" /usr/bin/hypervisor --version
        mkdir -p "$folder/host/usr" "$folder/host/etc"
        cp -a "$folder"/{lib,lib64} "$folder/host"
        cp -a "$folder"/usr/{lib,lib64} "$folder/host/usr"
        rm -r "$folder/host/usr/lib/sluice"
        unshare --mount --propagation private sh -ec 'mount --bind /proc "$0/proc"; exec chroot "$0" /usr/bin/sluice inject /host' "$folder"
        grep -qx /usr/lib/sluice/libcuda_limiter.so "$folder/host/etc/ld.so.preload""#;
    job.bash(script, &[tempfile::tempdir()?.path(), &image])
}

/// Installed in a root of its own, where /test has the files; upgraded to a version with other bytes in each program and
/// library.
fn deb_in_a_clean_root(job: &Job) -> Outcome {
    let script = r#"
        root=$1/root
        mkdir -p "$root"
        tar -xf "$4" -C "$root"
        mkdir "$root/test"
        cp "$2" "$root/test/sluice.deb"
        cp "$3" "$root/test/sluice.tar.gz"
        cp scripts/packages/in-clean-root.sh "$root/test/script"
        dpkg-deb -R "$2" "$1/later"
        sed -i 's/^Version: .*/&.later/' "$1/later/DEBIAN/control"
        for file in "$1"/later/usr/bin/* "$1"/later/usr/lib/sluice/*; do printf 'later' >>"$file"; done
        (cd "$1/later" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
        dpkg-deb --root-owner-group -Zgzip -z1 --build "$1/later" "$root/test/later.deb" >/dev/null
        unshare --mount --pid --fork --propagation private sh -ec '
            mount --rbind /dev "$1/dev"
            mount -t tmpfs none "$1/dev/shm"
            mount -t tmpfs none "$1/run"
            mount -t proc none "$1/proc"
            exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$1" bash /test/script' sh "$root""#;
    job.bash(script, &[tempfile::tempdir()?.path(), &deb(job)?, &archive(job)?, &clean_root(job)])
}

fn clean_root(job: &Job) -> PathBuf {
    job.built("tools/clean-root-bullseye.tar")
}

/// The scripts of the .rpm run in the root, too.
fn rpm_in_a_clean_root(job: &Job) -> Outcome {
    let script = r#"
        root=$1/root rpm=$2
        mkdir "$root"
        tar -xf "$3" -C "$root"
        in_root() { unshare --mount --propagation private sh -ec 'mount --bind /proc "$0/proc"; exec "$@"' "$root" "$@"; }
        by_rpm() { in_root rpm --root "$root" --dbpath /var/lib/rpm --nodeps "$@"; }
        files() { (cd "$root" && find . ! -path './var/lib/rpm*' | sort); }
        files >"$1/before"
        by_rpm --install "$rpm"
        in_root chroot "$root" /usr/bin/sluice --version
        in_root chroot "$root" /usr/bin/sluice inject /
        by_rpm --verify sluice
        by_rpm --erase sluice
        diff "$1/before" <(files)"#;
    job.bash(script, &[tempfile::tempdir()?.path(), &rpm(job)?, &clean_root(job)])
}

/// The manifests promise that these will do.
fn oldest_versions(job: &Job) -> Outcome {
    let status = tools::tool("minimal-versions")
        .stdout(job.log.try_clone()?)
        .stderr(job.log.try_clone()?)
        .status()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(3) => missing("the registry cannot be reached"),
        _ => wrong("the workspace does not compile with them"),
    }
}
