//! Determines commit, profile, target and compiler of a build; `unknown` if undeterminable.

use std::env;
use std::path::Path;
use std::process::Command;

/// Sets the commit of a package that is built without a repository.
const SAID: &str = "SLUICE_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={SAID}");
    let profile = env::var("PROFILE").unwrap_or_default();
    let said = env::var(SAID).ok().filter(|commit| is_one_word(commit));
    // Debug builds do not look up the commit: each commit would rebuild everything that depends on this crate.
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

/// The commit, with `-modified` if files differed from it at the first build after that commit.
fn commit() -> Option<String> {
    // This log changes with each commit and checkout.
    let path = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let differs = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if differs { format!("{commit}-modified") } else { commit })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Only this source's own repository, because a package may be unpacked inside another one.
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
