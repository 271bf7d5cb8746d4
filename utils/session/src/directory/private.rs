//! Directories that only their user can enter.

use super::DirectoryError;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

const MODE: u32 = 0o700;

/// Makes a directory that is not there yet.
pub(super) fn make(path: &Path) -> Result<(), DirectoryError> {
    DirBuilder::new().mode(MODE).create(path).map_err(DirectoryError::io("make", path))
}

/// Makes a directory if need be. Anyone can make one in `/dev/shm`, so an existing directory is
/// accepted only if it belongs to the user alone.
pub(super) fn make_or_check(path: &Path, uid: u32) -> Result<(), DirectoryError> {
    match make(path) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let metadata = fs::symlink_metadata(path).map_err(DirectoryError::io("read", path))?;
    let mode = metadata.mode() & 0o777;
    if metadata.is_dir() && metadata.uid() == uid && mode == MODE {
        return Ok(());
    }
    let kind = if metadata.is_dir() { "a directory" } else { "something else" };
    let found = format!("{kind} of user {} with mode {mode:04o}", metadata.uid());
    Err(DirectoryError::Unsafe { path: path.to_owned(), uid, found })
}
