//! Clearance: what a check has found to fit fits a moment later, too.
//!
//! Close to the limit a check comes before each allocation. But a program that frees and allocates there over and
//! over does not need more each time: its own calls are accounted for. So a check clears the session to be charged
//! what it was charged a moment ago, for a while. Only the driver itself can take more in this time. It ends at once
//! where a call may have made the driver do so, and soon in any case: code is placed without a call that says so.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use session::ledger::Ledger;

/// The part of the time (1/50) that checks of a program may take which does not need more than it had.
pub(super) const PART: u64 = 50;
/// The clearance by a check lasts at least this long.
const LEAST_NS: u64 = 1_000_000;

/// Each check takes this part (1/64) off what is cleared beyond the present charges.
const FADES: u64 = 64;

/// How much the session may be charged on a device without a check, and until when. Written while the ledger is open.
#[derive(Default)]
pub(super) struct Clearance {
    used: AtomicU64,
    on_device: AtomicU64,
    until: AtomicU64,
}

/// What the session is charged: in all, and on the device itself.
#[derive(Clone, Copy)]
pub(super) struct Charged {
    used: u64,
    on_device: u64,
}

/// For how long nothing else may be checked if a check takes its part of the time.
pub(super) const fn paid_by(begun: u64, ended: u64) -> u64 {
    ended.saturating_sub(begun).saturating_mul(PART)
}

impl Charged {
    pub(super) fn of(opened: &Ledger<'_>) -> Self {
        Self { used: opened.used(), on_device: opened.on_device() }
    }
}

impl Clearance {
    /// A check that took from `begun` to `ended` has found that these charges fit, and `spare` bytes more. So much of
    /// that is cleared as was cleared before, and a little less each time.
    pub(super) fn give(&self, charged: Charged, spare: u64, begun: u64, ended: u64) {
        let keep = |level: &AtomicU64, now: u64| {
            let more = level.load(Relaxed).saturating_sub(now);
            level.store(now.saturating_add((more - more / FADES).min(spare)), Relaxed);
        };
        keep(&self.used, charged.used);
        keep(&self.on_device, charged.on_device);
        self.extend(begun.saturating_add(paid_by(begun, ended).max(LEAST_NS)));
    }

    /// What was cleared needs no check until then.
    pub(super) fn extend(&self, until: u64) {
        self.until.store(until, Relaxed);
    }

    /// The driver may have taken memory by itself.
    pub(super) fn end(&self) {
        self.until.store(0, Relaxed);
    }

    /// Whether these charges need no check.
    pub(super) fn covers(&self, charged: Charged, now: u64) -> bool {
        now < self.until.load(Relaxed) && self.is_as_much(charged)
    }

    /// Whether the last clearance was for as much, however long ago.
    pub(super) fn is_as_much(&self, charged: Charged) -> bool {
        charged.used <= self.used.load(Relaxed) && charged.on_device <= self.on_device.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn charged(used: u64, on_device: u64) -> Charged {
        Charged { used, on_device }
    }

    #[test]
    fn it_is_for_as_much_and_no_more() {
        let clearance = Clearance::default();
        assert!(!clearance.covers(charged(0, 0), 0));
        clearance.give(charged(100, 80), 0, 5 * MS, 5 * MS);
        assert!(clearance.covers(charged(100, 80), 5 * MS));
        assert!(clearance.covers(charged(90, 10), 5 * MS));
        assert!(!clearance.covers(charged(101, 80), 5 * MS));
        assert!(!clearance.covers(charged(100, 81), 5 * MS));
    }

    #[test]
    fn it_lasts_for_fifty_times_what_the_check_took_and_a_millisecond_at_least() {
        let clearance = Clearance::default();
        let lasts = |took: u64, ns: u64| {
            clearance.give(charged(1, 1), 0, 7 * MS, 7 * MS + took);
            let covers = |now| clearance.covers(charged(1, 1), now);
            covers(7 * MS + ns - 1) && !covers(7 * MS + ns)
        };
        assert!(lasts(5000, MS));
        assert!(lasts(2 * MS, 100 * MS));
    }

    #[test]
    fn what_was_cleared_a_moment_ago_is_cleared_as_far_as_there_is_room() {
        let clearance = Clearance::default();
        clearance.give(charged(1000, 1000), 0, 0, 0);
        clearance.give(charged(200, 200), 800, MS, MS);
        assert!(clearance.covers(charged(988, 988), MS));
        assert!(!clearance.covers(charged(989, 0), MS));
        clearance.give(charged(200, 200), 30, MS, MS);
        assert!(clearance.covers(charged(230, 230), MS));
        assert!(!clearance.covers(charged(231, 0), MS));
        // It fades.
        for _ in 0..400 {
            clearance.give(charged(200, 200), 800, MS, MS);
        }
        assert!(!clearance.covers(charged(264, 0), MS));
    }

    #[test]
    fn it_ends_when_the_driver_may_have_taken_something() {
        let clearance = Clearance::default();
        clearance.give(charged(100, 100), 0, 5 * MS, 5 * MS);
        clearance.end();
        assert!(!clearance.covers(charged(1, 1), 5 * MS));
        assert!(clearance.is_as_much(charged(100, 100)));
    }
}
