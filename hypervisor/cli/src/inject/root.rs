//! The files below a folder that is, or will be, the root of other processes. Links in it are followed as those
//! processes would: none leads out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::Error;

/// No file that is read here is larger.
const MOST_BYTES: u64 = 64 << 20;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An open root.
pub(super) struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// # Errors
    /// [`Error::System`] if there is no such folder.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let fd = fs::open(path, FOLDER, Mode::empty())
            .map_err(|e| Error::system(format!("cannot open {}", path.display()), e))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// How people name a file of it.
    pub(super) fn told(&self, path: &str) -> String {
        self.path.join(path.trim_start_matches('/')).display().to_string()
    }

    fn failed(&self, what: &str, path: &str, error: impl Into<io::Error>) -> Error {
        Error::system(format!("cannot {what} {}", self.told(path)), error)
    }

    fn at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        fs::openat2(&self.fd, path, flags | OFlags::CLOEXEC, Mode::empty(), inside)
    }

    /// Whether there is something, behind links.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.at(path, OFlags::PATH).is_ok()
    }

    /// Whether a path leads to the file that `other` is outside of the root.
    pub(super) fn is(&self, path: &str, other: &Path) -> bool {
        let found = self.at(path, OFlags::PATH).ok();
        let found = found.and_then(|found| File::from(found).metadata().ok());
        let other = other.metadata().ok();
        found
            .zip(other)
            .is_some_and(|(found, other)| (found.dev(), found.ino()) == (other.dev(), other.ino()))
    }

    /// What a regular file holds; `None`: there is none.
    ///
    /// # Errors
    /// [`Error::System`]
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let failed = |error: io::Error| self.failed("read", path, error);
        let file = match self.at(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() || found.len() > MOST_BYTES {
            return Err(failed(io::Error::other("it is not a regular file of a usual size")));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    /// The folder of `path`, and the name in it.
    fn parent<'a>(&self, path: &'a str) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = if folder.is_empty() { "." } else { folder };
        Ok((self.at(folder, FOLDER)?, OsStr::new(name)))
    }

    /// Makes a folder, and those that it is in.
    ///
    /// # Errors
    /// [`Error::System`]
    pub(super) fn make_folder(&self, path: &str) -> Result<(), Error> {
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
        for end in ends.chain([path.len()]) {
            let folder = path.get(..end).unwrap_or(path);
            if self.at(folder, FOLDER).is_ok() {
                continue;
            }
            let made = self.parent(folder).and_then(|(above, name)| {
                fs::mkdirat(&above, name, Mode::from_raw_mode(0o755))?;
                // The umask has taken rights away.
                fs::chmodat(&above, name, Mode::from_raw_mode(0o755), AtFlags::empty())
            });
            made.map_err(|error| self.failed("make", folder, error))?;
        }
        Ok(())
    }

    /// Puts a file in its place in one step. Who had the old one open keeps it. Owner and rights of an old one stay;
    /// a new one has `mode`.
    ///
    /// # Errors
    /// [`Error::System`], also if there is a link or another thing that is no file; nothing has changed then.
    pub(super) fn put(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Error> {
        let failed = |error: io::Error| self.failed("write", path, error);
        let (folder, name) = self.parent(path).map_err(|error| failed(error.into()))?;
        let before = self.file_at(&folder, name).map_err(failed)?;
        let mut draft = OsStr::new(".").to_owned();
        draft.push(name);
        draft.push(format!(".{}", std::process::id()));
        let _ = fs::unlinkat(&folder, &draft, AtFlags::empty());
        let written = write_draft(&folder, &draft, bytes, mode, before.as_ref())
            .and_then(|()| Ok(fs::renameat(&folder, &draft, &folder, name)?))
            .and_then(|()| Ok(fs::fsync(&folder)?));
        if written.is_err() {
            let _ = fs::unlinkat(&folder, &draft, AtFlags::empty());
        }
        written.map_err(failed)
    }

    /// The regular file of that name.
    fn file_at(&self, folder: impl AsFd, name: &OsStr) -> io::Result<Option<std::fs::Metadata>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(folder, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(found) => {
                let found = File::from(found).metadata()?;
                if found.is_file() {
                    return Ok(Some(found));
                }
                let what =
                    if found.is_symlink() { "a symbolic link" } else { "not a regular file" };
                Err(io::Error::other(format!("it is {what}; expected a regular file")))
            }
        }
    }

    /// Removes a file. `false`: there was none.
    ///
    /// # Errors
    /// [`Error::System`], also if it is a link or another thing that is no file.
    pub(super) fn remove(&self, path: &str) -> Result<bool, Error> {
        let failed = |error: io::Error| self.failed("remove", path, error);
        let (folder, name) = match self.parent(path) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(error) => return Err(failed(error.into())),
        };
        if self.file_at(&folder, name).map_err(failed)?.is_none() {
            return Ok(false);
        }
        fs::unlinkat(&folder, name, AtFlags::empty()).map_err(|error| failed(error.into()))?;
        Ok(true)
    }

    /// Removes a folder that is empty.
    pub(super) fn remove_if_empty(&self, path: &str) {
        if let Ok((folder, name)) = self.parent(path) {
            let _ = fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
        }
    }
}

fn write_draft(
    folder: impl AsFd,
    draft: &OsStr,
    bytes: &[u8],
    mode: u32,
    before: Option<&std::fs::Metadata>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(fs::openat(folder, draft, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    let mode = match before {
        Some(before) => {
            std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()))?;
            before.mode() & 0o777
        }
        None => mode,
    };
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        (folder, root)
    }

    #[test]
    fn links_end_at_the_root() {
        let (folder, root) = root();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), "outside").unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::fs::write(folder.path().join("real/file"), "inside").unwrap();
        symlink("/real", folder.path().join("absolute")).unwrap();
        symlink("../../../../real", folder.path().join("above")).unwrap();
        symlink(outside.path(), folder.path().join("out")).unwrap();
        for path in ["absolute/file", "above/file", "real/file"] {
            assert_eq!(root.read(path).unwrap().as_deref(), Some(&b"inside"[..]), "{path}");
        }
        assert_eq!(root.read("out/file").unwrap(), None);
        assert!(root.put("out/file", b"x", 0o644).is_err());
        assert!(root.make_folder("out/new").is_err());
        assert!(!root.remove("out/file").unwrap());
        assert_eq!(std::fs::read(outside.path().join("file")).unwrap(), b"outside");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        root.put("absolute/new", b"x", 0o644).unwrap();
        assert_eq!(std::fs::read(folder.path().join("real/new")).unwrap(), b"x");
    }

    #[test]
    fn a_file_is_replaced_and_not_written_to() {
        let (folder, root) = root();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let mut open = File::open(&path).unwrap();
        root.put("file", b"new", 0o644).unwrap();
        let mut old = String::new();
        open.read_to_string(&mut old).unwrap();
        assert_eq!((old.as_str(), std::fs::read(&path).unwrap()), ("old", b"new".to_vec()));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        root.put("fresh", b"", 0o644).unwrap();
        assert_eq!(std::fs::metadata(folder.path().join("fresh")).unwrap().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
        assert!(root.remove("file").unwrap());
        assert!(!root.remove("file").unwrap());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let (folder, root) = root();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        std::fs::write(folder.path().join("file"), "kept").unwrap();
        symlink("file", folder.path().join("link")).unwrap();
        for (path, why) in [("folder", "not a regular file"), ("link", "a symbolic link")] {
            let error = root.put(path, b"x", 0o644).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert!(root.remove(path).is_err());
        }
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"kept");
        assert!(root.read("folder").is_err());
    }
}
