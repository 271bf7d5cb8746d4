//! A page with one member, and operations on it.

use limits::{GpuId, Limits, MemoryLimit};
use session::layout::MemoryKind;
use session::{Membership, Page, PageError};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) const DEVICE: GpuId = GpuId::from_bytes([9; 16]);

pub(crate) fn limits() -> Limits {
    Limits { memory: Some(MemoryLimit { limit: 1000, real: Some(600) }), ..Limits::NONE }
}

pub(crate) fn page(dir: &Path) -> Page {
    Page::open(dir, DEVICE, &limits()).unwrap()
}

pub(crate) fn stage() -> (TempDir, Membership, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let membership = Membership::claim(page(dir.path())).unwrap();
    membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 100).unwrap();
    let path = dir.path().join(format!("{DEVICE}.page"));
    (dir, membership, path)
}

#[track_caller]
pub(crate) fn damaged(membership: &Membership, what: &str) {
    for _ in 0..2 {
        let error = membership.open().map(|_| ()).unwrap_err();
        assert!(matches!(error, PageError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let _ = membership.reap();
}

/// Acts like a program that closes unknown descriptors: the page's descriptor then refers to another file.
pub(crate) fn close_descriptor(page: &Path) {
    let null = File::open("/dev/null").unwrap();
    let numbers: Vec<i32> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|number| {
            fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|file| file == page)
        })
        .collect();
    assert!(!numbers.is_empty());
    for number in numbers {
        // SAFETY: two valid descriptors.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
}
