//! Removes the directories of sessions whose owners are dead, and of unused implicit sessions.

use super::{DirectoryError, ROOT, implicit, own_user, owner, place, shown_name, used};
use crate::Page;
use crate::folder::{Folder, FolderError};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Depth of the folders in a session's directory: those of the simulated driver, and the sessions of a demo with
/// theirs.
const DEPTH: usize = 3;

/// Removes the directories of sessions that have no owner and have been unused for long. Failures are retried at the
/// next call.
pub(super) fn remove(base: &Folder) {
    let Ok((names, _)) = base.names(usize::MAX) else { return };
    for (name, _) in names {
        if_left(base, &name, used::LONG, || base.remove_folder(&name, DEPTH));
    }
}

/// Runs `remove` if this is a session without owner and process, and no process has started to use it for `age`.
fn if_left(base: &Folder, name: &OsStr, age: Duration, remove: impl FnOnce()) {
    let is_owned = owner::of(Path::new(name)).is_some();
    if !is_owned && !implicit::is_name(name) {
        return;
    }
    let Ok(session) = base.child(name) else { return };
    let is_left = if is_owned { !owner::lives(&session) } else { is_unused(&session, age) };
    if is_left {
        used::if_unused_for(age, &session, remove);
    }
}

/// The result of [`prune`].
#[derive(Debug, Default)]
pub struct Pruned {
    /// Names of the removed sessions, or of those that would be removed.
    pub names: Vec<String>,
    /// This user's session folders that cannot be read.
    pub problems: Vec<DirectoryError>,
}

/// Removes this user's sessions without owner and process that no process has started to use for `age`, unless `keep`
/// returns true for their name. With `only_look`, removes nothing.
pub fn prune(age: Duration, keep: impl Fn(&str) -> bool, only_look: bool) -> Pruned {
    let uid = own_user();
    let mut pruned = Pruned::default();
    for path in place::all(Path::new(ROOT), uid).chain([place::last(uid)]) {
        let base = match Folder::open(&path) {
            Ok(base) if base.uid() == uid => base,
            _ => continue,
        };
        let names = match base.names(usize::MAX) {
            Ok((names, _)) => names,
            Err(error) => {
                pruned.problems.push(error.into());
                continue;
            }
        };
        for (name, _) in names {
            let shown = shown_name(Path::new(&name));
            if_left(&base, &name, age, || {
                if keep(&shown) {
                    return;
                }
                if !only_look {
                    base.remove_folder(&name, DEPTH);
                }
                pruned.names.push(shown);
            });
        }
    }
    pruned
}

/// Whether an implicit session has no process, and none has joined for `age`. A session with an unreadable page is kept
/// for inspection.
fn is_unused(session: &Folder, age: Duration) -> bool {
    let Ok((names, _)) = session.names(usize::MAX) else { return false };
    let mut pages = names
        .iter()
        .map(|(name, _)| session.path().join(name))
        .filter(|path| Page::has_name_of_one(path));
    let is_free = |path: PathBuf| {
        let summary = Page::open_existing(&path).and_then(|page| page.summary());
        summary.is_ok_and(|summary| summary.processes.is_empty() && !summary.was_used_within(age))
    };
    session.modified().is_some_and(|time| used::is_since(age, time)) && pages.all(is_free)
}

/// Removes the directory of a session whose owner ends. A session still in use keeps its directory, which holds its
/// limits; the start of a later session removes it.
pub(super) fn remove_own(base: &Folder, name: &OsStr) {
    let Ok(session) = base.child(name) else { return };
    if let Some(_alone) = used::lock_alone(&session) {
        remove_now(base, name);
    }
}

/// Removes the directory of an unused session.
pub(super) fn remove_now(base: &Folder, name: &OsStr) {
    base.remove_folder(name, DEPTH);
}

/// Descriptors reserved for the removal, because the process may have none left by then.
#[derive(Debug)]
pub(super) struct Reserve {
    _kept: Vec<OwnedFd>,
}

impl Reserve {
    /// As many as [`remove_own`] has open at once: the session's directory twice, its lock, and one of its folders
    /// twice.
    const SIZE: usize = 5;

    pub(super) fn take(base: &Folder) -> Result<Self, FolderError> {
        let keep = |_| rustix::io::fcntl_dupfd_cloexec(base.descriptor(), 0);
        let kept: Result<_, _> = (0..Self::SIZE).map(keep).collect();
        Ok(Self { _kept: kept.map_err(FolderError::io("use", base.path()))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;
    use limits::{GpuId, Limits};

    #[test]
    fn a_session_that_no_command_made_is_unused_without_a_process() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let page = |number| GpuId::from_bytes([number; 16]);
        let open = || Page::open(dir.path(), page(3), &Limits::NONE).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let (now, hour) = (Duration::ZERO, Duration::from_secs(3600));
        assert!(is_unused(&folder, now));
        // It was created just now.
        assert!(!is_unused(&folder, hour));
        // An unreadable page is kept.
        let damaged = dir.path().join(format!("{}.page", page(4)));
        std::fs::write(&damaged, "x").unwrap();
        assert!(!is_unused(&folder, now));
        std::fs::remove_file(&damaged).unwrap();
        drop(open());
        assert!(is_unused(&folder, now));
        let _member = Membership::claim(open()).unwrap();
        assert!(!is_unused(&folder, now));
    }

    /// Creating a session also removes unused implicit ones.
    #[test]
    fn sessions_without_a_process_are_removed_when_another_is_made() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let base = Folder::open(dir.path()).unwrap();
        let name = |number: u64| format!("env-{number:016x}");
        let page = |folder: &Folder| {
            Page::open(folder.path(), GpuId::from_bytes([3; 16]), &Limits::NONE).unwrap()
        };
        let make = |name: &str| base.make(name.as_ref(), 0o700).unwrap();
        let age = |folder: &Folder| {
            let long_ago = std::time::SystemTime::now() - used::LONG * 2;
            for path in [folder.path().to_owned(), folder.path().join("used")] {
                if let Ok(file) = std::fs::File::open(path) {
                    file.set_modified(long_ago).unwrap();
                }
            }
        };
        let [left, earlier, fresh, held, member] = [1, 2, 3, 4, 5].map(|n| make(&name(n)));
        let other = make("env-mine");
        drop(page(&left));
        drop(used::make(&left).unwrap());
        drop(page(&earlier));
        assert!(used::make_and_hold(&held));
        let _member = Membership::claim(page(&member)).unwrap();
        [&left, &earlier, &held, &member, &other].into_iter().for_each(age);
        remove(&base);
        let stays = |folder: &Folder| folder.path().is_dir();
        assert_eq!([&left, &earlier].map(stays), [false; 2]);
        assert_eq!([&fresh, &held, &member, &other].map(stays), [true; 4]);
    }
}
