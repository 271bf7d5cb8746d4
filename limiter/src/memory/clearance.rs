//! Clearance: near the limit, lets allocations skip the check if the last check passed with the session charged at
//! least as much. [`reconcile`](super::reconcile) grants clearances; [`reservation`](super::reservation) consults them.
//!
//! A program that frees and allocates in a loop near the limit does not need more memory each time, and its own calls
//! are accounted for. Only the driver itself can take more in the meantime. So a clearance ends at once after a call
//! that may make the driver do so, and soon in any case, because the driver also places code unannounced.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use session::ledger::Ledger;

/// Checks may take 1/50 of the time of a program whose charges do not rise.
pub(super) const PART: u64 = 50;
/// Bounds of a clearance's duration: at least, at most before a quick check, and at most before any check. The upper
/// bounds matter when a check was held up.
const LEAST_NS: u64 = 1_000_000;
const QUICK_NS: u64 = 10_000_000;
const LONGEST_NS: u64 = 50_000_000;

/// Each clearance reduces the cleared bytes above the present charges by 1/64.
const FADES: u64 = 64;

/// The charges up to which no check is needed, and until when (ns). Written while the ledger is open.
#[derive(Default)]
pub(super) struct Clearance {
    used: AtomicU64,
    on_device: AtomicU64,
    until: AtomicU64,
}

/// The session's charges in bytes: in total, and on the device itself.
#[derive(Clone, Copy)]
pub(super) struct Charged {
    used: u64,
    on_device: u64,
}

/// The time (ns) over which a check from `begun` to `ended` is spread so that checks take 1/50.
const fn paid_by(begun: u64, ended: u64) -> u64 {
    ended.saturating_sub(begun).saturating_mul(PART)
}

/// Limits the time that checks by NVML take.
#[derive(Default)]
pub(super) struct Spent {
    /// When the checks so far will have taken no more than their part (ns).
    sum: u64,
    /// Like `sum`, without the last check.
    until: u64,
}

impl Spent {
    /// Adds a check that took from `begun` to `ended` (ns). The debt never exceeds twice that check's own time.
    pub(super) fn add(&mut self, begun: u64, ended: u64) {
        let paid = paid_by(begun, ended).min(LONGEST_NS);
        let sum = self.sum.max(begun).saturating_add(paid);
        self.sum = sum.min(ended.saturating_add(paid.saturating_mul(2)));
        self.until = self.sum.saturating_sub(paid);
    }

    /// No further check should start before this time (ns). One check may run early, so that a change is seen at once.
    pub(super) const fn until(&self) -> u64 {
        self.until
    }
}

impl Charged {
    pub(super) fn of(opened: &Ledger<'_>) -> Self {
        Self { used: opened.used(), on_device: opened.on_device() }
    }
}

impl Clearance {
    /// Grants a clearance after a check from `begun` to `ended` (ns) found that the charges fit with `spare` bytes to
    /// spare. The level cleared before is kept as far as `spare` allows, and fades a little each time.
    /// `quick`: the next check is a quick one.
    pub(super) fn give(
        &self,
        charged: Charged,
        spare: u64,
        (begun, ended): (u64, u64),
        quick: bool,
    ) {
        let keep = |level: &AtomicU64, now: u64| {
            let more = level.load(Relaxed).saturating_sub(now);
            level.store(now.saturating_add((more - more / FADES).min(spare)), Relaxed);
        };
        keep(&self.used, charged.used);
        keep(&self.on_device, charged.on_device);
        let most = if quick { QUICK_NS } else { LONGEST_NS };
        self.extend(ended.saturating_add(paid_by(begun, ended).clamp(LEAST_NS, most)));
    }

    /// Sets the end of the clearance (ns).
    pub(super) fn extend(&self, until: u64) {
        self.until.store(until, Relaxed);
    }

    /// Ends the clearance, because the driver may have taken memory by itself.
    pub(super) fn end(&self) {
        self.until.store(0, Relaxed);
    }

    /// Whether these charges are cleared at `now` (ns).
    pub(super) fn covers(&self, charged: Charged, now: u64) -> bool {
        now < self.until.load(Relaxed) && self.is_as_much(charged)
    }

    /// Whether the last clearance covered these charges, even if it has ended.
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
        clearance.give(charged(100, 80), 0, (5 * MS, 5 * MS), true);
        assert!(clearance.covers(charged(100, 80), 5 * MS));
        assert!(clearance.covers(charged(90, 10), 5 * MS));
        assert!(!clearance.covers(charged(101, 80), 5 * MS));
        assert!(!clearance.covers(charged(100, 81), 5 * MS));
    }

    #[test]
    fn it_lasts_for_fifty_times_what_the_check_took_within_bounds() {
        let clearance = Clearance::default();
        let lasts = |took: u64, quick: bool, ns: u64| {
            clearance.give(charged(1, 1), 0, (7 * MS, 7 * MS + took), quick);
            let covers = |now| clearance.covers(charged(1, 1), 7 * MS + took + now);
            covers(ns - 1) && !covers(ns)
        };
        assert!(lasts(5000, true, MS));
        assert!(lasts(MS / 10, true, 5 * MS));
        assert!(lasts(MS, true, 10 * MS));
        assert!(lasts(MS, false, 50 * MS));
        assert!(lasts(20 * MS, false, 50 * MS));
    }

    #[test]
    fn what_was_cleared_a_moment_ago_is_cleared_as_far_as_there_is_room() {
        let clearance = Clearance::default();
        clearance.give(charged(1000, 1000), 0, (0, 0), true);
        clearance.give(charged(200, 200), 800, (MS, MS), true);
        assert!(clearance.covers(charged(988, 988), MS));
        assert!(!clearance.covers(charged(989, 0), MS));
        clearance.give(charged(200, 200), 30, (MS, MS), true);
        assert!(clearance.covers(charged(230, 230), MS));
        assert!(!clearance.covers(charged(231, 0), MS));
        // It fades.
        for _ in 0..400 {
            clearance.give(charged(200, 200), 800, (MS, MS), true);
        }
        assert!(!clearance.covers(charged(264, 0), MS));
    }

    #[test]
    fn checks_take_their_part_of_the_time_and_one_comes_at_once() {
        let mut spent = Spent::default();
        let (mut now, mut checks) = (1000 * MS, 0);
        spent.add(now, now + MS);
        assert!(spent.until() <= now + MS);
        for _ in 0..100_000 {
            if spent.until() <= now {
                spent.add(now, now + MS);
                checks += 1;
            }
            now += MS / 10;
        }
        assert!((200..=202).contains(&checks), "{checks}");
    }

    #[test]
    fn many_checks_that_had_to_be_hold_none_up_for_long() {
        let mut spent = Spent::default();
        for check in 0..1000 {
            spent.add(check * MS, check * MS + MS);
        }
        assert_eq!(spent.until(), 1050 * MS);
        // Nor does a check that was itself held up.
        spent.add(1000 * MS, 1500 * MS);
        assert!(spent.until() <= 1600 * MS);
    }

    #[test]
    fn it_ends_when_the_driver_may_have_taken_something() {
        let clearance = Clearance::default();
        clearance.give(charged(100, 100), 0, (5 * MS, 5 * MS), true);
        clearance.end();
        assert!(!clearance.covers(charged(1, 1), 5 * MS));
        assert!(clearance.is_as_much(charged(100, 100)));
    }
}
