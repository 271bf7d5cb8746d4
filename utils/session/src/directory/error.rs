//! What can be wrong with a session's directory.

use limits::env::SESSION_DIR;
use std::io;
use std::path::{Path, PathBuf};

/// Why a session's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried: make, read or lock.
        what: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The variable that names this process's session does not name a directory.
    #[error(
        "{}={}: not a directory; it has to be the one that `sluice run` made", SESSION_DIR, path.display()
    )]
    NotOne {
        /// The path in the variable.
        path: PathBuf,
    },
    /// Another user could write to the directory.
    #[error(
        "{} must be a directory that belongs to user {uid} with mode 0700, but is {found}", path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// The user who wants to use it.
        uid: u32,
        /// What is there instead.
        found: String,
    },
}

impl DirectoryError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
