//! A lock on a path: an empty file beside it, locked and removed by its owner. [`PeerListener`](super::PeerListener)
//! takes one per socket.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

/// Holds the lock; on drop the lock file is removed and unlocked.
#[derive(Debug)]
pub(super) struct PathLock {
    path: PathBuf,
    file: File,
}

/// Why a lock could not be taken.
#[derive(Debug)]
pub(super) enum LockRefused {
    /// Another process holds the lock.
    Taken,
    /// The existing file is not a lock of this user.
    NotALock(PathBuf),
    /// The system refused.
    Io(io::Error),
}

impl From<io::Error> for LockRefused {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl PathLock {
    pub(super) fn take(path: &Path) -> Result<Self, LockRefused> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            // NONBLOCK and NOFOLLOW: the path may be a FIFO or a link.
            let flags = OFlags::CREATE
                | OFlags::WRONLY
                | OFlags::CLOEXEC
                | OFlags::NOFOLLOW
                | OFlags::NONBLOCK;
            let file = match open(&path, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => File::from(file),
                Err(_) if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) => {
                    return Err(LockRefused::NotALock(path));
                }
                Err(error) => return Err(io::Error::from(error).into()),
            };
            let opened = file.metadata()?;
            // A lock file is empty and belongs to this user. Any other file must not be removed; another user could
            // also hold its lock forever, or give it a second name (a hard link).
            let is_own = opened.uid() == geteuid().as_raw() && opened.nlink() <= 1;
            if !opened.is_file() || opened.len() > 0 || !is_own {
                return Err(LockRefused::NotALock(path));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(LockRefused::Taken),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            let lock = Self { path: path.clone(), file };
            // If the last owner has removed the file meanwhile, this lock protects no path: retry.
            if lock.is_at_its_path() {
                return Ok(lock);
            }
        }
    }

    fn is_at_its_path(&self) -> bool {
        let same = |found: fs::Metadata| {
            let own = self.file.metadata()?;
            Ok::<_, io::Error>((own.dev(), own.ino()) == (found.dev(), found.ino()))
        };
        fs::symlink_metadata(&self.path).and_then(same).unwrap_or(false)
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // Removed while still locked: whoever opens the file now finds that it is no longer at its path.
        if self.is_at_its_path() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
