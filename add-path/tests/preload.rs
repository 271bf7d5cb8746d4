//! Runs programs with the built library preloaded, as a user does.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// Relative to the library's directory, because the loader cannot handle a directory name with a space.
const LIBRARY: &str = "./libadd_path.so";

/// The directory of the library that cargo built for this test: beside the test's executable (target/<profile>/deps).
fn folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let built = deps.join(LIBRARY);
    assert!(built.exists(), "{} is missing: run `cargo build -p add-path`", built.display());
    deps.to_owned()
}

/// A program with nothing but the preload in its environment.
fn preloaded(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder()).env_clear().env("LD_PRELOAD", LIBRARY);
    command
}

fn value(output: &Output, name: &str) -> Option<String> {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let mut found = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let first = found.next().map(str::to_owned);
    assert_eq!(found.next(), None, "{name} is set twice: {text}");
    first
}

#[test]
fn appends_and_prepends_each_variable() {
    for (target, before) in
        [("PATH", "/usr/bin:/bin"), ("LD_PRELOAD", LIBRARY), ("LD_LIBRARY_PATH", "/nowhere")]
    {
        let mut append = preloaded("/usr/bin/env");
        append.env(target, before).env(format!("TF_{target}"), "/x/one:/x/two");
        let wanted = format!("{before}:/x/one:/x/two");
        assert_eq!(value(&append.output().unwrap(), target), Some(wanted));

        let mut prepend = preloaded("/usr/bin/env");
        prepend.env(target, before).env(format!("TF_PREPEND_{target}"), "/x/one:/x/two");
        let wanted = format!("/x/one:/x/two:{before}");
        assert_eq!(value(&prepend.output().unwrap(), target), Some(wanted));
    }
}

#[test]
fn sets_a_variable_that_was_not_there() {
    let output = preloaded("/usr/bin/env").env("TF_LD_LIBRARY_PATH", "/x").output().unwrap();
    assert_eq!(value(&output, "LD_LIBRARY_PATH").as_deref(), Some("/x"));
}

#[test]
fn front_wins_over_back() {
    let output = preloaded("/usr/bin/env")
        .env("PATH", "/bin")
        .env("TF_PATH", "/x:/y")
        .env("TF_PREPEND_PATH", "/x")
        .output()
        .unwrap();
    assert_eq!(value(&output, "PATH").as_deref(), Some("/x:/bin:/y"));
}

#[test]
fn an_empty_value_changes_nothing() {
    let mut command = preloaded("/usr/bin/env");
    for name in ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        command.env(format!("TF_{name}"), "").env(format!("TF_PREPEND_{name}"), "");
    }
    let output = command.env("PATH", "/bin").output().unwrap();
    assert_eq!(value(&output, "PATH").as_deref(), Some("/bin"));
    assert_eq!(value(&output, "LD_PRELOAD"), Some(LIBRARY.to_owned()));
    assert_eq!(value(&output, "LD_LIBRARY_PATH"), None);
}

#[test]
fn prints_nothing_and_changes_nothing_on_its_own() {
    let output = preloaded("/bin/true").output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
    let output = preloaded("/usr/bin/env").env("PATH", "/bin").output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 2, "only PATH and LD_PRELOAD are set: {text}");
    assert_eq!(value(&output, "PATH").as_deref(), Some("/bin"));
}

#[test]
fn nested_programs_do_not_grow_the_value() {
    let nested = "/bin/sh -c '/bin/sh -c /usr/bin/env; true'";
    let output = preloaded("/bin/sh")
        .args(["-c", nested])
        .env("PATH", "/usr/bin:/bin")
        .env("TF_PATH", "/x")
        .env("TF_PREPEND_PATH", "/first")
        .env("TF_PREPEND_LD_LIBRARY_PATH", "/y")
        .output()
        .unwrap();
    assert_eq!(value(&output, "PATH").as_deref(), Some("/first:/usr/bin:/bin:/x"));
    assert_eq!(value(&output, "LD_LIBRARY_PATH").as_deref(), Some("/y"));
}

#[test]
fn a_variable_for_one_command_of_a_shell_acts_on_that_command() {
    let output = preloaded("/bin/sh")
        .args(["-c", "TF_PATH=/usr/custom/bin env | grep ^PATH="])
        .env("PATH", "/usr/local/sbin:/usr/bin:/bin")
        .output()
        .unwrap();
    let wanted = "/usr/local/sbin:/usr/bin:/bin:/usr/custom/bin";
    assert_eq!(value(&output, "PATH").as_deref(), Some(wanted));
}

#[test]
fn the_new_path_finds_programs() {
    let dir = std::env::temp_dir().join(format!("add-path-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let _ = std::fs::remove_file(dir.join("found-by-path"));
    std::os::unix::fs::symlink("/bin/echo", dir.join("found-by-path")).unwrap();
    let output = preloaded("/bin/sh")
        .args(["-c", "found-by-path yes"])
        .env("PATH", "/bin")
        .env("TF_PATH", &dir)
        .output();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(output.unwrap().stdout, b"yes\n");
}
