//! Where sessions are: `/dev/shm/sluice-UID/NAME/`, each with a page for every device that it has
//! used. All of these directories are of mode 0700 and belong to the user.
//!
//! * [`OwnedSession`], `PID-START-RANDOM`: made by a command, which removes it at its end. The owner
//!   holds a lock on the file `owner` in it, which the kernel drops with the owner, in whatever pid
//!   namespace. A session may be within another one's directory.
//! * [`implicit`], `env-HASH`: shared by all processes that carry the same limits.

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

use std::path::{Path, PathBuf};

/// Where all users' sessions are.
pub const ROOT: &str = "/dev/shm";

/// What the name of a user's directory begins with.
const PREFIX: &str = "sluice-";

/// The directory of a user's sessions.
#[must_use]
pub fn base(uid: u32) -> PathBuf {
    Path::new(ROOT).join(format!("{PREFIX}{uid}"))
}

/// The user whose sessions are in a directory of that name.
fn user(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The user that this process makes and finds sessions as.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this process was started as a part of a session.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(limits::env::SESSION_DIR).is_some_and(|value| !value.is_empty())
}

/// Checks the directory of a session that this process was told to take part in.
///
/// # Errors
/// [`DirectoryError::NotOne`]
pub fn check(path: &Path) -> Result<(), DirectoryError> {
    if path.is_dir() { Ok(()) } else { Err(DirectoryError::NotOne { path: path.to_owned() }) }
}
