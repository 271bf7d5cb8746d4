//! Removes what dead owners left behind.

use super::owner;
use limits::env;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

/// Removes the directories of sessions that have neither an owner nor a process. What cannot be
/// removed now is tried again at the next call.
pub(super) fn remove(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let dead: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| !owner::lives(path)).collect();
    if dead.is_empty() {
        return;
    }
    let used = used_sessions();
    for path in dead {
        remove_unless_used(&path, &used);
    }
}

/// Removes the directory of a session whose owner ends. If the program left processes behind, the
/// directory stays, because their limits are in it. A later session's start removes it when they
/// are gone.
pub(super) fn remove_own(path: &Path) {
    remove_unless_used(path, &used_sessions());
}

fn remove_unless_used(path: &Path, used: &HashSet<OsString>) {
    if !used.iter().any(|session| Path::new(session).starts_with(path)) {
        let _ = fs::remove_dir_all(path);
    }
}

/// The session directories that are named in the environments of this user's processes.
fn used_sessions() -> HashSet<OsString> {
    let prefix = format!("{}=", env::SESSION_DIR);
    let own = std::process::id().to_string();
    let Ok(processes) = fs::read_dir("/proc") else { return HashSet::new() };
    processes
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit))
        .filter(|entry| entry.file_name().to_str() != Some(&own))
        .filter_map(|entry| environment(&entry.path()))
        .filter_map(|environment| {
            environment
                .split(|byte| *byte == 0)
                .find_map(|variable| variable.strip_prefix(prefix.as_bytes()))
                .map(|value| OsString::from_vec(value.to_vec()))
        })
        .collect()
}

/// The environment that a process was started with. During execve(2) it reads as empty for a
/// moment; only a process for which it stays empty really has none.
fn environment(process: &Path) -> Option<Vec<u8>> {
    const LOOKS: u32 = 50;
    let look = || fs::read(process.join("environ")).ok();
    // The kernel's own threads have no program and never get one.
    let becomes = |found: &Vec<u8>| found.is_empty() && process.join("exe").read_link().is_ok();
    let mut found = look()?;
    for _ in 0..LOOKS {
        if !becomes(&found) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        found = look()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    #[test]
    fn a_program_that_becomes_another_one_still_uses_its_session() {
        let root = tempfile::tempdir().unwrap();
        let script = root.path().join("again");
        fs::write(&script, "exec /bin/sh \"$0\"\n").unwrap();
        let mut again = Command::new("/bin/sh");
        let mut again = again.arg(&script).env(env::SESSION_DIR, root.path()).spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", again.id()));
        let empty = |_: &u32| environment(&process).unwrap().is_empty();
        let misses = (0..5_000).filter(empty).count();
        again.kill().unwrap();
        again.wait().unwrap();
        assert_eq!(misses, 0);
    }
}
