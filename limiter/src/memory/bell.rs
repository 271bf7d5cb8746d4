//! Wakes the reconciler thread. Allocating and freeing calls ring the bell; the reconciler sleeps on it.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::time::Duration;
use rustix::thread::{Timespec, futex};

/// States of the futex word. `RUNG`: a check is due (also before the first reconciler starts), so no wake-up is
/// needed. `QUIET`: the reconciler is awake. `ASLEEP`: it waits on the futex.
const RUNG: u32 = 0;
const QUIET: u32 = 1;
const ASLEEP: u32 = 2;

/// A futex that the reconciler sleeps on.
pub(crate) struct Bell(AtomicU32);

impl Default for Bell {
    fn default() -> Self {
        Self(AtomicU32::new(RUNG))
    }
}

impl Bell {
    /// Requests a reconciliation soon.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.0.load(Relaxed) != RUNG && self.0.swap(RUNG, AcqRel) == ASLEEP {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Whether the bell was rung since the previous call of this function.
    pub(super) fn was_rung(&self) -> bool {
        self.0.swap(QUIET, AcqRel) == RUNG
    }

    /// Sleeps until the bell is rung, for at most `longest` (whole seconds).
    pub(super) fn sleep(&self, longest: Duration) {
        if self.0.compare_exchange(QUIET, ASLEEP, AcqRel, Acquire).is_ok() {
            let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: 0 };
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, ASLEEP, Some(&longest));
        }
    }
}
