//! `xtask minimal-versions`: whether the workspace compiles with the oldest versions of crates that its manifests allow.

use super::Error;
use crate::process;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Checks a copy of the files that git knows, in `target/minimal`: Cargo.lock stays as it is. The option of cargo is
/// not stable; `RUSTC_BOOTSTRAP` makes a stable cargo take it.
///
/// # Errors
/// It does not compile, or that could not be found out.
pub(crate) fn check(target: &Path) -> Result<(), Error> {
    let own = target.join("minimal");
    let tree = own.join("tree");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(&tree)?;
    let mut list = Command::new("git").args(["ls-files", "-z"]).stdout(Stdio::piped()).spawn()?;
    if let Some(files) = list.stdout.take() {
        let copy = r#"tar --create --null --files-from=- | tar --extract --directory="$0""#;
        process::run(Command::new("sh").args(["-c", copy]).arg(&tree).stdin(files))?;
    }
    list.wait()?;
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(&tree)
            .env("CARGO_TARGET_DIR", own.join("build"))
            .env("SLUICE_COMMIT", "minimal");
        cargo
    };
    let update = cargo()
        .args(["update", "-Zdirect-minimal-versions"])
        .env("RUSTC_BOOTSTRAP", "1")
        .output()?;
    if !update.status.success() {
        let said = String::from_utf8_lossy(&update.stderr).into_owned();
        let no_versions = said.contains("failed to select a version");
        return Err(if no_versions {
            Error::Wrong(format!("no oldest versions fit together: {said}"))
        } else {
            Error::Registry(said)
        });
    }
    process::run(cargo().args(["fetch", "--locked"]))
        .map_err(|failure| Error::Registry(failure.to_string()))?;
    Ok(process::run(cargo().args(["check", "--locked", "--workspace", "--keep-going"]))?)
}
