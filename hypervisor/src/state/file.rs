//! The state file: versioned JSON, replaced atomically.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::node::Snapshot;
use crate::socket_folder::is_trusted;

/// Format version. It changes only if an earlier reader would misunderstand the file: unknown fields are ignored, and
/// missing fields have defaults.
const VERSION: u32 = 1;
const NAME: &str = "hypervisor.json";
const LOCK: &str = "hypervisor.lock";
/// Longest file that is read, in bytes.
const LONGEST: u64 = 32 * 1024 * 1024;
/// Most damaged files kept; the last one is replaced.
const ASIDE: u32 = 9;

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    version: u32,
    /// Version of the daemon that wrote the file; for people, like `written`.
    #[serde(default)]
    daemon: String,
    /// Time of writing, in seconds since 1970. Nothing is computed from it.
    #[serde(default)]
    written: u64,
    #[serde(default)]
    node: Snapshot,
}

/// Only the version: the rest of a later version cannot be understood.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Why a state file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// Another user's file, a directory, or a link.
    #[error("it does not belong to user {uid}", uid = rustix::process::geteuid().as_raw())]
    NotOurs,
    #[error("it has {0} bytes; expected at most {LONGEST}")]
    TooLong(u64),
    #[error("its version is {0}; expected {VERSION}")]
    Version(u32),
    #[error("it is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The state file, locked by this daemon.
#[derive(Debug)]
pub(crate) struct StateFile {
    folder: PathBuf,
    path: PathBuf,
    _lock: File,
}

impl StateFile {
    /// Locks the state file of a directory, creating the directory if missing. No other daemon can use the file
    /// meanwhile.
    pub(crate) fn take(folder: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        is_trusted(&fs::metadata(folder)?)?;
        let lock = own_file(&folder.join(LOCK), OpenOptions::new().create(true).append(true))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let problem =
                    "another daemon keeps its state there; name another directory with --state";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, problem));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { folder: folder.to_owned(), path: folder.join(NAME), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state; `None`: no file.
    pub(crate) fn read(&self) -> Result<Option<Snapshot>, Unreadable> {
        let file = match own_file(&self.path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Unreadable::NotOurs);
            }
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        let length = file.take(LONGEST + 1).read_to_end(&mut text)? as u64;
        if length > LONGEST {
            return Err(Unreadable::TooLong(length));
        }
        read(&text).map(Some)
    }

    /// Writes a new file, and renames it over the old one once it is on the disk.
    pub(crate) fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let new = self.folder.join(format!("{NAME}.new"));
        // Left behind by a daemon that was killed while writing.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text = text(snapshot)?;
        if text.len() as u64 > LONGEST {
            return Err(io::Error::other(Unreadable::TooLong(text.len() as u64)));
        }
        let written = write_to(&new, &text).and_then(|()| fs::rename(&new, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        File::open(&self.folder)?.sync_all()
    }

    /// Renames an unreadable file.
    pub(crate) fn put_aside(&self) -> io::Result<PathBuf> {
        let aside = |number| self.folder.join(format!("{NAME}.damaged-{number}"));
        let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
        let to = (1..=ASIDE).map(aside).find(is_free).unwrap_or_else(|| aside(ASIDE));
        fs::rename(&self.path, &to)?;
        Ok(to)
    }
}

fn write_to(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = own_file(path, OpenOptions::new().create_new(true).write(true))?;
    file.write_all(text)?;
    file.sync_all()
}

/// Opens a file of this user, without following a link and without blocking.
fn own_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.uid() == rustix::process::geteuid().as_raw() {
        Ok(file)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn read(text: &[u8]) -> Result<Snapshot, Unreadable> {
    let VersionOnly { version } = serde_json::from_slice(text)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let Written { node, .. } = serde_json::from_slice(text)?;
    Ok(node)
}

fn text(snapshot: &Snapshot) -> io::Result<Vec<u8>> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let written = Written {
        version: VERSION,
        daemon: env!("CARGO_PKG_VERSION").to_owned(),
        written: now.as_secs(),
        node: snapshot.clone(),
    };
    let mut text = serde_json::to_vec(&written)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
