//! What is known of a worker.

use super::account::Paid;
use super::density::Density;
use super::trust::Seen;
use super::tuning::Tuning;
use super::{Handover, LeaseId, SessionId};

/// A lease that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) lease: LeaseId,
    pub(super) paid: Paid,
    pub(super) granted_at: u64,
    /// The time before this has been reported and charged.
    pub(super) told_at: u64,
    pub(super) ends_at: u64,
    /// While others wait, the lease is not prolonged beyond this.
    pub(super) turn_ends_at: u64,
    /// The co-holders since `told_at`.
    pub(super) company: Company,
    /// Others no longer wait for it.
    pub(super) revoked: bool,
    /// It was ended before its time, and its worker was told.
    pub(super) stopped: bool,
    /// Its worker says that all its work is done, or it was stopped and takes long. Others no longer wait for it, but
    /// its report is awaited.
    pub(super) passed: bool,
    /// It was stopped, and takes longer than others wait: they share the device with what it has running.
    pub(super) runs_on: bool,
    /// Its worker was told that it may keep it while it does not use it.
    pub(super) may_keep: bool,
    /// Its last report said that it was kept and not used.
    pub(super) idle: bool,
    /// Since when it keeps others away who could pay for a turn, and for how long it did so before,
    /// since `told_at`.
    pub(super) keeps_since: Option<u64>,
    pub(super) kept_ns: u64,
}

impl Held {
    /// Whether others have to wait for it, or hold beside it.
    pub(super) fn counts(&self) -> bool {
        !(self.revoked || self.passed)
    }

    /// Whether it has passed, and what it has left is done in a moment: the time after it is others'.
    pub(super) fn is_apart(&self) -> bool {
        self.passed && !self.runs_on
    }

    /// Whether it may go on: it counts, and was not stopped.
    pub(super) fn goes_on(&self) -> bool {
        self.counts() && !self.stopped
    }

    /// It keeps others away from now on, or does not.
    pub(super) fn keeps_away(&mut self, keeps: bool, now: u64) {
        if !keeps {
            self.kept_ns = self.kept_away_ns(now);
        }
        self.keeps_since = keeps.then_some(self.keeps_since.unwrap_or(now));
    }

    /// For how long it has kept others away since `told_at`.
    pub(super) fn kept_away_ns(&self, now: u64) -> u64 {
        let lately =
            self.keeps_since.map_or(0, |since| now.saturating_sub(since.max(self.told_at)));
        self.kept_ns.saturating_add(lately)
    }

    /// When others go on beside what it has left, if its worker does not say that all is done. What a stopped one has
    /// running is a batch. If that takes longer, the hardware's own slicing serves others better than waiting.
    pub(super) fn passes_at(&self, tuning: &Tuning) -> Option<u64> {
        (self.stopped && self.counts()).then(|| self.ends_at.saturating_add(tuning.stopped_ns))
    }

    /// How much of the time since the last report counts as used if nothing is said of it: all of it. But what was not
    /// used, and then stood still as its process was stopped, is not used after its end.
    pub(super) fn unreported_ns(&self, now: u64) -> u64 {
        let until = if self.idle { now.min(self.ends_at.max(self.told_at)) } else { now };
        until.saturating_sub(self.told_at)
    }

    /// When others stop waiting for it if no further report comes.
    pub(super) fn overdue_at(&self, tuning: &Tuning) -> u64 {
        let latest = self.ends_at.saturating_add(tuning.longest_drain_ns);
        self.ends_at.max(self.told_at).saturating_add(tuning.grace_ns).min(latest)
    }
}

/// A worker's co-holders: the other workers that held during an interval, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Company {
    /// How many they were at most. Workers with a revoked lease do not count.
    pub(super) others: u64,
    /// The sum of what each uses of the time that it holds, in millionths.
    pub(super) rates_ppm: u64,
    /// Whether one of them fills the device.
    pub(super) dense: bool,
    /// Whether another session's work may have been on the device; a revoked lease counts, too.
    pub(super) shared: bool,
}

impl Company {
    pub(super) fn add(&mut self, density: &Density) {
        self.others += 1;
        self.rates_ppm = self.rates_ppm.saturating_add(density.rate_ppm());
        self.dense |= density.is_dense();
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) session: SessionId,
    pub(super) density: Density,
    pub(super) handover: Handover,
    pub(super) held: Option<Held>,
    /// Whether it asks.
    pub(super) asks: bool,
    /// All that it was charged.
    pub(super) charged_ns: u64,
    /// What was seen of it from outside.
    pub(super) seen: Option<Seen>,
    /// Whether its last lease was a turn.
    pub(super) takes_turns: bool,
    /// When its last lease ended.
    pub(super) served_at: u64,
    /// When it last stopped asking or holding.
    pub(super) active_until: Option<u64>,
    /// For how long its work usually runs past the end of a lease.
    pub(super) overrun_ns: u64,
    /// How much it has queued when its leases end.
    pub(super) queued_ns: u64,
}

impl Worker {
    pub(super) fn new(session: SessionId, tuning: &Tuning) -> Self {
        let density = Density::unknown(tuning);
        Self {
            session,
            density,
            handover: Handover::default(),
            held: None,
            asks: false,
            charged_ns: 0,
            seen: None,
            takes_turns: false,
            served_at: 0,
            active_until: None,
            overrun_ns: 0,
            queued_ns: 0,
        }
    }

    /// Whether its lease has passed, and nothing to speak of is left of it.
    pub(super) fn has_passed(&self) -> bool {
        self.held.is_some_and(|held| held.is_apart())
    }

    /// Whether its next lease is a turn, and its last one was none.
    pub(super) fn joins_turns(&self) -> bool {
        self.density.is_dense() && !self.takes_turns
    }

    /// Learns from a lease that lasted until its end: all its work is done `overrun_ns` after that.
    pub(super) fn ran_past(&mut self, overrun_ns: u64) {
        self.overrun_ns = self.overrun_ns / 4 * 3 + overrun_ns / 4;
    }

    /// Whether it asked or held in the last `ns`.
    pub(super) fn was_active_within(&self, ns: u64, now: u64) -> bool {
        self.active_until.is_some_and(|until| until.saturating_add(ns) > now)
    }
}
