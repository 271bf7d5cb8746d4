//! The readers' side of the page of the node.

use core::sync::atomic::AtomicU64;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::words::{self, WORDS};
use super::{LENGTH, NodeFigures, NodePageError};
use crate::page::fault::{self, Range};

/// A page of the node, mapped read-only.
#[derive(Debug)]
pub struct NodePage {
    /// `None` only during drop, before the memory is unmapped.
    range: Option<Range>,
    start: ptr::NonNull<[AtomicU64; WORDS]>,
}

// SAFETY: the memory is only read, as atomics, and stays mapped as long as this is there.
unsafe impl Send for NodePage {}
// SAFETY: as above.
unsafe impl Sync for NodePage {}

impl NodePage {
    /// Maps the page at a path. Only pages of root and of this user are accepted: other users could have written
    /// anything.
    ///
    /// # Errors
    /// [`NodePageError`]
    pub fn open(path: &Path) -> Result<Self, NodePageError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            openat(CWD, path, flags, Mode::empty()).map_err(NodePageError::io("opening it"))?;
        let file = File::from(file);
        let found = file
            .metadata()
            .map_err(|source| NodePageError::Io { what: "looking at it", source })?;
        let own = rustix::process::geteuid().as_raw();
        if found.uid() != 0 && found.uid() != own {
            return Err(NodePageError::Stranger { found: found.uid() });
        }
        if !found.is_file() || found.len() < LENGTH as u64 {
            return Err(NodePageError::NoPage);
        }
        fault::install();
        // SAFETY: a new mapping at an address of the system's choice.
        let start =
            unsafe { mmap(ptr::null_mut(), LENGTH, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(NodePageError::io("mapping it"))?;
        let Some(start) = ptr::NonNull::new(start.cast()) else {
            return Err(NodePageError::NoPage);
        };
        let page = Self { range: Range::new(start.addr().get(), LENGTH), start };
        if page.range.is_none() {
            return Err(NodePageError::TooMany);
        }
        Ok(page)
    }

    /// A consistent copy of the contents.
    ///
    /// # Errors
    /// [`NodePageError`]; [`NodePageError::NoPage`] if the page was truncated meanwhile.
    pub fn read(&self) -> Result<NodeFigures, NodePageError> {
        // SAFETY: the mapping is that long, page-aligned, and lives as long as `self`. Any bytes are valid atomics.
        // Where the file is cut short, the handler for pages maps zeros.
        let words = unsafe { self.start.as_ref() };
        let found = words::read(words);
        if self.range.as_ref().is_some_and(Range::is_gone) {
            return Err(NodePageError::NoPage);
        }
        found
    }
}

impl Drop for NodePage {
    fn drop(&mut self) {
        self.range = None;
        // SAFETY: the mapping is this one's own, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), LENGTH) };
    }
}
