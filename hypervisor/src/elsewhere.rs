//! Sessions whose pages are not where the daemon's are, but where their processes see them: those in containers.

use session::directory::{self, Found};
use session::process::ProcessIdentity;

/// Of so many processes of a session it is looked at how they see their files.
const MOST_LOOKED_AT: usize = 8;

/// Several directories are called like one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {uid} has several directories of that name")]
pub(crate) struct Several {
    uid: u32,
}

/// Why the directory of a session was not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFound {
    #[error(transparent)]
    Several(#[from] Several),
    #[error("user {uid} has no directory of that name")]
    Nowhere { uid: u32 },
    #[error(transparent)]
    Folder(#[from] directory::DirectoryError),
}

/// A session's directory as one of its processes sees it, if that sees other file systems than the daemon, and that
/// process. Whether it still runs is to be asked when the pages are open: its id may be another one's by now.
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

/// The session that is meant, if it is among these.
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

/// Whether a process sees other file systems than the daemon.
pub(crate) fn is_elsewhere(process: &ProcessIdentity) -> bool {
    let namespace = |of: String| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let (own, its) = (namespace("self".to_owned()), namespace(process.pid.to_string()));
    its.is_some() && own != its
}
