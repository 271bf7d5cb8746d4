//! What can be wrong with a session's directory.

use crate::folder::FolderError;
use std::path::PathBuf;

/// Why a session's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refused, or another user has a say in what is there.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The variable that names this process's session does not name a directory.
    #[error(
        "{variable}: {}: {reason}; expected the directory that `sluice run` made", path.display()
    )]
    NotOne {
        /// The variable.
        variable: &'static str,
        /// The path in the variable.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
