//! Why a page cannot be used.

use std::io;
use std::path::PathBuf;

use crate::folder::FolderError;
use crate::layout::SLOTS;

/// Why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The file system refused.
    #[error("session page {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Not a page, or one of another build, or cut short.
    #[error("session page {path} cannot be used: {reason}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It was a page when it was opened, and is not one any more.
    #[error("session page {path} was damaged while in use: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A living process has the ledger open and does not close it: the process is stopped, or the
    /// page wrongly says so.
    #[error("session page {path}: process {pid} (slot {slot}) holds the ledger's lock")]
    Busy {
        /// The file.
        path: PathBuf,
        /// The process, as its slot names it.
        pid: u32,
        /// The slot.
        slot: usize,
    },
    /// Every slot is taken by a living process.
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
