//! Links kept in the folder of a user's sessions.

use super::{DirectoryError, place};
use crate::folder::{Folder, FolderError};
use rustix::fs::{AtFlags, readlinkat, renameat, symlinkat, unlinkat};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A link to `target` named `name`, in a folder for this target alone.
pub(super) fn lasting(
    base: &Folder,
    target: &Path,
    name: &OsStr,
) -> Result<PathBuf, DirectoryError> {
    let mut hasher = DefaultHasher::new();
    target.hash(&mut hasher);
    let folder = format!("link-{:016x}", hasher.finish());
    // The folder may exist.
    let _ = base.make(folder.as_ref(), place::mode(base.uid()));
    let folder = base.child(folder.as_ref())?;
    let (dir, path) = (folder.descriptor(), folder.path().join(name));
    let is_it = || {
        readlinkat(&dir, name, Vec::new())
            .is_ok_and(|found| found.as_bytes() == target.as_os_str().as_bytes())
    };
    if !is_it() {
        // Created under another name first, so that a link always exists.
        let draft = format!("draft-{}", std::process::id());
        let _ = unlinkat(&dir, &*draft, AtFlags::empty());
        symlinkat(target, &dir, &*draft)
            .and_then(|()| renameat(&dir, &*draft, &dir, name))
            .map_err(FolderError::io("make", &path))?;
    }
    Ok(path)
}
