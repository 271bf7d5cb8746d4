//! Queue probe: tests at moments that the program does not choose whether a lane always has work under way. The
//! governor requests probes; the lane's thread answers them.
//!
//! A program with a short queue never has one batch queued behind another, and the pauses between its short kernels do
//! not count as their time. So it may occupy the device all the time, and neither its batches nor its estimates show
//! it. Therefore the governor requests a probe now and then: the next launch checks whether the stream still has work
//! before it adds its own. The probability that a probe hits a pause is the pauses' share of the time. If many
//! consecutive probes find work, there are next to no pauses.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};

/// Consecutive probes that have to find work. A program that is busy for nine tenths of the time passes one time in
/// six, and is then charged a tenth more.
const ENOUGH: u32 = 16;

#[derive(Default)]
pub(super) struct Looks {
    asked: AtomicBool,
    /// Probes since the last one that found no work.
    found: AtomicU32,
}

impl Looks {
    /// Requests a probe. Called by the governor.
    pub(super) fn ask(&self) {
        self.asked.store(true, Relaxed);
    }

    /// Withdraws the request: a request under the last lease must not be answered under a new one.
    pub(super) fn forget(&self) {
        self.asked.store(false, Relaxed);
    }

    /// Discards results and request. Called by the governor.
    pub(super) fn forget_all(&self) {
        self.forget();
        self.tell(false);
    }

    /// Takes the request, if there is one. Called by the lane's thread.
    pub(super) fn take_question(&self) -> bool {
        self.asked.load(Relaxed) && self.asked.swap(false, Relaxed)
    }

    /// Records whether the probe found work.
    pub(super) fn tell(&self, works: bool) {
        let found = if works { self.found.load(Relaxed).saturating_add(1) } else { 0 };
        self.found.store(found, Relaxed);
    }

    /// Whether enough consecutive probes found work.
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
