//! A session that a command makes for its program.

use super::{DirectoryError, base, leftovers, own_user, owner, private};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A session's directory. It is removed on drop, unless a process of the session still runs.
#[derive(Debug)]
pub struct OwnedSession {
    path: PathBuf,
    _lock: File,
}

impl OwnedSession {
    /// Makes a session of the calling user, and removes what dead owners left behind.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn create() -> Result<Self, DirectoryError> {
        let uid = own_user();
        Self::create_in(&base(uid), uid)
    }

    /// As [`Self::create`], but below `base`, which must be private to the user `uid`.
    ///
    /// # Errors
    /// [`DirectoryError`]
    pub fn create_in(base: &Path, uid: u32) -> Result<Self, DirectoryError> {
        private::make_or_check(base, uid)?;
        leftovers::remove(base);
        let path = base.join(owner::new_name());
        private::make(&path)?;
        let lock = path.join(owner::LOCK);
        let lock = owner::lock(&lock).map_err(DirectoryError::io("lock", &lock))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory inside it.
    ///
    /// # Errors
    /// [`DirectoryError::Io`]
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let path = self.path.join(name);
        private::make(&path)?;
        Ok(path)
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        leftovers::remove_own(&self.path);
    }
}
