//! Finds out what is built. Whatever cannot be found out is `unknown`.

use std::env;
use std::path::Path;
use std::process::Command;

/// A package is built without a repository: its maker says the commit by this.
const SAID: &str = "SLUICE_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={SAID}");
    let profile = env::var("PROFILE").unwrap_or_default();
    let said = env::var(SAID).ok().filter(|commit| is_one_word(commit));
    // Everyday builds do not ask: each commit would build all that depends on this anew.
    let commit = said.or_else(|| (profile == "release").then(commit).flatten());
    for (name, value) in [
        ("BUILD_COMMIT", commit),
        ("BUILD_PROFILE", Some(profile)),
        ("BUILD_TARGET", env::var("TARGET").ok()),
        ("BUILD_RUSTC", rustc()),
    ] {
        let value = value.filter(|value| !value.is_empty());
        println!("cargo::rustc-env={name}={}", value.as_deref().unwrap_or("unknown"));
    }
}

fn is_one_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_graphic() && letter != '"')
}

/// The commit, with `-modified` where files differed from it when this was built first after a commit.
fn commit() -> Option<String> {
    // It grows with each commit and each checkout.
    let path = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let differs = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if differs { format!("{commit}-modified") } else { commit })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Only this source's own repository: a package may be unpacked inside of another one.
    let root = env::var("CARGO_MANIFEST_DIR").ok()? + "/../..";
    if !Path::new(&root).join(".git").exists() {
        return None;
    }
    said_by(Command::new("git").arg("-C").arg(root).args(arguments))
}

fn rustc() -> Option<String> {
    let version = said_by(Command::new(env::var_os("RUSTC")?).arg("--version"))?;
    version.split_whitespace().nth(1).map(str::to_owned)
}

fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
