//! Errors of session directories.

use crate::folder::FolderError;
use std::path::PathBuf;

/// The reason why a session's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refused, or another user could interfere.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The variable for this process's session does not name a session directory.
    #[error(
        "{variable}: {}: {reason}; expected the directory that `sluice run` made", path.display()
    )]
    NotOne {
        /// The variable.
        variable: &'static str,
        /// The path in the variable.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}
