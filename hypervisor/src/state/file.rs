//! The file: versioned JSON that is there as a whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::node::Snapshot;
use crate::socket_folder::is_trusted;

/// The version of what is written. It changes only if an earlier reader would misunderstand it: fields
/// that a reader does not know are ignored, and fields that are missing have defaults.
const VERSION: u32 = 1;
const NAME: &str = "hypervisor.json";
const LOCK: &str = "hypervisor.lock";
/// A longer file is none of a daemon.
const LONGEST: u64 = 32 * 1024 * 1024;
/// How many damaged files are kept. The last one is replaced.
const ASIDE: u32 = 9;

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    version: u32,
    /// The daemon that wrote it. For people, as the next one.
    #[serde(default)]
    daemon: String,
    /// When, in seconds since 1970 by the wall clock. Nothing is computed with it.
    #[serde(default)]
    written: u64,
    #[serde(default)]
    node: Snapshot,
}

/// Only the version: whatever else a later one says cannot be understood.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Why a state cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// Another user's, a folder, a link: anything may be there.
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

/// The file of one daemon.
#[derive(Debug)]
pub(crate) struct StateFile {
    folder: PathBuf,
    path: PathBuf,
    _lock: File,
}

impl StateFile {
    /// Takes the file in a folder, which is made if it is not there. Nobody else can take it meanwhile.
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

    /// `None`: there is no file.
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

    /// Writes a new file, and puts it in the place of the old one once it is on the disk.
    pub(crate) fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let new = self.folder.join(format!("{NAME}.new"));
        // What a daemon left that was killed while it wrote.
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

    /// Keeps a file that cannot be read under another name.
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

/// Opens a file of this user's, not by a link and without waiting.
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
