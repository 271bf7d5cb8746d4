//! The owner of a session's directory, known by the directory's name and by a lock inside it.

use crate::process::ProcessIdentity;
use limits::units::parse_whole;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The file that the owner holds a lock on.
pub(super) const LOCK: &str = "owner";

/// A name for a directory that this process owns.
pub(super) fn new_name() -> String {
    let ProcessIdentity { pid, start_time } = ProcessIdentity::own();
    let random = RandomState::new().hash_one(pid);
    format!("{pid}-{start_time}-{random:016x}")
}

/// The owner, from a directory's name.
pub(super) fn of(path: &Path) -> Option<ProcessIdentity> {
    let mut fields = path.file_name()?.to_str()?.split('-');
    let (pid, start_time) = (parse_whole(fields.next()?)?, fields.next()?);
    // One process has one name: without signs and zeros before a number.
    let start_time: u64 =
        start_time.parse().ok().filter(|start: &u64| start.to_string() == start_time)?;
    let random = fields.next()?;
    (random.len() == 16 && fields.next().is_none()).then_some(ProcessIdentity { pid, start_time })
}

/// Takes the lock for the rest of this process's life.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}

/// Whether the owner holds its lock, or is about to take it. True if the name names no owner: such
/// a directory is not left over from one.
pub(super) fn lives(path: &Path) -> bool {
    let Some(owner) = of(path) else { return true };
    if owner.is_running() {
        return true;
    }
    match File::open(path.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_err(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}
