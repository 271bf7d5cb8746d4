//! Measures how much of the time that a process holds a device its program uses. The governor asks at each check.
//!
//! Launched work waits in queues and is used up as time passes, not when it is launched. Two figures show how much was
//! used: the estimates of the launched work, and the time for which some thread always had work queued. While work of
//! unknown duration is under way, all of the time counts.

use crate::tuning::FAR_APART_NS;

/// Sums over everything launched on a device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Estimated nanoseconds of all launches.
    pub launched_ns: u64,
    /// The part of them that may not be done yet, at most.
    pub outstanding_ns: u64,
    /// Nanoseconds for which work was always queued.
    pub backlogged_ns: u64,
    /// Number of launches that are known to be done.
    pub completed: u64,
    /// Whether work of unknown duration may be under way.
    pub unknown: bool,
}

impl Totals {
    /// Adds another lane's launches; the caller combines the backlogs.
    pub fn add(&mut self, other: Self) {
        self.launched_ns = self.launched_ns.wrapping_add(other.launched_ns);
        self.outstanding_ns = self.outstanding_ns.saturating_add(other.outstanding_ns);
        self.completed = self.completed.wrapping_add(other.completed);
        self.unknown |= other.unknown;
    }
}

/// How a period was used, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Used {
    /// Its length.
    pub held_ns: u64,
    /// The part in which the device was busy with the program's work, by the estimates.
    pub estimated_ns: u64,
    /// The part in which work was always queued.
    pub backlogged_ns: u64,
    /// The part in which there was no work and nobody else waited.
    pub idle_ns: u64,
    /// Number of launches that were completed until its end, since the process began.
    pub launches: u64,
}

impl Used {
    /// A period of `ns` nanoseconds in which the device was busy with the program's work.
    pub const fn busy(ns: u64) -> Self {
        Self { held_ns: ns, estimated_ns: ns, backlogged_ns: ns, idle_ns: 0, launches: 0 }
    }

    /// The same period if there was no work at its beginning: the part not known to be used was idle.
    pub fn after_idle(self) -> Self {
        Self { idle_ns: self.held_ns - self.alone(), ..self }
    }

    /// The part in which the program held what others might have wanted.
    pub const fn needed_ns(self) -> u64 {
        self.held_ns.saturating_sub(self.idle_ns)
    }

    /// The charge if no other session used the device.
    pub fn alone(self) -> u64 {
        self.estimated_ns.max(self.backlogged_ns).min(self.held_ns)
    }
}

impl core::ops::AddAssign for Used {
    fn add_assign(&mut self, other: Self) {
        self.held_ns = self.held_ns.saturating_add(other.held_ns);
        self.estimated_ns = self.estimated_ns.saturating_add(other.estimated_ns);
        self.backlogged_ns = self.backlogged_ns.saturating_add(other.backlogged_ns);
        self.idle_ns = self.idle_ns.saturating_add(other.idle_ns);
        self.launches = self.launches.max(other.launches);
    }
}

/// Measures the use of a lease.
#[derive(Debug)]
pub struct Usage {
    at: u64,
    /// Estimated nanoseconds of the work that is done.
    served: u64,
    /// Backlog counted so far, on the scale of `Totals::backlogged_ns`.
    backlogged: u64,
    /// Whether work was always under way between the last two calls.
    lasted: bool,
}

impl Usage {
    /// From the opening of the gate, with nothing queued.
    pub const fn new(now: u64, totals: Totals) -> Self {
        let (served, backlogged) = (totals.launched_ns, totals.backlogged_ns);
        Self { at: now, served, backlogged, lasted: false }
    }

    /// From the opening of the gate, with earlier work not done.
    pub const fn with_rest(now: u64, totals: Totals) -> Self {
        let served = totals.launched_ns.saturating_sub(totals.outstanding_ns);
        Self { served, ..Self::new(now, totals) }
    }

    /// When it was last asked (ns).
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// The use of the time since the last call. `busy_since`: since when work was always under way; if others use the
    /// device as well, their work may have run.
    pub fn until(&mut self, now: u64, totals: Totals, busy_since: Option<u64>) -> Used {
        let held_ns = now.saturating_sub(self.at);
        let queued = totals.launched_ns.saturating_sub(self.served);
        let estimated_ns = if totals.unknown { held_ns } else { queued.min(held_ns) };
        // Work that cannot be outstanding any more is done, whatever its estimate.
        let oldest = totals.launched_ns.saturating_sub(totals.outstanding_ns);
        self.served =
            (self.served.saturating_add(estimated_ns)).min(totals.launched_ns).max(oldest);
        let told_ns = totals.backlogged_ns;
        let late_ns = told_ns.saturating_sub(self.backlogged);
        let since = busy_since.unwrap_or(now).clamp(self.at.min(now), now);
        // Work that was under way until the last call ended at some time before it.
        let began = if self.lasted { self.at.midpoint(since) } else { since };
        self.lasted = held_ns > 0 && since <= self.at;
        let busy_ns = now.saturating_sub(began);
        let backlogged_ns = late_ns.max(busy_ns).min(held_ns);
        // A batch that began before the last call covers more than the time since then; the excess makes up for what
        // was missing then. Time that was seen to be busy will be reported again with its batch.
        self.backlogged = self
            .backlogged
            .saturating_add(backlogged_ns)
            .clamp(told_ns.saturating_sub(FAR_APART_NS), told_ns.saturating_add(FAR_APART_NS));
        self.at = now.max(self.at);
        Used { held_ns, estimated_ns, backlogged_ns, idle_ns: 0, launches: totals.completed }
    }

    /// Records that everything launched is done.
    pub fn drained(&mut self, totals: Totals) {
        self.served = totals.launched_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn totals(launched_ns: u64, outstanding_ns: u64) -> Totals {
        Totals { launched_ns, outstanding_ns, ..Totals::default() }
    }

    #[test]
    fn a_long_kernel_is_used_up_as_time_passes() {
        let mut usage = Usage::new(0, totals(0, 0));
        let mut sum = 0;
        for step in 1..=120 {
            sum += usage.until(step * MS, totals(100 * MS, 100 * MS), None).alone();
        }
        assert_eq!(sum, 100 * MS);
    }

    #[test]
    fn launches_with_gaps_use_what_they_take() {
        let mut usage = Usage::new(0, totals(0, 0));
        let mut sum = 0;
        for step in 1..=100 {
            sum += usage.until(step * 2 * MS, totals(step * MS, MS), None).alone();
        }
        assert_eq!(sum, 100 * MS);
    }

    /// Batches do not end when the governor checks.
    #[test]
    fn what_a_batch_tells_late_is_not_lost() {
        let mut usage = Usage::new(0, totals(0, 0));
        let mut sum = Used::default();
        let told = |ns| Totals { backlogged_ns: ns, ..totals(0, 0) };
        for (at, ns) in [(4, 3 * MS + MS / 2), (8, 8 * MS), (12, 11 * MS + MS / 2), (16, 16 * MS)] {
            sum += usage.until(at * MS, told(ns), None);
        }
        assert_eq!(sum.backlogged_ns, 15 * MS + MS / 2);
        // Half a millisecond is left.
        assert_eq!(usage.until(30 * MS, told(16 * MS), None).backlogged_ns, MS / 2);
        assert_eq!(usage.until(40 * MS, told(16 * MS), None).backlogged_ns, 0);
    }

    /// Kernels of 10 ms with pauses of 10 ms: the governor sees part of each, and the lane reports the whole when it is
    /// done.
    #[test]
    fn what_was_seen_and_is_told_of_counts_once() {
        let mut usage = Usage::new(0, totals(0, 0));
        let mut sum = Used::default();
        for look in 1..=500 {
            let at = look * 4 * MS;
            let (round, within) = (at / (20 * MS), at % (20 * MS));
            let told = round * 10 * MS + if within >= 10 * MS { 10 * MS } else { 0 };
            let busy = (8 * MS..10 * MS).contains(&within);
            let totals = Totals { backlogged_ns: told, ..totals(0, 0) };
            sum += usage.until(at, totals, busy.then_some(0));
        }
        assert_eq!(sum.held_ns, 2_000 * MS);
        assert!((990 * MS..=1_000 * MS).contains(&sum.backlogged_ns), "{sum:?}");
    }

    /// The governor does not see when the work ended.
    #[test]
    fn what_lasted_ended_halfway() {
        let mut usage = Usage::new(0, totals(0, 0));
        let mut backlogged = |at: u64, since: Option<u64>| {
            usage.until(at * MS, totals(0, 0), since.map(|at| at * MS)).backlogged_ns / 1_000
        };
        assert_eq!(backlogged(4, Some(1)), 3_000);
        assert_eq!(backlogged(8, None), 0, "it may have been short");
        assert_eq!(backlogged(12, Some(8)), 4_000);
        assert_eq!(backlogged(16, None), 2_000);
        assert_eq!(backlogged(20, None), 0);
        assert_eq!((backlogged(24, Some(20)), backlogged(28, Some(26))), (4_000, 3_000));
    }

    /// Estimates that are too low do not matter if work was always queued, and estimates that are too high cannot
    /// accumulate.
    #[test]
    fn wrong_estimates() {
        let mut usage = Usage::new(0, totals(0, 0));
        let used =
            usage.until(10 * MS, Totals { backlogged_ns: 9 * MS, ..totals(7 * MS, 0) }, None);
        assert_eq!(used.alone(), 9 * MS);
        let mut usage = Usage::new(0, totals(0, 0));
        assert_eq!(usage.until(10 * MS, totals(50 * MS, 2 * MS), None).alone(), 10 * MS);
        // Now idle: only the outstanding part is left.
        assert_eq!(usage.until(30 * MS, totals(50 * MS, 2 * MS), None).alone(), 2 * MS);
        usage.drained(totals(50 * MS, 2 * MS));
        assert_eq!(usage.until(50 * MS, totals(50 * MS, 2 * MS), None).alone(), 0);
    }

    #[test]
    fn what_is_left_of_the_lease_before_is_used_up_in_the_next() {
        let left = totals(50 * MS, 3 * MS);
        let mut usage = Usage::with_rest(0, left);
        let sum: u64 = (1..=10).map(|step| usage.until(step * MS, left, None).alone()).sum();
        assert_eq!(sum, 3 * MS);
        assert_eq!(Usage::new(0, left).until(10 * MS, left, None).alone(), 0);
    }

    #[test]
    fn what_is_not_known_counts_in_full() {
        let mut usage = Usage::new(0, totals(0, 0));
        let unknown = Totals { unknown: true, ..totals(0, 0) };
        assert_eq!(usage.until(10 * MS, unknown, None).alone(), 10 * MS);
        assert_eq!(usage.until(12 * MS, totals(0, 0), Some(0)).alone(), 2 * MS);
    }
}
