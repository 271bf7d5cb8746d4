//! Lets a thread of the daemon sleep until the work of any of several leases is done.
//!
//! A process can wake it for no reason. So each word does that at most once: then it is [`End::Unclear`], and the
//! caller no longer waits for it.

use super::block::number;
use super::peer::PeerGatePage;
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use limits::GpuId;
use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
use std::sync::Arc;

/// The most words that one thread can wait for, besides its bell.
const MOST: usize = 127;

/// Wakes the waiting thread.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// Number of rings so far, for [`AwaitedEnd::wait_for_any`].
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// Rings the bell.
    pub fn ring(&self) {
        self.0.fetch_add(1, AcqRel);
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
    }
}

/// A lease whose end is awaited.
#[derive(Clone, Debug)]
pub struct AwaitedEnd {
    page: Arc<PeerGatePage>,
    block: usize,
    /// The word's value during the lease, and after its end.
    before: u32,
    lease: u32,
}

/// The state of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Still running.
    Ahead,
    /// Its process reports that its work is done.
    Reached,
    /// Its process reported something else, and is no longer trusted.
    Unclear,
}

impl AwaitedEnd {
    /// Must be called before the process learns of the lease. `None`: the page has no block for the device.
    #[must_use]
    pub fn new(page: &Arc<PeerGatePage>, device: GpuId, lease: u64) -> Option<Self> {
        let block = page.block_number(device)?;
        let before = page.ended(block)?.load(Acquire);
        Some(Self { page: Arc::clone(page), block, before, lease: number(lease) })
    }

    /// The present state.
    #[must_use]
    pub fn look(&self) -> End {
        match self.page.ended(self.block).map(|word| word.load(Acquire)) {
            Some(said) if said == self.lease => End::Reached,
            Some(said) if said == self.before => End::Ahead,
            _ => End::Unclear,
        }
    }

    /// Sleeps until one of the ends may have been reached, or the bell has rung since `rings` was read. Returns the
    /// index of the end whose process has woken the thread, if known; if that end is still [`End::Ahead`], treat it as
    /// unclear. Only the last [`MOST`] ends are awaited.
    ///
    /// # Errors
    /// The system cannot wait for several words (before Linux 5.16, and in some sandboxes), or one of the pages cannot
    /// be accessed.
    pub fn wait_for_any(
        ends: &[Self],
        bell: &Bell,
        rings: u32,
    ) -> rustix::io::Result<Option<usize>> {
        let first = ends.len().saturating_sub(MOST);
        let ends = &ends[first..];
        let words = ends.iter().map(|end| Some((end.page.ended(end.block)?, end.before)));
        let mut all = vec![wait_for(&bell.0, rings, WaitFlags::PRIVATE)];
        for word in words {
            let (word, before) = word.ok_or(Errno::FAULT)?;
            all.push(wait_for(word, before, WaitFlags::empty()));
        }
        match waitv(&all, WaitvFlags::empty(), None, ClockId::Monotonic) {
            Ok(index) => Ok(index.checked_sub(1).map(|index| first + index)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn wait_for(word: &AtomicU32, value: u32, flags: WaitFlags) -> Wait {
    let mut wait = Wait::new();
    wait.val = value.into();
    wait.uaddr = WaitPtr::new(ptr::from_ref(word).cast_mut().cast());
    wait.flags = WaitFlags::SIZE_U32 | flags;
    wait
}
