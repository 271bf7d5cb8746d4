//! The folder of the daemon's socket.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use protocol::socket::default_sockets;

/// The file modes of the daemon's socket and its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modes {
    pub(super) folder: u32,
    pub(super) socket: u32,
}

/// Root's daemon serves every user of the node; another user's daemon serves that user.
pub(super) fn modes() -> Modes {
    if rustix::process::geteuid().is_root() {
        Modes { folder: 0o755, socket: 0o666 }
    } else {
        Modes { folder: 0o700, socket: 0o600 }
    }
}

/// Where this user's daemon listens by default: the last of the places in which its programs look
/// for one.
pub(super) fn default_socket() -> Option<PathBuf> {
    default_sockets().pop()
}

/// Makes the folder of the default socket if it does not exist. A folder that another user may have
/// prepared is refused: anyone can make one in /tmp.
pub(super) fn prepare(socket: &Path, mode: u32) -> io::Result<()> {
    let Some(folder) = folder_of(socket) else { return Ok(()) };
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // A link may be another user's, too.
    is_trusted(&fs::symlink_metadata(folder)?)
}

/// Checks the folder of a socket that the user chose. It is not made: a folder that does not exist
/// is a mistake.
pub(super) fn check(socket: &Path) -> io::Result<()> {
    match folder_of(socket).map(fs::metadata) {
        Some(Ok(found)) if found.is_dir() => is_trusted(&found),
        // The listener says what is wrong.
        _ => Ok(()),
    }
}

fn folder_of(socket: &Path) -> Option<&Path> {
    socket.parent().filter(|folder| !folder.as_os_str().is_empty())
}

/// Whether nobody but this user or root can have prepared it.
pub(super) fn is_trusted(folder: &Metadata) -> io::Result<()> {
    if !folder.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let owner = folder.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner == own || owner == 0 {
        return Ok(());
    }
    let problem = format!("belongs to user {owner}, and must belong to user {own} or root");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}
