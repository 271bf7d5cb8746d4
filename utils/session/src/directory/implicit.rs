//! Sessions that no command made: processes with the same limits share one.

use super::{DirectoryError, base, own_user, private};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The session directory of all processes of this user and pid namespace (container) that use the
/// same `key`. Makes it if need be.
///
/// # Errors
/// [`DirectoryError`]
pub fn implicit(key: &impl Hash) -> Result<PathBuf, DirectoryError> {
    let user = own_user();
    let base = base(user);
    let path = base.join(format!("env-{:016x}", name(key)));
    private::make_or_check(&base, user)?;
    private::make_or_check(&path, user)?;
    Ok(path)
}

fn name(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    if let Ok(namespace) = fs::metadata("/proc/self/ns/pid") {
        namespace.ino().hash(&mut hasher);
    }
    hasher.finish()
}
