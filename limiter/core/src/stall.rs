//! Detects streams that wait for what their program does next.
//!
//! A stream may wait for a value that its program writes after further launches. Then no launch may wait for
//! outstanding work, which nothing shows beforehand. So the first launch waits in vain for a while. From then on
//! launches into streams with unfinished waits pass, until there is progress.
//!
//! Launches meanwhile are charged like all others.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::tuning::{LATELY_NS, PATIENCE_AGAIN_NS};

/// No stall.
const NONE: u64 = u64::MAX;

/// The stall of one device, shared by threads.
#[derive(Debug)]
pub struct Stall {
    /// The progress when a launch had waited in vain.
    progress: AtomicU64,
    /// When the last stall began (ns); 0: never.
    at: AtomicU64,
}

impl Default for Stall {
    fn default() -> Self {
        Self { progress: AtomicU64::new(NONE), at: AtomicU64::new(0) }
    }
}

impl Stall {
    /// Records that a launch into a stream with unfinished waits has waited in vain. `progress`: a number that changes
    /// whenever work is done.
    pub fn begin(&self, progress: u64, now: u64) {
        self.at.store(now, Relaxed);
        self.progress.store(progress, Release);
    }

    /// Whether there was no progress since then; `progress` returns the current number.
    #[inline]
    pub fn lasts(&self, progress: impl FnOnce() -> u64) -> bool {
        let before = self.progress.load(Acquire);
        if before == NONE {
            return false;
        }
        let lasts = before == progress();
        if !lasts {
            // If another stall has begun meanwhile, it stays.
            let _ = self.progress.compare_exchange(before, NONE, Relaxed, Relaxed);
        }
        lasts
    }

    /// Whether there has ever been a stall.
    #[inline]
    pub fn has_been(&self) -> bool {
        self.at.load(Relaxed) != 0
    }

    /// Whether there was a stall recently.
    fn was_lately(&self, now: u64) -> bool {
        let at = self.at.load(Relaxed);
        at != 0 && now.saturating_sub(at) <= LATELY_NS
    }

    /// How long (ns) a launch into a stream with unfinished waits should wait: `usual`, or less if there was a stall
    /// recently; `outstanding` is the estimated outstanding work.
    #[inline]
    pub fn patience(&self, now: u64, usual: u64, outstanding: u64) -> u64 {
        if !self.was_lately(now) {
            return usual;
        }
        // Waiting for a long kernel is no stall.
        usual.min(outstanding.saturating_mul(2).max(PATIENCE_AGAIN_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_lasts_until_something_is_done() {
        let stall = Stall::default();
        assert!(!stall.lasts(|| 0) && !stall.has_been());
        stall.begin(7, 1);
        assert!(stall.has_been() && stall.lasts(|| 7) && stall.lasts(|| 7));
        assert!(!stall.lasts(|| 8));
        // A stall that is over stays over.
        assert!(!stall.lasts(|| 7));
        stall.begin(8, 2);
        assert!(stall.lasts(|| 8));
    }

    #[test]
    fn the_next_vain_wait_is_short_unless_much_is_outstanding() {
        let stall = Stall::default();
        let patience = |now, outstanding| stall.patience(now, 200_000_000, outstanding);
        assert_eq!(patience(1, 0), 200_000_000);
        stall.begin(1, 1);
        assert_eq!(patience(2, 1_000_000), PATIENCE_AGAIN_NS);
        assert_eq!(patience(2, 80_000_000), 160_000_000);
        assert_eq!(patience(2, 500_000_000), 200_000_000);
        assert_eq!(patience(LATELY_NS + 2, 0), 200_000_000);
    }
}
