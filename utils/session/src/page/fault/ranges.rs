//! Where pages are mapped, for a signal handler to look up: no lock, no allocation.

use crate::layout::Layout;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// Bytes of a mapping.
const LENGTH: usize = size_of::<Layout>();
/// More than a process has at a time. What its parent had mapped when it was forked counts.
const MOST: usize = 512;

#[derive(Debug)]
struct Entry {
    /// Address, zero where there is none.
    start: AtomicUsize,
    /// Whether the file has been replaced by zeros.
    is_gone: AtomicBool,
}

static ENTRIES: [Entry; MOST] =
    [const { Entry { start: AtomicUsize::new(0), is_gone: AtomicBool::new(false) } }; MOST];

/// A page's mapping that the handler knows. To be dropped before it is unmapped.
#[derive(Debug)]
pub(in super::super) struct Range(&'static Entry);

impl Range {
    /// Makes a mapping known, if there is room.
    pub(in super::super) fn new(start: usize) -> Option<Self> {
        let free = |entry: &&Entry| entry.start.compare_exchange(0, start, AcqRel, Relaxed).is_ok();
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

/// Puts zeros in the place of the page that `address` is in; `false`: it is in none, or that fails.
///
/// Two threads that come at once do it twice: what the first may have written there since was lost
/// already.
pub(super) fn put_zeros(address: usize) -> bool {
    let has_it = |entry: &'static Entry| {
        let start = entry.start.load(Acquire);
        (start != 0 && address.wrapping_sub(start) < LENGTH).then_some((entry, start))
    };
    let Some((entry, start)) = ENTRIES.iter().find_map(has_it) else { return false };
    // First: whoever sees zeros can tell why.
    entry.is_gone.store(true, Release);
    replace(start)
}

/// Maps zeros over a page.
fn replace(start: usize) -> bool {
    const NO_FILE: libc::c_int = -1;
    const OFFSET: libc::off_t = 0;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is that of a mapping which its owner still has, all of whose fields are atomics;
    // the bare system call, because a library that stands in for `mmap` need not be fit for signal
    // handlers. The interrupted code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let mapped =
            libc::syscall(libc::SYS_mmap, start, LENGTH, protection, flags, NO_FILE, OFFSET);
        *errno = before;
        mapped != -1
    }
}
