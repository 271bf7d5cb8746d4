//! Probes: giving the device to one worker alone for a moment, to see what it does when no other
//! slows it down.
//!
//! While a probe is wished for, no other worker is granted or prolonged, so the others' leases run
//! out. The worker's use of the time after that is its utilization.
//!
//! A probe of each would take long if several workers become backlogged, as programs do that begin
//! to work. So they are all taken for dense: each gets one exclusive turn, and that turn's
//! measurement shows what it is.

use super::account::Paid;
use super::density::{Class, Density};
use super::tuning::Tuning;
use super::worker::Worker;
use super::{Scheduler, WorkerId};

#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) worker: WorkerId,
    started_at: u64,
    before: Class,
    /// Time alone that has been reported.
    seen_ns: u64,
}

impl Scheduler {
    /// Whether another worker's probe, or the turn of a suspected worker, keeps this one away.
    pub(super) fn is_kept_away(&self, worker: WorkerId) -> bool {
        if self.probe.is_some_and(|probe| probe.worker != worker) {
            return true;
        }
        if self.suspects_since.is_none() {
            return false;
        }
        let is_suspected = self.is_suspected(worker);
        let keeps = |id: &WorkerId| {
            let suspected = self.workers.get(id).filter(|other| other.density.is_suspected());
            suspected.is_some_and(|other| match other.held {
                Some(held) => held.counts(),
                // Suspected workers do not keep each other away: they take ordinary turns.
                None => !is_suspected && self.can_begin(other),
            })
        };
        self.holding.iter().chain(&self.asking).any(|id| *id != worker && keeps(id))
    }

    pub(super) fn is_suspected(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|state| state.density.is_suspected())
    }

    fn can_begin(&self, worker: &Worker) -> bool {
        self.sessions
            .get(&worker.session)
            .is_some_and(|session| session.account.can_pay(Paid::Own, false, 0))
    }

    /// Takes workers that may have begun to fill the device for dense, if there are several. To be
    /// called before anything is granted, so that none of the present holders is prolonged beside
    /// the others.
    pub(super) fn suspect_several(&mut self, now: u64) {
        /// Below this number, workers are probed one after the other.
        const SEVERAL: usize = 2;
        let tuning = self.tuning;
        if let Some(since) = self.suspects_since {
            let mut left = false;
            for state in self.workers.values_mut() {
                state.density.end_overdue_suspicion(now, &tuning);
                left |= state.density.is_suspected();
            }
            if left {
                return;
            }
            // All other workers were kept away during this time.
            let took = now.saturating_sub(since);
            self.suspects_since = None;
            self.trusts_until = now.saturating_add(took.saturating_mul(tuning.trust_times));
        }
        if self.probe.is_some() || now < self.trusts_until {
            return;
        }
        let those = |are: fn(&Density, u64, &Tuning) -> bool| -> Vec<WorkerId> {
            let is = |id: &&WorkerId| {
                self.workers.get(id).is_some_and(|state| are(&state.density, now, &tuning))
            };
            self.holding.iter().filter(is).copied().collect()
        };
        let mut suspects = those(Density::is_suspect);
        let mut spacing = 1;
        if suspects.len() < SEVERAL && now >= self.probe_after {
            // Nothing has changed, but it is time to make sure.
            suspects = those(Density::is_unsure);
            spacing = tuning.probe_spacing / 2;
        }
        if suspects.len() < SEVERAL {
            return;
        }
        let turns: u64 = suspects.iter().map(|&id| self.own_turn(id).min(tuning.probe_ns)).sum();
        let until = now.saturating_add(turns).saturating_add(tuning.probe_limit_ns);
        for id in &suspects {
            self.suspect(*id, now, until);
        }
        self.probe_after = now.saturating_add(turns.saturating_mul(spacing));
    }

    /// Suspects a worker. With a small share, a turn is shorter than the time wanted for a
    /// measurement: then one turn has to be enough.
    fn suspect(&mut self, worker: WorkerId, now: u64, until: u64) {
        let wanted_ns = self.own_turn(worker).min(self.tuning.known_ns);
        if let Some(state) = self.workers.get_mut(&worker) {
            self.suspects_since.get_or_insert(now);
            state.density.suspect(wanted_ns, until);
        }
    }

    /// Starts a probe of a worker that has just been granted or prolonged, if its class is in doubt
    /// and has been so for longer than that of the other holders.
    pub(super) fn consider_probe(&mut self, worker: WorkerId, now: u64) {
        if self.probe.is_some() || self.suspects_since.is_some() || now < self.probe_after {
            return;
        }
        let in_doubt = self.holding.iter().filter(|&&id| self.is_in_doubt(id, now));
        let longest = in_doubt
            .min_by_key(|id| (self.workers.get(id).map(|state| state.density.measured_at()), **id));
        if longest == Some(&worker)
            && let Some(state) = self.workers.get_mut(&worker)
        {
            let before = state.density.probe_begins();
            self.probe = Some(Probe { worker, started_at: now, before, seen_ns: 0 });
        }
    }

    /// Whether the worker's class should be known better. Whether a dense worker is really dense
    /// matters only to other dense workers.
    fn is_in_doubt(&self, worker: WorkerId, now: u64) -> bool {
        let Some(density) = self.workers.get(&worker).map(|state| &state.density) else {
            return false;
        };
        let is_other_dense = |id: &WorkerId| {
            *id != worker && self.workers.get(id).is_some_and(|other| other.density.is_dense())
        };
        // A worker that has never been alone does not know how long its work takes either.
        let matters = || {
            !density.is_dense()
                || density.known_ppm(&self.tuning).is_none()
                || self.asking.iter().chain(&self.holding).any(is_other_dense)
        };
        let wants = density.wants_probe(now, &self.tuning) || density.is_suspect(now, &self.tuning);
        wants && matters()
    }

    /// Counts a report towards the probe.
    pub(super) fn probe_told(
        &mut self,
        worker: WorkerId,
        held_ns: u64,
        alone: bool,
        done: bool,
        now: u64,
    ) {
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.worker == worker) else {
            return;
        };
        if alone {
            probe.seen_ns = probe.seen_ns.saturating_add(held_ns);
        }
        if done || probe.seen_ns >= self.tuning.probe_ns {
            self.end_probe(now);
        }
    }

    pub(super) fn end_overdue_probe(&mut self, now: u64) {
        if self.probe_ends_at().is_some_and(|end| end <= now) {
            self.end_probe(now);
        }
    }

    pub(super) fn probe_ends_at(&self) -> Option<u64> {
        Some(self.probe?.started_at.saturating_add(self.tuning.probe_limit_ns))
    }

    fn end_probe(&mut self, now: u64) {
        let Some(probe) = self.probe.take() else { return };
        let took = now.saturating_sub(probe.started_at);
        self.probe_after = now.saturating_add(took.saturating_mul(self.tuning.probe_spacing));
        let Some(state) = self.workers.get_mut(&probe.worker) else { return };
        if probe.seen_ns >= self.tuning.known_ns || !state.density.is_often_backlogged() {
            state.density.probe_ends(probe.before, now, &self.tuning);
        } else {
            // The worker could not pay for enough time at once: its own turns will show its class.
            self.suspect(probe.worker, now, now.saturating_add(self.tuning.probe_limit_ns));
        }
    }
}
