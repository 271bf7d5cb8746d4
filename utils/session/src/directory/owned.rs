//! A session that a command makes for its program.

use super::leftovers::{self, Reserve};
use super::{DirectoryError, own_user, owner, place, used};
use crate::folder::{Folder, FolderError};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A session's directory. It is removed on drop, unless a process of the session still runs.
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

/// What becomes of a session's directory when its owner ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// It is removed if nobody holds the lock on it.
    RemoveIfUnused,
    /// It stays: there are processes that outlive the owner.
    Stay,
    /// It is removed: no process outlives the owner.
    Remove,
}

impl OwnedSession {
    /// Makes a session of the calling user, and removes what dead owners left behind.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn create() -> Result<Self, DirectoryError> {
        let uid = own_user();
        let place = place::own(uid)?;
        Self::create_at(place.folder, uid, place.elsewhere)
    }

    /// As [`Self::create`], but below `base`, which must be private to the user `uid`.
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

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Why it is not in the usual place, if it is not.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&str> {
        self.elsewhere.as_deref()
    }

    /// Makes a directory inside it, for whoever may enter it.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let inner = self.folder.make(name.as_ref(), self.folder.mode())?;
        Ok(inner.path().to_owned())
    }

    /// Makes a session inside it, for processes that stay this user's.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn inner_session(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let inner = self.folder.make(name.as_ref(), 0o700)?;
        Ok(inner.path().to_owned())
    }

    /// A link to `target` that outlives the session: one for each target, under the file name
    /// `name`. For what processes must find although their session is gone.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn lasting_link(&self, target: &Path, name: &str) -> Result<PathBuf, DirectoryError> {
        super::link::lasting(&self.base, target, OsStr::new(name))
    }

    /// Whether programs of other users may belong to it.
    #[must_use]
    pub const fn is_for_other_users(&self) -> bool {
        self.folder.is_for_those_who_know()
    }

    /// A copy of `source` that outlives the session and that its programs can load, whoever they become: one for each
    /// source, under the file name `name`.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn lasting_copy(&self, source: &Path, name: &str) -> Result<PathBuf, DirectoryError> {
        super::copy::lasting(&self.base, source, OsStr::new(name))
    }

    /// Ends it, by one who knows what runs on.
    pub fn end(mut self, how: AtEnd) {
        self.end = how;
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // What is still locked is locked by others.
        self.used = None;
        self.reserve = None;
        match self.end {
            AtEnd::RemoveIfUnused => leftovers::remove_own(&self.base, &self.name),
            AtEnd::Stay => {}
            AtEnd::Remove => leftovers::remove_now(&self.base, &self.name),
        }
    }
}
