//! Whether streams wait for what the program does next.
//!
//! A stream may wait for a value, and its program writes that after more launches. Then no launch may wait for what is
//! outstanding. Nothing tells so beforehand. So the first launch waits in vain for a while. From then on those into
//! streams with unfinished waits pass, until something is seen to be done.
//!
//! What is launched meanwhile is charged like everything else.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::tuning::{LATELY_NS, PATIENCE_AGAIN_NS};

/// Nothing stalls.
const NONE: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub struct Stall {
    /// What had been done when a launch had waited in vain: a number that changes with it.
    progress: AtomicU64,
    /// When that was; zero: never.
    at: AtomicU64,
}

impl Default for Stall {
    fn default() -> Self {
        Self { progress: AtomicU64::new(NONE), at: AtomicU64::new(0) }
    }
}

impl Stall {
    /// A launch into a stream with unfinished waits has waited in vain.
    pub fn begin(&self, progress: u64, now: u64) {
        self.at.store(now, Relaxed);
        self.progress.store(progress, Release);
    }

    /// Whether nothing was done since then. `progress` is asked for what is done by now.
    #[inline]
    pub fn lasts(&self, progress: impl FnOnce() -> u64) -> bool {
        let before = self.progress.load(Acquire);
        if before == NONE {
            return false;
        }
        let lasts = before == progress();
        if !lasts {
            // Another may have begun meanwhile: it stays.
            let _ = self.progress.compare_exchange(before, NONE, Relaxed, Relaxed);
        }
        lasts
    }

    /// Whether there was one at some time.
    #[inline]
    pub fn has_been(&self) -> bool {
        self.at.load(Relaxed) != 0
    }

    /// Whether there was one lately.
    fn was_lately(&self, now: u64) -> bool {
        let at = self.at.load(Relaxed);
        at != 0 && now.saturating_sub(at) <= LATELY_NS
    }

    /// How long a launch into a stream with unfinished waits is to wait, where it would wait for `usual` and what is
    /// outstanding takes `outstanding`.
    #[inline]
    pub fn patience(&self, now: u64, usual: u64, outstanding: u64) -> u64 {
        if !self.was_lately(now) {
            return usual;
        }
        // A long kernel is no wait.
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
        // It does not come back.
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
