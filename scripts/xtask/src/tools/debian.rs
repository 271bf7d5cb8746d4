//! `xtask debian-package`: packages of Debian without installing them.

use super::{Error, path};
use crate::process::{command, output, run};
use std::fs;
use std::path::{Path, PathBuf};

/// Fetches packages, checks their signatures as apt-get does, and unpacks them. Needs apt-get and dpkg-deb.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Component of Debian, such as non-free
    #[arg(long, default_value = "main")]
    component: String,
    /// Suite, such as bookworm
    suite: String,
    /// Architecture, such as amd64
    architecture: String,
    /// Folder for root/, which is made anew, and versions
    #[arg(value_parser = path)]
    folder: PathBuf,
    /// Names of packages
    #[arg(required = true)]
    packages: Vec<String>,
}

/// Unpacks packages of the component `main` into `folder/root`.
///
/// # Errors
/// They are not available.
pub(crate) fn unpack(
    suite: &str,
    architecture: &str,
    folder: &Path,
    packages: &[&str],
) -> Result<(), Error> {
    fetch(&Arguments {
        component: "main".to_owned(),
        suite: suite.to_owned(),
        architecture: architecture.to_owned(),
        folder: folder.to_owned(),
        packages: packages.iter().map(|&name| name.to_owned()).collect(),
    })
}

/// Unpacks packages into `root`, and writes what they are into `versions`.
///
/// # Errors
/// They are not available.
pub(crate) fn fetch(arguments: &Arguments) -> Result<(), Error> {
    let Arguments { component, suite, architecture, folder, packages } = arguments;
    let (apt, root) = (folder.join("apt"), folder.join("root"));
    for old in [&apt, &root] {
        let _ = fs::remove_dir_all(old);
    }
    for new in ["lists/partial", "cache/archives/partial", "parts"] {
        fs::create_dir_all(apt.join(new))?;
    }
    fs::create_dir_all(&root)?;
    fs::write(apt.join("status"), "")?;
    let sites = output(&mut command("apt-get indextargets --format $(SITE)"))?;
    let is_debian = |site: &&str| site.trim_end_matches('/').ends_with("/debian");
    let mirror = sites
        .lines()
        .find(is_debian)
        .ok_or_else(|| Error::Wrong("apt-get knows no mirror of Debian".to_owned()))?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let source = format!("deb [signed-by={keys}] {mirror} {suite} {component}\n");
    fs::write(apt.join("sources.list"), source)?;
    let user = output(&mut command("id -un"))?;
    let own = apt.display();
    let options = [
        format!("Dir::Etc::SourceList={own}/sources.list"),
        format!("Dir::Etc::SourceParts={own}/parts"),
        format!("Dir::State::Lists={own}/lists"),
        format!("Dir::Cache={own}/cache"),
        format!("Dir::State::status={own}/status"),
        format!("APT::Architecture={architecture}"),
        format!("APT::Architectures={architecture}"),
        "Acquire::Languages=none".to_owned(),
        format!("APT::Sandbox::User={user}"),
    ];
    let apt_get = || {
        let mut get = command("apt-get -qq");
        get.args(options.iter().flat_map(|option| ["-o", option])).current_dir(&apt);
        get
    };
    run(apt_get().arg("update"))?;
    run(apt_get().arg("download").args(packages))?;
    let mut versions = String::new();
    for entry in fs::read_dir(&apt)? {
        let package = entry?.path();
        if package.extension().is_some_and(|kind| kind == "deb") {
            run(command("dpkg-deb -x").arg(&package).arg(&root))?;
            let show = "${Package} ${Version}";
            let version = output(command("dpkg-deb --show --showformat").arg(show).arg(&package))?;
            versions.push_str(&format!("{version}\n"));
        }
    }
    fs::write(folder.join("versions"), versions)?;
    Ok(fs::remove_dir_all(apt)?)
}

/// Puts the source of Rust's standard library, of this compiler's version, into `folder/library`.
///
/// # Errors
/// No suite of Debian has it.
pub(crate) fn rust_source(folder: &Path) -> Result<(), Error> {
    let compiler = output(&mut command("rustc --version"))?;
    let version = compiler.split(' ').nth(1).unwrap_or_default();
    let stamp = folder.join("version");
    if fs::read_to_string(&stamp).is_ok_and(|of| of.trim() == version) {
        return Ok(());
    }
    let _ = fs::remove_dir_all(folder);
    for suite in ["trixie-backports", "sid", "trixie"] {
        if unpack(suite, "amd64", folder, &[&format!("rust-src={version}*")]).is_ok() {
            let source = folder.join(format!("root/usr/src/rustc-{version}/library"));
            fs::rename(source, folder.join("library"))?;
            fs::remove_dir_all(folder.join("root"))?;
            return Ok(fs::write(stamp, version)?);
        }
    }
    Err(Error::Wrong(format!("no suite of Debian has rust-src {version}")))
}
