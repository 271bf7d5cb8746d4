//! The directories of sessions: `/dev/shm/sluice-UID/NAME/`, each with one page for every device
//! that the session has used. All of these directories have mode 0700 and belong to the user.
//!
//! * [`OwnedSession`], `PID-START-RANDOM`: made by a command, which removes it when it ends. The
//!   owner holds a lock on the file `owner` in the directory. The kernel drops the lock when the
//!   owner ends, in any pid namespace. A session's directory may be inside another one's.
//! * [`implicit`], `env-HASH`: shared by all processes with the same limits.

mod error;
mod implicit;
mod leftovers;
mod listing;
mod owned;
mod owner;
mod private;

pub use error::DirectoryError;
pub use implicit::implicit;
pub use listing::{Found, list, list_in};
pub use owned::OwnedSession;

use crate::settings;
use std::path::{Path, PathBuf};

/// The parent directory of all users' sessions.
pub const ROOT: &str = "/dev/shm";

/// The prefix of the name of a user's directory.
const PREFIX: &str = "sluice-";

/// The directory of a user's sessions.
#[must_use]
pub fn base(uid: u32) -> PathBuf {
    Path::new(ROOT).join(format!("{PREFIX}{uid}"))
}

/// The user that a directory's name stands for.
fn user(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The user that this process makes and finds sessions as.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this process was started as a part of a session: a variable says so, or the limiter that is
/// preloaded is a session's.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(limits::env::SESSION_DIR).is_some_and(|value| !value.is_empty())
        || std::env::var_os("LD_PRELOAD")
            .is_some_and(|value| settings::preloaded_session(&value).is_some())
}

/// Whether a directory has a name that an owner gives to its session.
pub(crate) fn is_named_by_owner(path: &Path) -> bool {
    owner::of(path).is_some()
}

/// Checks the directory of the session that this process was told to join.
///
/// # Errors
/// [`DirectoryError::NotOne`]
pub fn check(path: &Path) -> Result<(), DirectoryError> {
    if path.is_dir() { Ok(()) } else { Err(DirectoryError::NotOne { path: path.to_owned() }) }
}
