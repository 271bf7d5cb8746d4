//! Lists the sessions, found by their directories.

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{DirectoryError, ROOT, own_user, owner, user};
use crate::Page;

/// A session's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Whose it is.
    pub uid: u32,
    /// Its name: the path below the directory of the user's sessions.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its pages, one for each device that it has used.
    pub pages: Vec<PathBuf>,
    /// Whether the command that made it still runs.
    pub owned: bool,
}

impl Found {
    /// The process id of the command that made it.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        owner::of(&self.path).map(|owner| owner.pid)
    }
}

/// The sessions of this user; of every user for root.
///
/// # Errors
/// [`DirectoryError::Io`] when a directory that belongs to this user cannot be read.
pub fn list() -> Result<Vec<Found>, DirectoryError> {
    let user = own_user();
    list_in(Path::new(ROOT), (user != 0).then_some(user))
}

/// The sessions below `root`, of one user or of all.
///
/// # Errors
/// As [`list`].
pub fn list_in(root: &Path, only: Option<u32>) -> Result<Vec<Found>, DirectoryError> {
    let mut found = Vec::new();
    for base in directories(root)? {
        let uid = user(&base.file_name().to_string_lossy());
        let Some(uid) = uid.filter(|uid| only.is_none_or(|only| only == *uid)) else { continue };
        // Anyone can make a directory there. One that bears another user's number is ignored.
        if base.metadata().is_ok_and(|metadata| metadata.uid() == uid) {
            let base = base.path();
            for directory in directories(&base)? {
                add(&mut found, &base, &directory.path(), uid)?;
                // Sessions inside a session: those of a demo.
                for inner in directories(&directory.path())? {
                    add(&mut found, &base, &inner.path(), uid)?;
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Takes a directory for a session if it has pages, or an owner.
fn add(found: &mut Vec<Found>, base: &Path, path: &Path, uid: u32) -> Result<(), DirectoryError> {
    let entries = entries(path)?;
    let mut pages: Vec<PathBuf> =
        entries.iter().map(DirEntry::path).filter(|path| Page::has_name_of_one(path)).collect();
    pages.sort();
    let owned = owner::of(path).is_some() && owner::lives(path);
    if owned || !pages.is_empty() {
        let name = path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned();
        found.push(Found { uid, name, path: path.to_owned(), pages, owned });
    }
    Ok(())
}

/// The directories in `path`, without symbolic links.
fn directories(path: &Path) -> Result<Vec<DirEntry>, DirectoryError> {
    let mut entries = entries(path)?;
    entries.retain(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(entries)
}

/// The entries of `path`; none if it has been removed meanwhile.
fn entries(path: &Path) -> Result<Vec<DirEntry>, DirectoryError> {
    let read = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    match read {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(vec![]),
        other => other.map_err(DirectoryError::io("read", path)),
    }
}
