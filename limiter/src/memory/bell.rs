//! How calls wake the reconciler.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::time::Duration;
use rustix::thread::{Timespec, futex};

/// The states. `RUNG`: no wake-up is needed, or there is no reconciler. `QUIET`: the reconciler is awake.
/// `ASLEEP`: it sleeps.
const RUNG: u32 = 0;
const QUIET: u32 = 1;
const ASLEEP: u32 = 2;

/// The reconciler's bell.
pub(crate) struct Bell(AtomicU32);

impl Default for Bell {
    fn default() -> Self {
        Self(AtomicU32::new(RUNG))
    }
}

impl Bell {
    /// Makes the reconciler check soon.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.0.load(Relaxed) != RUNG && self.0.swap(RUNG, AcqRel) == ASLEEP {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Whether the bell was rung since the last call of this.
    pub(super) fn was_rung(&self) -> bool {
        self.0.swap(QUIET, AcqRel) == RUNG
    }

    /// Sleeps for a time, or until the bell is rung.
    pub(super) fn sleep(&self, longest: Duration) {
        if self.0.compare_exchange(QUIET, ASLEEP, AcqRel, Acquire).is_ok() {
            let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: 0 };
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, ASLEEP, Some(&longest));
        }
    }
}
