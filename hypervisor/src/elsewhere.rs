//! Finds the pages of sessions in containers: where the session's processes see them, not where the daemon's own pages
//! are.

use session::directory::{self, Found};
use session::process::ProcessIdentity;

/// Most processes of a session whose view of the file system is tried.
const MOST_LOOKED_AT: usize = 8;

/// Several directories have the session's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {uid} has several directories of that name")]
pub(crate) struct Several {
    uid: u32,
}

/// Why a session's directory was not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFound {
    #[error(transparent)]
    Several(#[from] Several),
    #[error("user {uid} has no directory of that name")]
    Nowhere { uid: u32 },
    #[error(transparent)]
    Folder(#[from] directory::DirectoryError),
}

/// A session's directory as seen by one of its processes, and that process, if its mount namespace differs from the
/// daemon's. Callers must check that the process still runs after opening the pages, because its id may have been
/// reused.
pub(crate) fn find(
    uid: u32,
    name: &str,
    processes: &[ProcessIdentity],
) -> Result<(Found, ProcessIdentity), NotFound> {
    let mut why = NotFound::Nowhere { uid };
    let elsewhere = processes.iter().filter(|process| is_elsewhere(process));
    for &process in elsewhere.take(MOST_LOOKED_AT) {
        match directory::list_of_process(process.pid, uid) {
            Ok(listing) => {
                if let Some(found) = one_of(listing.sessions, uid, name)? {
                    return Ok((found, process));
                }
            }
            Err(error) => why = error.into(),
        }
    }
    Err(why)
}

/// The session of this user and name.
pub(crate) fn one_of(sessions: Vec<Found>, uid: u32, name: &str) -> Result<Option<Found>, Several> {
    let is_it = |found: &Found| {
        (found.uid == uid || found.is_of_allocation())
            && found.name.rsplit('/').next().is_some_and(|last| last == name)
    };
    let mut matching = sessions.into_iter().filter(is_it);
    match (matching.next(), matching.next()) {
        (found, None) => Ok(found),
        _ => Err(Several { uid }),
    }
}

/// Whether a process has another view of the file system than the daemon.
pub(crate) fn is_elsewhere(process: &ProcessIdentity) -> bool {
    let namespace = |of: String| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let (own, its) = (namespace("self".to_owned()), namespace(process.pid.to_string()));
    its.is_some() && own != its
}
