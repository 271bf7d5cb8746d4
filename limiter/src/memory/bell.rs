//! How the reconciler is woken.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::time::Duration;
use rustix::thread::{Timespec, futex};

/// Nobody needs to be woken, or there is no reconciler; it is about; it sleeps.
const RUNG: u32 = 0;
const QUIET: u32 = 1;
const ASLEEP: u32 = 2;

/// See the module.
pub(crate) struct Bell(AtomicU32);

impl Default for Bell {
    fn default() -> Self {
        Self(AtomicU32::new(RUNG))
    }
}

impl Bell {
    /// Has the reconciler look soon.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.0.load(Relaxed) != RUNG && self.0.swap(RUNG, AcqRel) == ASLEEP {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Whether it was rung since this was last asked.
    pub(super) fn was_rung(&self) -> bool {
        self.0.swap(QUIET, AcqRel) == RUNG
    }

    /// Sleeps for a time, or until rung for.
    pub(super) fn sleep(&self, longest: Duration) {
        if self.0.compare_exchange(QUIET, ASLEEP, AcqRel, Acquire).is_ok() {
            let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: 0 };
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, ASLEEP, Some(&longest));
        }
    }
}
