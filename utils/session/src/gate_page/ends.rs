//! The daemon sleeps until the work of one of some leases is done.
//!
//! A process can wake it in vain. So each of these words does that once at most: then it is
//! [`End::Unclear`], and the caller waits for it no more.

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

/// How many words one thread can wait for, beside its own.
const MOST: usize = 127;

/// Has the thread that waits look again.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// How often it has rung, for [`AwaitedEnd::wait_for_any`].
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// Rings it.
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
    /// What the word says while it goes on, and once it is over.
    before: u32,
    lease: u32,
}

/// How a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It goes on.
    Ahead,
    /// Its process says that its work is done.
    Reached,
    /// Its process says something else, and is not asked again.
    Unclear,
}

impl AwaitedEnd {
    /// To be called before the process knows of the lease. `None`: the page has no block for the
    /// device.
    #[must_use]
    pub fn new(page: &Arc<PeerGatePage>, device: GpuId, lease: u64) -> Option<Self> {
        let block = page.block_number(device)?;
        let before = page.ended(block)?.load(Acquire);
        Some(Self { page: Arc::clone(page), block, before, lease: number(lease) })
    }

    /// How it stands now.
    #[must_use]
    pub fn look(&self) -> End {
        match self.page.ended(self.block).map(|word| word.load(Acquire)) {
            Some(said) if said == self.lease => End::Reached,
            Some(said) if said == self.before => End::Ahead,
            _ => End::Unclear,
        }
    }

    /// Sleeps until one of the ends may have been reached, or the bell has rung since `rings` was
    /// read. Returns which one's process has called, where that is known: if it is still ahead then,
    /// it is unclear, too. Of many ends only the last ones are awaited.
    ///
    /// # Errors
    /// The system cannot wait for several words (before Linux 5.16, and in some sandboxes), or one
    /// of the pages cannot be accessed.
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
