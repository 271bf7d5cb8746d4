//! A lease that is held, and the phases of its end. The roster keeps one per holder.

use crate::density::Company;
use crate::tuning::{GRACE_NS, LONGEST_DRAIN_NS, STOPPED_NS};
use crate::types::{LeaseId, Paid};

/// A lease that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lease: LeaseId,
    pub(crate) paid: Paid,
    pub(crate) granted_at: u64,
    /// The end of the time that was reported and charged.
    pub(crate) told_at: u64,
    pub(crate) ends_at: u64,
    /// While others wait, the lease is not prolonged beyond this.
    pub(crate) turn_ends_at: u64,
    /// The co-holders since `told_at`.
    pub(crate) company: Company,
    pub(crate) phase: Phase,
    /// Whether its worker was told that it may keep the lease while it does not use it.
    pub(crate) may_keep: bool,
    /// Whether the last report said that the lease was kept and not used.
    pub(crate) idle: bool,
    /// Since when it keeps others away who could pay for a turn, and for how long it did so before,
    /// since `told_at`.
    pub(crate) keeps_since: Option<u64>,
    pub(crate) kept_ns: u64,
}

/// The phase of a lease's end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phase {
    /// Others no longer wait for it.
    pub(crate) revoked: bool,
    /// It was ended early, and its worker was told.
    pub(crate) stopped: bool,
    /// Others no longer wait for it, but its report is awaited: its worker has said that all work is done, or it was
    /// stopped and takes long.
    pub(crate) passed: bool,
    /// It was stopped and takes longer than others wait: they share the device with its running work.
    pub(crate) runs_on: bool,
}

impl Held {
    /// A lease that begins.
    pub(crate) fn new(
        (lease, paid): (LeaseId, Paid),
        company: Company,
        now: u64,
        (ends_at, turn_ends_at): (u64, u64),
    ) -> Self {
        Self {
            lease,
            paid,
            granted_at: now,
            told_at: now,
            ends_at,
            turn_ends_at,
            company,
            phase: Phase::default(),
            may_keep: false,
            idle: false,
            keeps_since: None,
            kept_ns: 0,
        }
    }

    /// Whether others have to wait for the lease, or hold leases beside it.
    pub(crate) fn counts(&self) -> bool {
        !(self.phase.revoked || self.phase.passed)
    }

    /// Whether the lease has passed and its remaining work is done in a moment: the time afterwards belongs to others.
    pub(crate) fn is_apart(&self) -> bool {
        self.phase.passed && !self.phase.runs_on
    }

    /// Whether it may be prolonged: it counts, and was not stopped.
    pub(crate) fn goes_on(&self) -> bool {
        self.counts() && !self.phase.stopped
    }

    /// Records whether it excludes others from now on.
    pub(crate) fn keeps_away(&mut self, keeps: bool, now: u64) {
        if !keeps {
            self.kept_ns = self.kept_away_ns(now);
        }
        self.keeps_since = keeps.then_some(self.keeps_since.unwrap_or(now));
    }

    /// How long it has excluded others since `told_at` (ns).
    pub(crate) fn kept_away_ns(&self, now: u64) -> u64 {
        let lately =
            self.keeps_since.map_or(0, |since| now.saturating_sub(since.max(self.told_at)));
        self.kept_ns.saturating_add(lately)
    }

    /// Records a report: a new interval begins, with these co-holders.
    pub(crate) fn told(&mut self, company: Company, now: u64) {
        (self.told_at, self.company, self.kept_ns) = (now, company, 0);
    }

    /// Ends the lease early. `passes`: a preferred session begins beside its running work, which is done by about the
    /// time when the device has switched to the other process.
    pub(crate) fn stop(&mut self, passes: bool, now: u64) {
        (self.phase.stopped, self.phase.passed, self.ends_at) = (true, passes, now);
    }

    /// Records that its worker says that all work is done; its report is awaited like that of a stopped lease. Returns
    /// whether others waited for it.
    pub(crate) fn end(&mut self, now: u64) -> bool {
        if self.phase.runs_on {
            (self.phase.runs_on, self.ends_at) = (false, now);
        }
        if !self.counts() {
            return false;
        }
        if !self.phase.stopped {
            self.ends_at = now;
        }
        self.phase.passed = true;
        self.keeps_away(false, now);
        true
    }

    /// When others continue beside its remaining work, if its worker does not report the end.
    pub(crate) fn passes_at(&self) -> Option<u64> {
        (self.phase.stopped && self.counts()).then(|| self.ends_at.saturating_add(STOPPED_NS))
    }

    /// How much of the time since the last report counts as used without a report: all of it. But a lease that was not
    /// used, whose process then stood still, counts only until its end.
    pub(crate) fn unreported_ns(&self, now: u64) -> u64 {
        let until = if self.idle { now.min(self.ends_at.max(self.told_at)) } else { now };
        until.saturating_sub(self.told_at)
    }

    /// When others stop waiting for the lease if no further report comes.
    pub(crate) fn overdue_at(&self) -> u64 {
        let latest = self.ends_at.saturating_add(LONGEST_DRAIN_NS);
        self.ends_at.max(self.told_at).saturating_add(GRACE_NS).min(latest)
    }

    /// Revokes the lease if it is overdue. Returns whether it is revoked now and was never stopped: nothing may be left
    /// to close its gate.
    pub(crate) fn revoke_if_overdue(&mut self, now: u64) -> bool {
        if self.phase.revoked {
            return false;
        }
        if self.passes_at().is_some_and(|at| at <= now) {
            (self.phase.passed, self.phase.runs_on) = (true, true);
        }
        self.phase.revoked = self.overdue_at() <= now;
        self.phase.revoked && !self.phase.stopped
    }
}
