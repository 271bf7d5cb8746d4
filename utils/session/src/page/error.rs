//! Errors of session pages.

use std::io;
use std::path::PathBuf;

use crate::folder::FolderError;
use crate::layout::SLOTS;

/// The reason why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The file system refused.
    #[error("session page {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not a page, a page of another version, or truncated.
    #[error("session page {path} cannot be used: {reason}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// It was a page when it was opened, but no longer is.
    #[error("session page {path} was damaged while in use: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A living process keeps the ledger open: it is stopped, or the page is wrong about it.
    #[error("session page {path}: process {pid} (slot {slot}) holds the ledger's lock")]
    Busy {
        /// The file.
        path: PathBuf,
        /// The process, according to its slot.
        pid: u32,
        /// The slot.
        slot: usize,
    },
    /// All slots belong to living processes.
    #[error("session page {path}: all {SLOTS} slots are in use by living processes")]
    Full {
        /// The file.
        path: PathBuf,
    },
}

impl PageError {
    pub(crate) fn from_folder(error: FolderError) -> Self {
        match error {
            FolderError::Io { path, source, .. } => Self::Io { path, source },
            FolderError::Unsafe { path, wanted, found } => {
                Self::Foreign { path, reason: format!("it must be {wanted}, but is {found}") }
            }
        }
    }
}
