//! The sessions that there are, found by their directories.

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Error, session};

/// What pages' names end in.
const PAGE: &str = "page";

/// A session's directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Whose it is.
    pub uid: u32,
    /// Its name: the path below the directory of the user's sessions.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its pages, one for each device that it has used.
    pub pages: Vec<PathBuf>,
    /// Whether the `sluice run` that made it still runs.
    pub owned: bool,
}

impl Found {
    /// The process id of the `sluice` that made it.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        session::owner(&self.path).map(|(pid, _)| pid)
    }
}

/// The sessions of this user; of every user for root.
///
/// # Errors
/// [`Error::System`] when a directory that belongs to this user cannot be read.
pub fn list() -> Result<Vec<Found>, Error> {
    let user = rustix::process::getuid();
    if user.is_root() {
        list_in(Path::new(session::ROOT), None)
    } else {
        list_in(Path::new(session::ROOT), Some(user.as_raw()))
    }
}

/// The sessions below `root`, of one user or of all.
fn list_in(root: &Path, only: Option<u32>) -> Result<Vec<Found>, Error> {
    let mut found = Vec::new();
    for base in directories(root)? {
        let name = base.file_name().to_string_lossy().into_owned();
        let uid = name.strip_prefix("sluice-").and_then(|uid| uid.parse().ok());
        let Some(uid) = uid.filter(|uid| only.is_none_or(|only| only == *uid)) else { continue };
        // Anyone can make a directory there; one that pretends to be somebody else's is nothing.
        if base.metadata().is_ok_and(|metadata| metadata.uid() == uid) {
            let base = base.path();
            for directory in directories(&base)? {
                add(&mut found, &base, &directory.path(), uid)?;
                // Sessions within: those of a demo.
                for inner in directories(&directory.path())? {
                    add(&mut found, &base, &inner.path(), uid)?;
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Takes a directory for a session if it has pages, or an owner.
fn add(found: &mut Vec<Found>, base: &Path, path: &Path, uid: u32) -> Result<(), Error> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == PAGE);
    let entries = entries(path)?;
    let mut pages: Vec<PathBuf> = entries.iter().map(DirEntry::path).filter(is_page).collect();
    pages.sort();
    let owned = session::owner(path).is_some() && session::owner_lives(path);
    if owned || !pages.is_empty() {
        let name = path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned();
        found.push(Found { uid, name, path: path.to_owned(), pages, owned });
    }
    Ok(())
}

/// Real directories in `path`, links left out.
fn directories(path: &Path) -> Result<Vec<DirEntry>, Error> {
    let mut entries = entries(path)?;
    entries.retain(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(entries)
}

/// What is in `path`; nothing, where it has gone meanwhile.
fn entries(path: &Path) -> Result<Vec<DirEntry>, Error> {
    let read = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    match read {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(vec![]),
        other => other.map_err(|e| Error::system(format!("cannot read {}", path.display()), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn sessions_are_directories_with_pages_or_an_owner() {
        let root = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let base = root.path().join(format!("sluice-{uid}"));
        let demo = format!("{}-1-0123456789abcdef", u32::MAX);
        for folder in ["env-1", "empty", &demo, &format!("{demo}/tenant-a")] {
            fs::create_dir_all(base.join(folder)).unwrap();
        }
        for page in
            ["env-1/b.page", "env-1/a.page", "env-1/notes", &format!("{demo}/tenant-a/c.page")]
        {
            fs::write(base.join(page), "").unwrap();
        }
        symlink(base.join("env-1"), base.join("link")).unwrap();
        fs::create_dir_all(root.path().join(format!("sluice-{}/env-2", uid + 1))).unwrap();
        symlink(&base, root.path().join(format!("sluice-{}", uid + 3))).unwrap();
        let found = list_in(root.path(), None).unwrap();
        let names: Vec<_> = found.iter().map(|found| found.name.clone()).collect();
        assert_eq!(names, [format!("{demo}/tenant-a"), "env-1".to_owned()]);
        let pages = ["a.page", "b.page"].map(|page| base.join("env-1").join(page));
        assert_eq!((found[1].pages.as_slice(), found[1].owned), (pages.as_slice(), false));
        assert_eq!(list_in(root.path(), Some(uid + 2)).unwrap(), []);
        assert_eq!(list_in(&root.path().join("absent"), None).unwrap(), []);
    }
}
