//! Copies of files that other users cannot reach, kept beside the sessions.

use super::{DirectoryError, place};
use crate::folder::{Folder, FolderError};
use rustix::fs::{AtFlags, OFlags, StatVfsMountFlags, fstatvfs, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// The folder of the copies if the sessions' file system is mounted noexec, as in most containers.
const ELSEWHERE: &str = "/run/sluice-library";

/// A copy of `source` named `name`, in a folder for this source alone. Everyone who knows its path may read and load
/// it.
pub(super) fn lasting(
    base: &Folder,
    source: &Path,
    name: &OsStr,
) -> Result<PathBuf, DirectoryError> {
    if may_execute(base)? {
        return copy(base, source, name);
    }
    let elsewhere = place::make(Path::new(ELSEWHERE), base.uid())?;
    if may_execute(&elsewhere)? {
        return copy(&elsewhere, source, name);
    }
    Err(FolderError::Unsafe {
        path: elsewhere.path().to_owned(),
        wanted: "on a file system without noexec".to_owned(),
        found: format!("mounted noexec, as {} is", base.path().display()),
    }
    .into())
}

fn may_execute(folder: &Folder) -> Result<bool, FolderError> {
    let found = fstatvfs(folder.descriptor()).map_err(FolderError::io("look at", folder.path()))?;
    Ok(!found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn copy(base: &Folder, source: &Path, name: &OsStr) -> Result<PathBuf, DirectoryError> {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let folder = format!("copy-{:016x}", hasher.finish());
    // The folder may exist.
    let _ = base.make(folder.as_ref(), place::mode(base.uid()));
    let folder = base.child(folder.as_ref())?;
    let path = folder.path().join(name);
    let _one_at_a_time = lock(&folder)?;
    let file = File::open(source).map_err(FolderError::io("read", source))?;
    let wanted = file.metadata().map_err(FolderError::io("read", source))?;
    let is_there = folder
        .file(name, OFlags::RDONLY)
        .is_ok_and(|made| made.metadata().is_ok_and(|made| is_copy(&made, &wanted)));
    if !is_there {
        replace(&folder, file, &wanted, name).map_err(FolderError::io("make", &path))?;
    }
    Ok(path)
}

/// Replaces the copy by one of `source`. Programs that have loaded the previous one keep it.
fn replace(folder: &Folder, source: File, wanted: &Metadata, name: &OsStr) -> io::Result<()> {
    const DRAFT: &str = "draft";
    const MODE: u32 = 0o755;
    // Exceeding this limit raises a signal that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < wanted.len()) {
        return Err(Errno::FBIG.into());
    }
    let dir = folder.descriptor();
    let _ = unlinkat(&dir, DRAFT, AtFlags::empty());
    let filled =
        folder.make_file(DRAFT.as_ref(), MODE).map_err(io::Error::other).and_then(|mut draft| {
            io::copy(&mut { source }, &mut draft)?;
            draft.set_modified(wanted.modified()?)?;
            Ok(renameat(&dir, DRAFT, &dir, name)?)
        });
    if filled.is_err() {
        let _ = unlinkat(&dir, DRAFT, AtFlags::empty());
    }
    filled
}

fn is_copy(made: &Metadata, wanted: &Metadata) -> bool {
    made.len() == wanted.len() && made.modified().ok() == wanted.modified().ok()
}

fn lock(folder: &Folder) -> Result<File, FolderError> {
    const LOCK: &str = "lock";
    let file = match folder.file(LOCK.as_ref(), OFlags::RDWR) {
        Err(error) if error.is_absent() => folder
            .make_file(LOCK.as_ref(), 0o600)
            // Another process was faster.
            .or_else(|_| folder.file(LOCK.as_ref(), OFlags::RDWR))?,
        found => found?,
    };
    file.lock().map_err(FolderError::io("lock", &folder.path().join(LOCK)))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_copy_is_made_once_and_again_when_the_source_changes() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let base = Folder::open(root.path()).unwrap();
        let source = root.path().join("source");
        let copied = || lasting(&base, &source, OsStr::new("l.so")).unwrap();
        fs::write(&source, "one").unwrap();
        let path = copied();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        let kept = File::open(&path).unwrap();
        let inode = |file: &File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        assert_eq!(inode(&kept), inode(&File::open(copied()).unwrap()));
        fs::write(&source, "another").unwrap();
        assert_eq!(copied(), path);
        assert_eq!(fs::read(&path).unwrap(), b"another");
        assert_eq!(io::read_to_string(&kept).unwrap(), "one");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }
}
