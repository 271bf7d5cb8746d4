//! A lease that is held.

use crate::density::Company;
use crate::tuning::{GRACE_NS, LONGEST_DRAIN_NS, STOPPED_NS};
use crate::types::{LeaseId, Paid};

/// A lease that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lease: LeaseId,
    pub(crate) paid: Paid,
    pub(crate) granted_at: u64,
    /// The time before this has been reported and charged.
    pub(crate) told_at: u64,
    pub(crate) ends_at: u64,
    /// While others wait, the lease is not prolonged beyond this.
    pub(crate) turn_ends_at: u64,
    /// The co-holders since `told_at`.
    pub(crate) company: Company,
    pub(crate) phase: Phase,
    /// Its worker was told that it may keep it while it does not use it.
    pub(crate) may_keep: bool,
    /// Its last report said that it was kept and not used.
    pub(crate) idle: bool,
    pub(crate) kept: Kept,
}

/// How far a lease has come towards its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phase {
    /// Others no longer wait for it.
    pub(crate) revoked: bool,
    /// It was ended before its time, and its worker was told.
    pub(crate) stopped: bool,
    /// Its worker says that all its work is done, or it was stopped and takes long. Others no longer wait for it, but
    /// its report is awaited.
    pub(crate) passed: bool,
    /// It was stopped, and takes longer than others wait: they share the device with what it has running.
    pub(crate) runs_on: bool,
}

/// For how long a lease has kept others away who could have paid for a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    since: Option<u64>,
    /// Before that, since the last report.
    before_ns: u64,
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
            kept: Kept::default(),
        }
    }

    /// Whether others have to wait for it, or hold beside it.
    pub(crate) fn counts(&self) -> bool {
        !(self.phase.revoked || self.phase.passed)
    }

    /// Whether it has passed, and what it has left is done in a moment: the time after it is others'.
    pub(crate) fn is_apart(&self) -> bool {
        self.phase.passed && !self.phase.runs_on
    }

    /// Whether it may go on: it counts, and was not stopped.
    pub(crate) fn goes_on(&self) -> bool {
        self.counts() && !self.phase.stopped
    }

    /// It keeps others away from now on, or does not.
    pub(crate) fn keeps_away(&mut self, keeps: bool, now: u64) {
        if !keeps {
            self.kept.before_ns = self.kept_away_ns(now);
        }
        self.kept.since = keeps.then_some(self.kept.since.unwrap_or(now));
    }

    /// For how long it has kept others away since `told_at`.
    pub(crate) fn kept_away_ns(&self, now: u64) -> u64 {
        let lately = self.kept.since.map_or(0, |since| now.saturating_sub(since.max(self.told_at)));
        self.kept.before_ns.saturating_add(lately)
    }

    /// A report has come: a new interval begins, beside these.
    pub(crate) fn told(&mut self, company: Company, now: u64) {
        (self.told_at, self.company, self.kept.before_ns) = (now, company, 0);
    }

    /// Ends it now, before its time. A preferred session begins beside what it has running: that is done about when the
    /// device has gone over to another process.
    pub(crate) fn stop(&mut self, passes: bool, now: u64) {
        (self.phase.stopped, self.phase.passed, self.ends_at) = (true, passes, now);
    }

    /// Its worker says that all work is done. Whether others waited for it; its report is awaited as that of a lease that
    /// was stopped.
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

    /// When others go on beside what it has left, if its worker does not say that all is done.
    pub(crate) fn passes_at(&self) -> Option<u64> {
        (self.phase.stopped && self.counts()).then(|| self.ends_at.saturating_add(STOPPED_NS))
    }

    /// How much of the time since the last report counts as used if nothing is said of it: all of it. But what was not
    /// used, and then stood still as its process was stopped, is not used after its end.
    pub(crate) fn unreported_ns(&self, now: u64) -> u64 {
        let until = if self.idle { now.min(self.ends_at.max(self.told_at)) } else { now };
        until.saturating_sub(self.told_at)
    }

    /// When others stop waiting for it if no further report comes.
    pub(crate) fn overdue_at(&self) -> u64 {
        let latest = self.ends_at.saturating_add(LONGEST_DRAIN_NS);
        self.ends_at.max(self.told_at).saturating_add(GRACE_NS).min(latest)
    }

    /// Revokes it if it is overdue. Whether it is now, and was never stopped: nobody may be there to close its gate.
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
