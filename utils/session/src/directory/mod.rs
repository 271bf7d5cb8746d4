//! The directories of sessions: `/dev/shm/sluice-UID/NAME/`, for root `/dev/shm/sluice-root/NAME/`. Each holds one page
//! per device that the session has used. They belong to the user, and other users cannot enter them, except root's: see
//! [`OwnedSession`]. If another user has taken the name, [other places](place) are used.
//!
//! * [`OwnedSession`], `PID-START-RANDOM.SECRET`: created by a command, which removes it when it ends. The owner holds
//!   a lock on the file `owner` in the directory, which the kernel drops when the owner ends, in any pid namespace.
//!   Processes of the session hold a lock on the file [`used`]. A session's directory may be inside another one's.
//!   Programs that root starts may become other users, so root's directories can be entered by those who know the name,
//!   and 128 bits of it cannot be guessed.
//! * [`implicit`], `env-HASH`: shared by all processes with the same limits.

mod copy;
mod error;
mod implicit;
mod leftovers;
mod link;
mod listing;
mod owned;
mod owner;
mod place;
mod used;

pub use crate::folder::FolderError;
pub use error::DirectoryError;
pub use implicit::{Implicit, implicit};
pub use leftovers::{Pruned, prune};
pub use limits::session_name::{shown as shown_name, told};
pub use listing::{Found, Listing, list, list_in, list_of_process};
pub use owned::{AtEnd, OwnedSession};

use crate::folder::Folder;
use crate::settings::{self, OwnerSettings};
use limits::env::SESSION_DIR;
use std::path::{Path, PathBuf};

/// The parent directory of all users' sessions.
pub const ROOT: &str = "/dev/shm";

/// Prefix of the name of a user's directory.
const PREFIX: &str = "sluice-";

/// The usual place of a user's sessions.
#[must_use]
pub fn base(uid: u32) -> PathBuf {
    place::all(Path::new(ROOT), uid).next().unwrap_or_else(|| PathBuf::from(ROOT))
}

/// The user as which this process creates and finds sessions.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The session in which this process was started: that of the preloaded limiter, or of the variable.
///
/// # Errors
/// [`DirectoryError::NotOne`] if that session has no owner: it is gone, or the variable is wrong. Its limits are
/// unknown then.
pub fn inside() -> Result<Option<PathBuf>, DirectoryError> {
    const PRELOAD: &str = "LD_PRELOAD";
    let preload = std::env::var_os(PRELOAD).unwrap_or_default();
    let preloaded = settings::preloaded_session(&preload).map(|dir| (PRELOAD, dir.to_owned()));
    let named = || {
        let dir = std::env::var_os(SESSION_DIR).filter(|value| !value.is_empty())?;
        Some((SESSION_DIR, PathBuf::from(dir)))
    };
    let Some((variable, dir)) = preloaded.or_else(named) else { return Ok(None) };
    open_as(variable, &dir)?;
    OwnerSettings::of(&dir).map_err(|error| DirectoryError::NotOne {
        variable,
        path: told(&dir),
        reason: error.to_string(),
    })?;
    Ok(Some(dir))
}

/// Whether a directory has a name that owners give to their sessions.
pub(crate) fn is_named_by_owner(path: &Path) -> bool {
    owner::of(path).is_some()
}

/// Checks the directory of the session that this process is to join.
///
/// # Errors
/// [`DirectoryError::NotOne`]
pub fn check(path: &Path) -> Result<(), DirectoryError> {
    open(path).map(|_| ())
}

fn open(path: &Path) -> Result<Folder, DirectoryError> {
    open_as(SESSION_DIR, path)
}

fn open_as(variable: &'static str, path: &Path) -> Result<Folder, DirectoryError> {
    let refused = |reason| DirectoryError::NotOne { variable, path: told(path), reason };
    let folder = Folder::open(path).map_err(|error| {
        refused(if error.is_absent() { "not a directory".to_owned() } else { error.to_string() })
    })?;
    folder.check_is_reliable().map_err(|error| refused(error.to_string()))?;
    Ok(folder)
}

/// Keeps the session that this process is to join from being removed while the process runs its program.
pub fn hold(path: &Path) {
    if let Ok(folder) = open(path) {
        used::hold(&folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use place::user;
    use proptest::prelude::*;

    /// A directory whose name only resembles a user's belongs to nobody.
    #[test]
    fn a_user_has_one_name() {
        for (name, uid) in [("sluice-0", Some(0)), ("sluice-4294967295", Some(u32::MAX))] {
            assert_eq!(user(name), uid, "{name}");
        }
        for name in ["sluice-", "sluice-+5", "sluice-05", "sluice- 5", "sluice-4294967296", "5"] {
            assert_eq!(user(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_is_that_of_one_user_or_of_none(name in "(sluice-)?\\PC{0,12}", uid: u32) {
            if let Some(uid) = user(&name) {
                let path = Path::new(ROOT).join(&name);
                let is_a_place = place::all(Path::new(ROOT), uid).any(|place| place == path);
                prop_assert!(is_a_place || uid == 0, "{}", name);
            }
            prop_assert_eq!(user(&format!("{PREFIX}{uid}")), Some(uid));
        }

        #[test]
        fn any_name_is_that_of_one_owner_or_of_none(name in "[-+ 0-9a-f]{0,48}") {
            if let Some(owner) = owner::of(Path::new(&name)) {
                let start = format!("{}-{}-", owner.pid, owner.start_time);
                prop_assert!(name.starts_with(&start), "{}", name);
            }
        }
    }

    #[test]
    fn the_name_of_an_owned_session_names_its_owner() {
        let owner = owner::of(Path::new(&owner::new_name().unwrap())).unwrap();
        assert_eq!(owner, crate::process::ProcessIdentity::own());
    }
}
