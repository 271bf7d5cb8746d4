//! The addresses of mapped pages, for a signal handler: no lock, no allocation.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// More mappings than any process has at a time, including the parent's in a forked child.
const MOST: usize = 2048;
/// In [`RangeEntry::start`]: the entry is being filled. No mapping has this address.
const RESERVED: usize = usize::MAX;

#[derive(Debug)]
struct RangeEntry {
    /// The address; 0: the entry is free.
    start: AtomicUsize,
    /// The length in bytes; valid while `start` is an address.
    length: AtomicUsize,
    /// Whether zeros have replaced the file.
    is_gone: AtomicBool,
}

impl RangeEntry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
        }
    }
}

static ENTRIES: [RangeEntry; MOST] = [const { RangeEntry::free() }; MOST];

/// A page's mapping that the handler knows. Must be dropped before the mapping is unmapped.
#[derive(Debug)]
pub(crate) struct Range(&'static RangeEntry);

impl Range {
    /// Registers a mapping; `None`: no room.
    pub(crate) fn new(start: usize, length: usize) -> Option<Self> {
        let free = |entry: &&RangeEntry| {
            entry.start.compare_exchange(0, RESERVED, AcqRel, Relaxed).is_ok()
        };
        let entry = ENTRIES.iter().find(free)?;
        entry.length.store(length, Relaxed);
        entry.start.store(start, Release);
        Some(Self(entry))
    }

    /// Whether zeros have replaced the file in this mapping.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_gone.load(Acquire)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.0.is_gone.store(false, Relaxed);
        self.0.start.store(0, Release);
    }
}

/// Maps zeros over the page that contains `address`; `false`: there is no such page, or mapping fails.
///
/// Two threads at once both do it; what the first one may have written in between is lost anyway.
pub(super) fn put_zeros(address: usize) -> bool {
    let has_it = |entry: &'static RangeEntry| {
        let start = entry.start.load(Acquire);
        let length = entry.length.load(Relaxed);
        let is_here = start != 0 && start != RESERVED && address.wrapping_sub(start) < length;
        is_here.then_some((entry, start, length))
    };
    let Some((entry, start, length)) = ENTRIES.iter().find_map(has_it) else { return false };
    // Stored first, so that a thread that sees zeros knows the reason.
    entry.is_gone.store(true, Release);
    replace(start, length)
}

/// Maps zeros over one page's mapping.
fn replace(start: usize, length: usize) -> bool {
    const NO_FILE: libc::c_int = -1;
    const OFFSET: libc::off_t = 0;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is that of a mapping which its owner still has, and all of its fields are
    // atomics. The bare system call is used because a library that replaces `mmap` may not be safe
    // in signal handlers. The interrupted code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let mapped =
            libc::syscall(libc::SYS_mmap, start, length, protection, flags, NO_FILE, OFFSET);
        *errno = before;
        mapped != -1
    }
}
