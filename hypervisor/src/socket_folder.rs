//! The directory of the daemon's socket: default, creation and trust.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use protocol::socket::default_sockets;

/// File modes of the daemon's socket and its directory.
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

/// Default socket of this user's daemon: the last of the paths that the user's programs try.
pub(super) fn default_socket() -> Option<PathBuf> {
    default_sockets().pop()
}

/// Creates the directory of the default socket if missing. A directory of another user is refused: anyone can create
/// one in /tmp.
pub(super) fn prepare(socket: &Path, mode: u32) -> io::Result<()> {
    let Some(folder) = folder_of(socket) else { return Ok(()) };
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // A symbolic link may belong to another user, too.
    is_trusted(&fs::symlink_metadata(folder)?)
}

/// Checks the directory of a socket that the user chose. It is not created, because a missing directory is a mistake.
pub(super) fn check(socket: &Path) -> io::Result<()> {
    match folder_of(socket).map(fs::metadata) {
        Some(Ok(found)) if found.is_dir() => is_trusted(&found),
        // The listener reports the problem.
        _ => Ok(()),
    }
}

fn folder_of(socket: &Path) -> Option<&Path> {
    socket.parent().filter(|folder| !folder.as_os_str().is_empty())
}

/// Whether the directory belongs to this user or root.
pub(super) fn is_trusted(folder: &Metadata) -> io::Result<()> {
    if !folder.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let owner = folder.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner == own || owner == 0 {
        return Ok(());
    }
    let problem = format!("belongs to user {owner}; expected user {own} or root");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}
