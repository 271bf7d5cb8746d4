//! The addresses at which pages are mapped, for a signal handler: no lock, no allocation.

use crate::layout::PageLayout;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// The length of a mapping in bytes.
const LENGTH: usize = size_of::<PageLayout>();
/// More mappings than a process has at a time. In a forked child, the parent's count, too.
const MOST: usize = 512;

#[derive(Debug)]
struct RangeEntry {
    /// The address; zero if the entry is free.
    start: AtomicUsize,
    /// Whether the file has been replaced by zeros.
    is_gone: AtomicBool,
}

static ENTRIES: [RangeEntry; MOST] =
    [const { RangeEntry { start: AtomicUsize::new(0), is_gone: AtomicBool::new(false) } }; MOST];

/// A page's mapping that the handler knows. To be dropped before it is unmapped.
#[derive(Debug)]
pub(in super::super) struct Range(&'static RangeEntry);

impl Range {
    /// Makes a mapping known, if there is room.
    pub(in super::super) fn new(start: usize) -> Option<Self> {
        let free =
            |entry: &&RangeEntry| entry.start.compare_exchange(0, start, AcqRel, Relaxed).is_ok();
        ENTRIES.iter().find(free).map(Self)
    }

    /// Whether the mapping is not of the file any more.
    pub(in super::super) fn is_gone(&self) -> bool {
        self.0.is_gone.load(Acquire)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.0.is_gone.store(false, Relaxed);
        self.0.start.store(0, Release);
    }
}

/// Maps zeros over the page that contains `address`; `false`: there is no such page, or mapping
/// fails.
///
/// Two threads at once both do it. What the first may have written there in between was lost
/// already.
pub(super) fn put_zeros(address: usize) -> bool {
    let has_it = |entry: &'static RangeEntry| {
        let start = entry.start.load(Acquire);
        (start != 0 && address.wrapping_sub(start) < LENGTH).then_some((entry, start))
    };
    let Some((entry, start)) = ENTRIES.iter().find_map(has_it) else { return false };
    // Stored first, so that a thread that sees zeros knows why.
    entry.is_gone.store(true, Release);
    replace(start)
}

/// Maps zeros over one page.
fn replace(start: usize) -> bool {
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
            libc::syscall(libc::SYS_mmap, start, LENGTH, protection, flags, NO_FILE, OFFSET);
        *errno = before;
        mapped != -1
    }
}
