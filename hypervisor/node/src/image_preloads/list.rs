//! An allocation's own `ld.so.preload`, mounted into its container: Sluice's lines, followed by the image's.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};

use crate::injection;
use crate::pool::AllocationKey;

/// The list's file name in an allocation's directory.
pub(crate) const LIST: &str = "ld.so.preload";
/// File beside it that tells people what became of the image's list.
const OUTCOME: &str = "image-preloads.txt";

/// Why a list is not written.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The mounted file is not an allocation's list.
    #[error("{0}; expected a file ALLOCATION/{LIST} in {1}")]
    NotOurs(String, String),
    /// The list cannot be opened or written.
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

/// An allocation's list, open for writing.
#[derive(Debug)]
pub(super) struct List {
    folder: OwnedFd,
    file: File,
    told: String,
}

impl List {
    /// Opens the file mounted from `source` if it is the list of an allocation in this directory. Works on descriptors
    /// and follows no link.
    pub(super) fn open(allocations: &Path, source: &Path) -> Result<Self, ListError> {
        let told = source.display().to_string();
        let not_ours = || ListError::NotOurs(told.clone(), allocations.display().to_string());
        let failed = |error: rustix::io::Errno| ListError::Io(told.clone(), error.into());
        let key = source.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        let key = key.and_then(AllocationKey::named).ok_or_else(not_ours)?;
        if source.file_name() != Some(OsStr::new(LIST)) {
            return Err(not_ours());
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let all = open(allocations, flags | OFlags::PATH, Mode::empty()).map_err(failed)?;
        let beneath =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let none = Mode::empty();
        let folder = openat2(&all, key.as_str(), flags | OFlags::RDONLY, none, beneath);
        let folder = folder.map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat2(&folder, LIST, flags, none, beneath).map_err(failed)?);
        // The path is only what the runtime claims to have mounted: it must be the file just opened.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mounted = File::from(open(source, flags, none).map_err(failed)?);
        let found = file.metadata().and_then(|own| Ok((own, mounted.metadata()?)));
        let (own, mounted) = found.map_err(|error| ListError::Io(told.clone(), error))?;
        let is_it = (own.dev(), own.ino()) == (mounted.dev(), mounted.ino());
        if !is_it || !own.is_file() || own.nlink() != 1 {
            return Err(not_ours());
        }
        Ok(Self { folder, file, told })
    }

    /// Writes Sluice's lines and then `images`, in place because the inode is mounted. The file starts with Sluice's
    /// lines at all times.
    pub(super) fn write(&self, images: &[u8]) -> Result<(), ListError> {
        let own = injection::preload_text();
        let length = u64::try_from(own.len()).unwrap_or_default();
        let failed = |error| ListError::Io(self.told.clone(), error);
        self.file.write_all_at(own.as_bytes(), 0).map_err(failed)?;
        self.file.set_len(length).map_err(failed)?;
        self.file.write_all_at(images, length).map_err(|error| {
            // Removes a truncated name.
            _ = self.file.set_len(length);
            failed(error)
        })
    }

    /// Writes the outcome for people, in the container and on the node. Nothing depends on it.
    pub(super) fn tell(&self, outcome: &str) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, OUTCOME, flags, Mode::from_raw_mode(0o644));
        if let Ok(file) = file {
            _ = File::from(file).write_all(format!("{outcome}\n").as_bytes());
        }
    }
}

/// The path of the list in an allocation's directory.
pub(crate) fn of(folder: &Path) -> PathBuf {
    folder.join(LIST)
}
