//! The daemon's side of the page of the node.

use core::sync::atomic::AtomicU64;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::words::{self, WORDS};
use super::{LENGTH, NodeFigures, NodePageError};
use crate::page::fault::{self, Range};

/// A page of the node that this process writes; removed on drop.
#[derive(Debug)]
pub struct NodePageWriter {
    path: PathBuf,
    /// The file's inode.
    file: u64,
    /// Declared before `map`, so that it is dropped first. Other programs of this user can write to the file, and
    /// truncate it.
    _range: Range,
    map: MmapRaw,
}

impl NodePageWriter {
    /// Creates an empty page. Replaces an existing page, which ages for those who have it mapped. Root's page is
    /// readable by everyone, another user's by that user.
    ///
    /// # Errors
    /// [`NodePageError::Io`], [`NodePageError::TooMany`], [`NodePageError::Taken`].
    pub fn create(path: &Path) -> Result<Self, NodePageError> {
        if !may_be_replaced(path) {
            return Err(NodePageError::Taken(path.to_owned()));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".draft-{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let made = Self::create_as(&draft, path);
        if made.is_err() {
            let _ = fs::remove_file(&draft);
        }
        made
    }

    fn create_as(draft: &Path, path: &Path) -> Result<Self, NodePageError> {
        let io = |what| move |source| NodePageError::Io { what, source };
        // Left by an earlier process with this id.
        let _ = fs::remove_file(draft);
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, draft, flags, Mode::RUSR | Mode::WUSR)
            .map_err(NodePageError::io("making it"))?;
        let file = File::from(file);
        file.set_len(LENGTH as u64).map_err(io("making it long enough"))?;
        fault::install();
        let map = MmapOptions::new().len(LENGTH).map_raw(&file).map_err(io("mapping it"))?;
        let range = Range::new(map.as_ptr().addr(), LENGTH).ok_or(NodePageError::TooMany)?;
        let number = file.metadata().map_err(io("looking at it"))?.ino();
        let page = Self { path: path.to_owned(), file: number, _range: range, map };
        words::write_head(page.words());
        let mode = if rustix::process::geteuid().is_root() { 0o644 } else { 0o600 };
        file.set_permissions(fs::Permissions::from_mode(mode)).map_err(io("letting it be read"))?;
        fs::rename(draft, path).map_err(io("giving it its name"))?;
        Ok(page)
    }

    /// Publishes the present figures.
    pub fn publish(&self, figures: &NodeFigures) {
        words::write(self.words(), figures);
    }

    /// Removes the file, unless another daemon has replaced it.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping is that long, page-aligned, and lives as long as `self`. Any bytes are valid atomics.
        unsafe { &*self.map.as_ptr().cast::<[AtomicU64; WORDS]>() }
    }
}

/// Whether nothing exists there, or only a page of an earlier daemon.
fn may_be_replaced(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut beginning = [0; 8];
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => {
            File::from(file).read_exact(&mut beginning).is_ok() && words::is_page(beginning)
        }
        Err(error) => error == Errno::NOENT,
    }
}

impl Drop for NodePageWriter {
    fn drop(&mut self) {
        self.remove();
    }
}
