//! A lock on a path: an empty file beside it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;

/// The lock file is locked while this lives, and removed when it is dropped.
#[derive(Debug)]
pub(super) struct PathLock {
    path: PathBuf,
    file: File,
}

/// Why a lock could not be taken.
#[derive(Debug)]
pub(super) enum LockRefused {
    /// Another process has it.
    Taken,
    /// Another file is where the lock should be.
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
    /// Takes the lock `<path>.lock`.
    pub(super) fn take(path: &Path) -> Result<Self, LockRefused> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            // Not blocking, not by a link: anything may be there.
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
            // A lock is empty, and one's own. Anything else is somebody's file, which must not be
            // removed. Another user could hold its lock for ever, or make it a second name.
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
            // Its last owner may have removed it meanwhile: then this is the lock of no path.
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
        // While it is locked. Whoever opens it now finds that it is not at its path any more.
        if self.is_at_its_path() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
