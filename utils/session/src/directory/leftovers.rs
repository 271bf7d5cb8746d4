//! Removes what dead owners left behind.

use super::{owner, used};
use crate::folder::{Folder, FolderError};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How deep the folders in a session's directory are: the simulated driver's, and the sessions of a
/// demo with theirs.
const DEPTH: usize = 3;

/// Removes the directories of sessions that have no owner and have been unused for long. What
/// cannot be removed now is tried again at the next call.
pub(super) fn remove(base: &Folder) {
    let Ok((names, _)) = base.names(usize::MAX) else { return };
    for (name, _) in names {
        if owner::of(Path::new(&name)).is_some()
            && let Ok(session) = base.child(&name)
            && !owner::lives(&session)
        {
            used::if_long_unused(&session, || base.remove_folder(&name, DEPTH));
        }
    }
}

/// Removes the directory of a session whose owner ends. If somebody still uses it, it stays,
/// because its limits are in it. A later session's start removes it.
pub(super) fn remove_own(base: &Folder, name: &OsStr) {
    let Ok(session) = base.child(name) else { return };
    if let Some(_alone) = used::lock_alone(&session) {
        remove_now(base, name);
    }
}

/// Removes the directory of a session that nobody uses.
pub(super) fn remove_now(base: &Folder, name: &OsStr) {
    base.remove_folder(name, DEPTH);
}

/// Descriptors that are kept for the removal: the process may have no others left by then.
#[derive(Debug)]
pub(super) struct Reserve {
    _kept: Vec<OwnedFd>,
}

impl Reserve {
    /// As many as [`remove_own`] opens at a time: the session's directory twice, its lock, and one of its folders twice.
    const SIZE: usize = 5;

    pub(super) fn take(base: &Folder) -> Result<Self, FolderError> {
        let keep = |_| rustix::io::fcntl_dupfd_cloexec(base.descriptor(), 0);
        let kept: Result<_, _> = (0..Self::SIZE).map(keep).collect();
        Ok(Self { _kept: kept.map_err(FolderError::io("use", base.path()))? })
    }
}
