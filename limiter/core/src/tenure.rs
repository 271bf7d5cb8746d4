//! A lease while its gate is open: when its holder looks, asks for more, and gives it up.

use crate::lease::Lease;
use crate::tuning::{
    COSTLY_PAUSE_NS, FIRST_LOOK_NS, KEEP_NS, LEAST_BEFORE_NS, LEAST_LOOK_NS, LOOK_SPREAD_NS,
    NEIGHBOURS_NS, PAUSE_NS, SHARED_PAUSE_NS, SHORTEST_LOOK_NS, SPARSE, UTILIZATION_OVER_NS,
};
use crate::usage::{Totals, Usage, Used};

/// A large odd number with its bits spread evenly (2^64 divided by the golden ratio).
pub const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// See the module.
#[derive(Debug)]
pub struct Tenure {
    /// The lease as it stands now.
    pub lease: Lease,
    /// What of it counts as used.
    pub usage: Usage,
    /// What has not been told to the account.
    pub used: Used,
    begun: u64,
    /// When to ask for the lease to go on.
    renew_at: Option<u64>,
    /// What was seen of the program at the last look.
    activity: Option<u64>,
    idle_since: Option<u64>,
    /// It is not used, and kept because nobody else waits for it.
    pub is_kept: bool,
}

impl Tenure {
    /// The gate is about to be opened.
    pub fn new(now: u64, lease: Lease, usage: Usage) -> Self {
        let used = Used::default();
        let renew_at = renewal(now, &lease);
        let (activity, idle_since) = (None, None);
        Self { lease, usage, used, begun: now, renew_at, activity, idle_since, is_kept: false }
    }

    /// Until when the governor may sleep. Its first looks come soon: more may be launched then. With a gate in streams
    /// looking costs next to nothing, and a lease that others may wait for is looked at often.
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

    /// When the lease ends, or is to go on.
    pub fn next(&self) -> u64 {
        self.lease.end.min(self.renew_at.unwrap_or(u64::MAX))
    }

    /// Whether the program did something since the last look. `activity` changes with it.
    pub fn goes_on(&mut self, activity: u64) -> bool {
        let goes_on = self.activity.replace(activity) != Some(activity);
        if goes_on {
            self.idle_since = None;
        }
        goes_on
    }

    /// Counts the time since the last look; `busy_since`: so long there always was work.
    pub fn look(&mut self, now: u64, totals: Totals, busy_since: Option<u64>) {
        let used = self.usage.until(now, totals, busy_since);
        self.used += if core::mem::take(&mut self.is_kept) { used.after_idle() } else { used };
    }

    /// The same while what is left is being done. `waits`: all of it may only have waited. Where no other session uses
    /// the device that is all of the time, whatever the work was taken to need.
    pub fn look_at_the_rest(&mut self, now: u64, totals: Totals, waits: bool, shared: bool) {
        let used = self.usage.until(now, totals, (!waits).then_some(0));
        self.used += if shared || waits { used } else { Used::busy(used.held_ns) };
    }

    /// The program was seen to have nothing to be done. Returns for how long that has been so.
    pub fn idles(&mut self, now: u64, totals: Totals) -> u64 {
        self.usage.drained(totals);
        now.saturating_sub(*self.idle_since.get_or_insert(now))
    }

    /// How long the program may not use its lease. Holding on costs nothing where others use the device as well, or
    /// nobody does: what is not used is not charged. Where a handover is cheap there is little to be won by it.
    pub fn patience(&self, in_stream: bool, utilization: &LeaseUtilization) -> u64 {
        match self.lease {
            // It pays by the clock, unless others use the device as well.
            Lease { of_several: true, shared: false, .. } => COSTLY_PAUSE_NS,
            // The other devices may wait for what it does next.
            Lease { id: None, .. } | Lease { of_several: true, .. } => PAUSE_NS,
            Lease { shared: true, .. } if in_stream => SHARED_PAUSE_NS,
            _ if in_stream => SHORTEST_LOOK_NS,
            Lease { shared: true, .. } => PAUSE_NS,
            _ if utilization.is_sparse() => PAUSE_NS,
            _ => COSTLY_PAUSE_NS,
        }
    }

    /// The lease has not been used for so long, with a gate in streams. Whether it is kept all the same, because nobody
    /// else waits for it; `was_kept`: as it was at the last look.
    pub fn keeps(&mut self, idle_ns: u64, was_kept: bool, nobody_waits: bool) -> bool {
        if !was_kept {
            // It was not needed: what the program leaves idle is what is in between.
            self.used.idle_ns = self.used.idle_ns.saturating_add(idle_ns);
        }
        self.is_kept = idle_ns < KEEP_NS && nobody_waits;
        self.is_kept
    }

    /// Whether the lease is to be asked to go on.
    pub fn is_to_be_renewed(&self, now: u64) -> bool {
        self.renew_at.is_some_and(|at| now >= at)
    }

    /// What has been used since this was last asked, to be told.
    pub fn take_used(&mut self) -> Used {
        core::mem::take(&mut self.used)
    }

    /// The lease has been asked to go on, and stands like this now. `changed`: its limits have, and it may be too long.
    pub fn renewed(&mut self, now: u64, lease: Lease, changed: bool) {
        let goes_on = changed || lease.end > self.lease.end;
        self.renew_at = if goes_on { renewal(now, &lease) } else { None };
        self.lease = lease;
    }
}

/// When to ask for more of a lease: at its half. As much as it has left may be outstanding, and a lease that goes on
/// is not to look as if it ended.
fn renewal(now: u64, lease: &Lease) -> Option<u64> {
    let early = lease.end.saturating_sub(now) / 2;
    (early >= LEAST_BEFORE_NS).then_some(lease.end - early)
}

/// How much of the time that it holds the device the program uses, lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseUtilization(Option<f64>);

impl LeaseUtilization {
    /// Adds what was used of a stretch of time.
    pub fn add(&mut self, used: Used) {
        if used.needed_ns() > 0 {
            let held = used.needed_ns() as f64;
            let latest = used.alone() as f64 / held;
            let old = self.0.unwrap_or(latest);
            self.0 = Some(old + (latest - old) * held / (held + UTILIZATION_OVER_NS));
        }
    }

    /// Whether it leaves the device idle part of the time.
    pub fn is_sparse(&self) -> bool {
        self.0.is_some_and(|utilization| utilization < SPARSE)
    }
}

/// Whether another session uses the device at the same time. A lease tells how it was when it was
/// granted; those who were there a moment ago will be there again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Neighbours(Option<u64>);

impl Neighbours {
    /// A lease tells of others or does not; whether to count on them.
    pub fn note(&mut self, lease: &Lease, now: u64) -> bool {
        if lease.shared {
            self.0 = Some(now);
        }
        !lease.exclusive && self.0.is_some_and(|at| now.saturating_sub(at) < NEIGHBOURS_NS)
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
        // It does not go on.
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
        assert!(!neighbours.note(&Lease { exclusive: true, ..lease }, NEIGHBOURS_NS));
        assert!(!neighbours.note(&lease, MS + NEIGHBOURS_NS));
    }
}
