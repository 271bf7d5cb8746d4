//! Default paths of the daemon's socket.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Socket of the node's daemon, which serves every user.
const OF_THE_NODE: &str = "/run/sluice/hypervisor.sock";

/// Sockets at which a program of this process's user looks for a daemon, in order: the node's, then the user's own. A
/// daemon of that user listens at the last one.
#[must_use]
pub fn default_sockets() -> Vec<PathBuf> {
    let user = rustix::process::getuid();
    sockets_of(user.as_raw(), std::env::var_os("XDG_RUNTIME_DIR").as_deref())
}

/// Like [`default_sockets`], for user `uid` with the given runtime directory.
#[must_use]
pub fn sockets_of(uid: u32, runtime: Option<&OsStr>) -> Vec<PathBuf> {
    let mut sockets = vec![PathBuf::from(OF_THE_NODE)];
    if uid != 0 {
        sockets.push(match runtime.filter(|folder| !folder.is_empty()) {
            Some(folder) => Path::new(folder).join("sluice/hypervisor.sock"),
            None => PathBuf::from(format!("/tmp/sluice-{uid}/hypervisor.sock")),
        });
    }
    sockets
}
