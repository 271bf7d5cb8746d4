//! The waits of a lane's stream, as its batches cover them.

use super::super::waits::{self, Waits};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// See the module.
pub(super) struct WaitsOfStream {
    pub(super) of: &'static Waits,
    /// How many there were at the end of the last batch that covers one, and its number.
    covered: AtomicU64,
    until: AtomicU64,
}

impl WaitsOfStream {
    pub(super) fn new(stream: usize, context: usize) -> Self {
        let of = waits::of(stream, context);
        Self { of, covered: AtomicU64::new(0), until: AtomicU64::new(0) }
    }

    /// Whether there may have been one in a batch, or later.
    pub(super) fn are_since(&self, number: u64) -> bool {
        self.of.count() != self.covered.load(Acquire) || self.until.load(Acquire) >= number
    }

    /// A batch covers all that there were, so many. To be called by the lane's thread.
    pub(super) fn are_covered_by(&self, number: u64, count: u64) {
        if count != self.covered.load(Relaxed) {
            // In this order: who sees the second sees the first.
            self.until.store(number, Release);
            self.covered.store(count, Release);
        }
    }
}
