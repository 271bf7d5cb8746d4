//! Sessions that a command creates for its program.

use super::leftovers::{self, Reserve};
use super::{DirectoryError, own_user, owner, place, used};
use crate::folder::{Folder, FolderError};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A session's directory; removed on drop, unless a process of the session is still running.
#[derive(Debug)]
pub struct OwnedSession {
    base: Folder,
    folder: Folder,
    name: OsString,
    elsewhere: Option<String>,
    end: AtEnd,
    used: Option<File>,
    reserve: Option<Reserve>,
    _lock: File,
}

/// The fate of a session's directory when its owner ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// Removed if no process holds its lock.
    RemoveIfUnused,
    /// Kept, because processes outlive the owner.
    Stay,
    /// Removed, because no process outlives the owner.
    Remove,
}

impl OwnedSession {
    /// Creates a session of the calling user, and removes the sessions of dead owners.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn create() -> Result<Self, DirectoryError> {
        let uid = own_user();
        let place = place::own(uid)?;
        Self::create_at(place.folder, uid, place.elsewhere)
    }

    /// Like [`Self::create`], below `base`, which must be private to the user `uid`.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn create_in(base: &Path, uid: u32) -> Result<Self, DirectoryError> {
        Self::create_at(place::make(base, uid)?, uid, None)
    }

    fn create_at(
        base: Folder,
        uid: u32,
        elsewhere: Option<String>,
    ) -> Result<Self, DirectoryError> {
        leftovers::remove(&base);
        let name = owner::new_name().map_err(FolderError::io("name a session in", base.path()))?;
        let name = OsString::from(name);
        let reserve = Reserve::take(&base)?;
        match Self::fill(&base, &name, uid) {
            Ok((folder, lock, used)) => Ok(Self {
                base,
                folder,
                name,
                elsewhere,
                end: AtEnd::RemoveIfUnused,
                used: Some(used),
                reserve: Some(reserve),
                _lock: lock,
            }),
            Err(error) => {
                drop(reserve);
                leftovers::remove_now(&base, &name);
                Err(error)
            }
        }
    }

    fn fill(base: &Folder, name: &OsStr, uid: u32) -> Result<(Folder, File, File), DirectoryError> {
        let folder = base.make(name, place::mode(uid))?;
        let lock = owner::lock(&folder)?;
        let used = used::make(&folder)?;
        Ok((folder, lock, used))
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Why it is not in the usual place, if so.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&str> {
        self.elsewhere.as_deref()
    }

    /// Creates a directory inside, with the same mode.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let inner = self.folder.make(name.as_ref(), self.folder.mode())?;
        Ok(inner.path().to_owned())
    }

    /// Creates a session inside, for processes that keep this user.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn inner_session(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let inner = self.folder.make(name.as_ref(), 0o700)?;
        Ok(inner.path().to_owned())
    }

    /// A link to `target` that outlives the session: one per target, with the file name `name`. For files that
    /// processes must find after their session is gone.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn lasting_link(&self, target: &Path, name: &str) -> Result<PathBuf, DirectoryError> {
        super::link::lasting(&self.base, target, OsStr::new(name))
    }

    /// Whether programs of other users may join the session.
    #[must_use]
    pub const fn is_for_other_users(&self) -> bool {
        self.folder.is_for_those_who_know()
    }

    /// A copy of `source` that outlives the session: one per source, with the file name `name`. Its programs can load
    /// it as any user.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn lasting_copy(&self, source: &Path, name: &str) -> Result<PathBuf, DirectoryError> {
        super::copy::lasting(&self.base, source, OsStr::new(name))
    }

    /// Ends the session as decided by the caller, who knows which processes continue.
    pub fn end(mut self, how: AtEnd) {
        self.end = how;
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // Any lock that remains is held by others.
        self.used = None;
        self.reserve = None;
        match self.end {
            AtEnd::RemoveIfUnused => leftovers::remove_own(&self.base, &self.name),
            AtEnd::Stay => {}
            AtEnd::Remove => leftovers::remove_now(&self.base, &self.name),
        }
    }
}
