//! Queue probe: whether a lane always has work under way, tested at moments that the program does not choose.
//!
//! A program with a short queue never has one batch queued behind another. The pauses between short kernels
//! that follow each other are not its kernels' time. Such a program keeps the device from others all the
//! time, and neither its batches nor its estimates show it. So the governor requests a probe now and then:
//! the next launch checks whether the stream still has work before it adds its own. The probability that a
//! probe hits a pause is the pauses' share of the time. If one probe after the other finds work, there are
//! next to no pauses.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

/// So many looks in a row. A program that is busy for nine tenths of the time passes one time in six, and
/// is then charged a tenth more.
const ENOUGH: u32 = 16;

#[derive(Default)]
pub(super) struct Looks {
    asked: AtomicBool,
    /// Looks since one found nothing.
    found: AtomicU32,
}

impl Looks {
    /// Wants to know how it is now. To be called by the governor.
    pub(super) fn ask(&self) {
        self.asked.store(true, Relaxed);
    }

    /// Wants to know it no more: under a new lease, what was asked under the last one has no answer.
    pub(super) fn forget(&self) {
        self.asked.store(false, Relaxed);
    }

    /// What was found says nothing any more, nor would an answer. To be called by the governor.
    pub(super) fn forget_all(&self) {
        self.forget();
        self.tell(false);
    }

    /// Whether somebody has asked since this was last called. By the lane's thread.
    pub(super) fn take_question(&self) -> bool {
        self.asked.load(Relaxed) && self.asked.swap(false, Relaxed)
    }

    /// Tells whether there was work.
    pub(super) fn tell(&self, works: bool) {
        let found = if works { self.found.load(Relaxed).saturating_add(1) } else { 0 };
        self.found.store(found, Relaxed);
    }

    /// Whether there has been work all the time.
    pub(super) fn found_work(&self) -> bool {
        self.found.load(Relaxed) >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_in_a_row_and_one_ends_it() {
        let looks = Looks::default();
        assert!(!looks.take_question());
        for _ in 0..ENOUGH {
            assert!(!looks.found_work());
            looks.ask();
            assert!(looks.take_question() && !looks.take_question());
            looks.tell(true);
        }
        assert!(looks.found_work());
        looks.tell(false);
        assert!(!looks.found_work());
        looks.ask();
        looks.forget();
        assert!(!looks.take_question());
        (0..ENOUGH).for_each(|_| looks.tell(true));
        looks.ask();
        looks.forget_all();
        assert!(!looks.take_question() && !looks.found_work());
    }
}
