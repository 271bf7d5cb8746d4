//! Opens another process's memfd safely.
//!
//! The other process may name any of its descriptors, and exchange it at any moment. A descriptor received by
//! pidfd_getfd(2) or in a message would have to be closed again, which may take as long as the other side likes: a
//! lingering socket, a file on a FUSE file system of that process. So the descriptor is not taken over. An `O_PATH`
//! descriptor from `/proc` opens nothing; only if it refers to a memfd is the file opened.

use super::error::GatePageError;
use crate::process::ProcessIdentity;
use rustix::fs::{
    AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, openat, statx,
};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The memfd at a descriptor of a process.
pub(super) fn memory_of(pid: u32, uid: u32, descriptor: i64) -> Result<OwnedFd, GatePageError> {
    let number = i32::try_from(descriptor).ok().filter(|number| *number >= 0);
    let number = number.ok_or(GatePageError::Descriptor(descriptor))?;
    let other = || GatePageError::OtherProcess { pid, uid };
    let process = ProcessIdentity::of(pid).ok_or_else(other)?;
    let owner = fs::metadata(format!("/proc/{pid}")).map_err(|_| other())?.uid();
    if owner != uid {
        return Err(other());
    }
    let file = open(&format!("/proc/{pid}/fd/{number}"), OFlags::PATH)
        .map_err(GatePageError::io("looking up the descriptor"))?;
    // Checked afterwards: it was the same process all along. Otherwise nothing of the other one has been touched.
    if !process.is_running() {
        return Err(other());
    }
    let own = memfd_create("", MemfdFlags::CLOEXEC)
        .map_err(GatePageError::io("making memory without a name"))?;
    if place(file.as_fd())? != place(own.as_fd())? {
        return Err(GatePageError::NotAMemfd);
    }
    open(&format!("/proc/self/fd/{}", file.as_raw_fd()), OFlags::RDWR | OFlags::NONBLOCK)
        .map_err(GatePageError::io("opening it"))
}

fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// The file's type and file system. Memfds are on a file system of the kernel's own, where nothing else can be created.
/// Only the kernel answers this query.
fn place(file: BorrowedFd<'_>) -> Result<(FileType, u32, u32), GatePageError> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::TYPE | StatxFlags::MODE)
        .map_err(GatePageError::io("looking at it"))?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    Ok((kind, found.stx_dev_major, found.stx_dev_minor))
}
