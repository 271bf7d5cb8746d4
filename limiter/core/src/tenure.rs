//! A lease while its gate is open: when the governor checks the program, asks to extend the lease, and gives it up.

use crate::lease::Lease;
use crate::tuning::{
    COSTLY_PAUSE_NS, FIRST_LOOK_NS, KEEP_NS, LEAST_BEFORE_NS, LEAST_LOOK_NS, LOOK_SPREAD_NS,
    NEIGHBOURS_NS, PAUSE_NS, SHARED_PAUSE_NS, SHORTEST_LOOK_NS, SPARSE, UTILIZATION_OVER_NS,
};
use crate::usage::{Totals, Usage, Used};

/// 2^64 divided by the golden ratio: a large odd number with evenly spread bits.
pub const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// A lease while its gate is open. Times are nanoseconds of one monotonic clock.
#[derive(Debug)]
pub struct Tenure {
    /// The lease as it was last granted or extended.
    pub lease: Lease,
    /// Measures the use of the lease.
    pub usage: Usage,
    /// Use that was not reported to the account yet.
    pub used: Used,
    begun: u64,
    /// When to ask to extend the lease.
    renew_at: Option<u64>,
    /// The program's activity at the last check.
    activity: Option<u64>,
    idle_since: Option<u64>,
    /// Whether the unused lease is kept because no other session waits for it.
    pub is_kept: bool,
}

impl Tenure {
    /// For a gate that is about to be opened.
    pub fn new(now: u64, lease: Lease, usage: Usage) -> Self {
        let used = Used::default();
        let renew_at = renewal(now, &lease);
        let (activity, idle_since) = (None, None);
        Self { lease, usage, used, begun: now, renew_at, activity, idle_since, is_kept: false }
    }

    /// Until when the governor may sleep. The first checks come soon, because more may be launched then. With a gate in
    /// streams a check costs next to nothing, so a lease that others may wait for is checked often.
    pub fn sleeps_until(&self, now: u64, in_stream: bool) -> u64 {
        let look = if in_stream && !self.is_kept {
            SHORTEST_LOOK_NS
        } else {
            let mixed = now.wrapping_mul(SPREAD) >> 32;
            let look = LEAST_LOOK_NS + mixed * LOOK_SPREAD_NS / (1 << 32);
            look.min(now.saturating_sub(self.begun).max(FIRST_LOOK_NS))
        };
        now.saturating_add(look).min(self.next())
    }

    /// When the lease ends, or has to be extended.
    pub fn next(&self) -> u64 {
        self.lease.end.min(self.renew_at.unwrap_or(u64::MAX))
    }

    /// Whether the program did something since the last check. `activity` changes with each launch.
    pub fn goes_on(&mut self, activity: u64) -> bool {
        let goes_on = self.activity.replace(activity) != Some(activity);
        if goes_on {
            self.idle_since = None;
        }
        goes_on
    }

    /// Counts the time since the last check. `busy_since`: since when there always was work.
    pub fn look(&mut self, now: u64, totals: Totals, busy_since: Option<u64>) {
        let used = self.usage.until(now, totals, busy_since);
        self.used += if core::mem::take(&mut self.is_kept) { used.after_idle() } else { used };
    }

    /// Counts the time since the last check during a drain. `waits`: all work may only have waited. If no other session
    /// uses the device, all of the time counts, whatever the estimates.
    pub fn look_at_the_rest(&mut self, now: u64, totals: Totals, waits: bool, shared: bool) {
        let used = self.usage.until(now, totals, (!waits).then_some(0));
        let busy = || Used { launches: used.launches, ..Used::busy(used.held_ns) };
        self.used += if shared || waits { used } else { busy() };
    }

    /// Records that the program has no work. Returns for how long (ns).
    pub fn idles(&mut self, now: u64, totals: Totals) -> u64 {
        self.usage.drained(totals);
        now.saturating_sub(*self.idle_since.get_or_insert(now))
    }

    /// How long (ns) the program may leave its lease unused. Keeping it costs nothing if others use the device as well,
    /// or if nobody does, because unused time is not charged. If a handover is cheap, keeping the lease gains little.
    pub fn patience(&self, in_stream: bool, utilization: &LeaseUtilization) -> u64 {
        match self.lease {
            // Charged by the clock, unless others use the device as well.
            Lease { of_several: true, shared: false, .. } => COSTLY_PAUSE_NS,
            // The other devices may wait for this program's next launches.
            Lease { id: None, .. } | Lease { of_several: true, .. } => PAUSE_NS,
            Lease { overlaps: true, .. } => PAUSE_NS,
            Lease { shared: true, .. } if in_stream => SHARED_PAUSE_NS,
            _ if in_stream => SHORTEST_LOOK_NS,
            Lease { shared: true, .. } => PAUSE_NS,
            _ if utilization.is_sparse() => PAUSE_NS,
            _ => COSTLY_PAUSE_NS,
        }
    }

    /// With a gate in streams: whether the lease, unused for `idle_ns`, is kept because no other session waits for it.
    /// `was_kept`: the answer at the last check.
    pub fn keeps(&mut self, idle_ns: u64, was_kept: bool, nobody_waits: bool) -> bool {
        if !was_kept {
            // The time since the last check was not needed; only what the program leaves idle between uses counts as
            // its idle time.
            self.used.idle_ns = self.used.idle_ns.saturating_add(idle_ns);
        }
        self.is_kept = idle_ns < KEEP_NS && nobody_waits;
        self.is_kept
    }

    /// Whether the lease should be extended now.
    pub fn is_to_be_renewed(&self, now: u64) -> bool {
        self.renew_at.is_some_and(|at| now >= at)
    }

    /// Takes the use since the last call, to report it.
    pub fn take_used(&mut self) -> Used {
        core::mem::take(&mut self.used)
    }

    /// Records the answer to a request to extend the lease. `changed`: the limits have changed, so the lease may be too
    /// long.
    pub fn renewed(&mut self, now: u64, lease: Lease, changed: bool) {
        let goes_on = changed || lease.end > self.lease.end;
        self.renew_at = if goes_on { renewal(now, &lease) } else { None };
        self.lease = lease;
    }
}

/// When to ask to extend a lease: at half of its time. Outstanding work is limited by the time that is left, so a lease
/// that will go on must not seem to end.
fn renewal(now: u64, lease: &Lease) -> Option<u64> {
    let early = lease.end.saturating_sub(now) / 2;
    (early >= LEAST_BEFORE_NS).then_some(lease.end - early)
}

/// The recent share of held time that the program uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseUtilization(Option<f64>);

impl LeaseUtilization {
    /// Adds the use of a period.
    pub fn add(&mut self, used: Used) {
        if used.needed_ns() > 0 {
            let held = used.needed_ns() as f64;
            let latest = used.alone() as f64 / held;
            let old = self.0.unwrap_or(latest);
            self.0 = Some(old + (latest - old) * held / (held + UTILIZATION_OVER_NS));
        }
    }

    /// Whether the program leaves the device idle part of the time.
    pub fn is_sparse(&self) -> bool {
        self.0.is_some_and(|utilization| utilization < SPARSE)
    }
}

/// Whether another session uses the device at the same time. A lease only tells this for the moment of its grant; a
/// session seen a moment ago is expected again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Neighbours(Option<u64>);

impl Neighbours {
    /// Records whether a lease is shared; returns whether to expect other sessions.
    pub fn note(&mut self, lease: &Lease, now: u64) -> bool {
        if lease.shared {
            self.0 = Some(now);
        }
        self.0.is_some_and(|at| now.saturating_sub(at) < NEIGHBOURS_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::LONGEST_LOOK_NS;

    const MS: u64 = 1_000_000;

    fn tenure(length: u64) -> Tenure {
        let lease = Lease { id: Some(1), ..Lease::own(0, length, false) };
        Tenure::new(0, lease, Usage::new(0, Totals::default()))
    }

    #[test]
    fn a_lease_is_asked_to_go_on_at_its_half_unless_that_is_too_little() {
        let mut long = tenure(20 * MS);
        assert!(!long.is_to_be_renewed(10 * MS - 1) && long.is_to_be_renewed(10 * MS));
        assert_eq!(long.next(), 10 * MS);
        // The lease was not extended.
        long.renewed(10 * MS, long.lease, false);
        assert!(!long.is_to_be_renewed(20 * MS));
        assert_eq!(long.next(), 20 * MS);
        assert_eq!(tenure(MS - 1).next(), MS - 1);
    }

    #[test]
    fn looks_come_soon_at_first_and_never_later_than_the_lease_ends() {
        let long = tenure(100 * MS);
        assert_eq!(long.sleeps_until(0, false), FIRST_LOOK_NS);
        assert_eq!(long.sleeps_until(0, true), SHORTEST_LOOK_NS);
        for now in (5 * MS..45 * MS).step_by(1_234_567) {
            let look = long.sleeps_until(now, false) - now;
            assert!((LEAST_LOOK_NS..=LONGEST_LOOK_NS).contains(&look), "{look}");
        }
        assert_eq!(long.sleeps_until(49 * MS, false), 50 * MS);
    }

    #[test]
    fn what_is_kept_and_not_used_is_told_as_idle() {
        let mut kept = tenure(30 * MS);
        assert!(kept.goes_on(1) && !kept.goes_on(1));
        kept.look(2 * MS, Totals::default(), None);
        assert_eq!(
            (kept.idles(2 * MS, Totals::default()), kept.idles(3 * MS, Totals::default())),
            (0, MS)
        );
        assert!(kept.keeps(MS, false, true) && kept.is_kept);
        kept.look(6 * MS, Totals::default(), None);
        let used = kept.take_used();
        assert_eq!((used.held_ns, used.idle_ns), (6 * MS, 5 * MS));
        assert!(!kept.keeps(KEEP_NS, true, true) && !kept.keeps(MS, true, false));
    }

    #[test]
    fn who_was_there_a_moment_ago_will_be_there_again() {
        let mut neighbours = Neighbours::default();
        let lease = Lease::own(0, MS, false);
        assert!(!neighbours.note(&lease, 0));
        assert!(neighbours.note(&Lease { shared: true, ..lease }, MS));
        assert!(neighbours.note(&lease, NEIGHBOURS_NS));
        assert!(!neighbours.note(&lease, MS + NEIGHBOURS_NS));
    }
}
