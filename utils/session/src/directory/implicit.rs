//! Implicit sessions: without a command, processes with the same limits share a session.

use super::{DirectoryError, leftovers, own_user, place, used};
use crate::folder::Folder;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Prefix of their names.
const PREFIX: &str = "env-";

/// The directory of an implicit session.
#[derive(Debug)]
pub struct Implicit {
    /// Its path.
    pub path: PathBuf,
    /// Why it is not in the usual place, if so.
    pub elsewhere: Option<String>,
}

/// The session directory of all processes of this user and pid namespace (container) that use the same `key`. Creates
/// it if needed, and then removes sessions that have been unused for long.
///
/// # Errors
/// [`DirectoryError`]
pub fn implicit(key: &impl Hash) -> Result<Implicit, DirectoryError> {
    /// The mode; the name can be guessed.
    const FOR_ONE_USER: u32 = 0o700;
    const TRIES: u32 = 3;
    let place = place::own(own_user())?;
    let name = format!("{PREFIX}{:016x}", name(key));
    let name = OsStr::new(&name);
    let open = || -> Result<Folder, DirectoryError> {
        let folder = match place.folder.child(name) {
            Err(error) if error.is_absent() => {
                leftovers::remove(&place.folder);
                // Another process may create it at the same time.
                let _ = place.folder.make(name, FOR_ONE_USER);
                place.folder.child(name)?
            }
            found => found?,
        };
        place::check(&folder, own_user(), &[FOR_ONE_USER])?;
        Ok(folder)
    };
    let mut folder = open()?;
    // Retry if it is being removed.
    for _ in 0..TRIES {
        if used::make_and_hold(&folder) {
            break;
        }
        folder = open()?;
    }
    Ok(Implicit { path: folder.path().to_owned(), elsewhere: place.elsewhere })
}

/// Whether a folder has the name of an implicit session.
pub(super) fn is_name(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    digits.is_some_and(|digits| {
        digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn name(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    if let Ok(namespace) = fs::metadata("/proc/self/ns/pid") {
        namespace.ino().hash(&mut hasher);
    }
    hasher.finish()
}
