//! The owner of a session's directory, identified by the directory's name and a lock inside it.

use super::DirectoryError;
use crate::folder::{Folder, FolderError};
use crate::process::ProcessIdentity;
use limits::session_name::{SECRET, SECRET_DIGITS, without_secret};
use limits::units::parse_whole;
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;

/// The file on which the owner holds a lock.
pub(super) const LOCK: &str = "owner";

/// A name for a directory that this process owns: `PID-START-RANDOM.SECRET`. The secret, which is never shown, keeps
/// out those who may enter, but not read, the parent directory.
pub(super) fn new_name() -> io::Result<String> {
    let ProcessIdentity { pid, start_time } = ProcessIdentity::own();
    let random = RandomState::new().hash_one(pid);
    let mut secret = [0; SECRET_DIGITS / 2];
    if getrandom(&mut secret, GetRandomFlags::empty())? != secret.len() {
        return Err(io::Error::other("the system gave too few random bytes"));
    }
    let secret = u128::from_ne_bytes(secret);
    Ok(format!("{pid}-{start_time}-{random:016x}{SECRET}{secret:032x}"))
}

/// The owner, parsed from a directory's name.
pub(super) fn of(path: &Path) -> Option<ProcessIdentity> {
    let name = path.file_name()?.to_str()?;
    let mut fields = without_secret(name).unwrap_or(name).split('-');
    let (pid, start_time) = (parse_whole(fields.next()?)?, fields.next()?);
    // Each process has exactly one name: no signs, no leading zeros.
    let start_time: u64 =
        start_time.parse().ok().filter(|start: &u64| start.to_string() == start_time)?;
    let random = fields.next()?;
    (random.len() == 16 && fields.next().is_none()).then_some(ProcessIdentity { pid, start_time })
}

/// Takes the owner's lock for the rest of this process's life.
pub(super) fn lock(folder: &Folder) -> Result<File, DirectoryError> {
    let file = folder.make_file(LOCK.as_ref(), 0o600)?;
    file.lock().map_err(FolderError::io("lock", &folder.path().join(LOCK)))?;
    Ok(file)
}

/// Whether the owner holds its lock. True if the name names no owner, or the lock cannot be examined: such a directory
/// is not a dead owner's.
pub(super) fn lives(folder: &Folder) -> bool {
    if of(folder.path()).is_none() {
        return true;
    }
    match folder.file(LOCK.as_ref(), OFlags::RDONLY) {
        Ok(lock) => lock.try_lock_shared().is_err(),
        Err(error) => !error.is_absent(),
    }
}
