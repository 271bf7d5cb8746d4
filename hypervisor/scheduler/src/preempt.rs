//! Leases that end before their time, because another worker is to have the device now.
//!
//! Only a worker whose gates are in its streams can be stopped: its device goes on with what runs
//! and no further. For the others a lease ends when it is not prolonged.

use std::collections::BTreeSet;

use limits::Priority;
use limits::turns;

use super::account::Paid;
use super::worker::Held;
use super::{Handover, LeaseId, ScheduleError, Scheduler, WorkerId};

impl Scheduler {
    /// Says how a worker's gates work. Until then they are on its threads.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn set_handover(
        &mut self,
        worker: WorkerId,
        handover: Handover,
    ) -> Result<(), ScheduleError> {
        let state = self.workers.get_mut(&worker).ok_or(ScheduleError::UnknownWorker(worker))?;
        state.handover = handover;
        Ok(())
    }

    /// The leases that end now, before the time that was granted. Each is named once. Their workers
    /// are to be told at once; they report as ever. To be called with [`Self::decide`], after every
    /// change: what is granted there may begin beside what a stopped lease has running.
    pub fn to_stop(&mut self, now: u64) -> Vec<(WorkerId, LeaseId)> {
        self.stop_turns(now);
        core::mem::take(&mut self.stops)
    }

    /// Sets the length of a round.
    pub(super) fn set_rounds(&mut self, now: u64) {
        if now < self.rounds_at {
            return;
        }
        self.rounds_at = now.saturating_add(turns::round_ns(1, 0, Handover::InStream) / 2);
        let mut sessions = BTreeSet::new();
        let mut handover = Handover::InStream;
        for (id, worker) in &self.workers {
            let takes_part = worker.held.is_some()
                || self.asking.contains(id)
                || worker.was_active_within(turns::PERIOD_NS, now);
            if takes_part && worker.density.is_dense() {
                sessions.insert(worker.session);
                if worker.handover == Handover::OnThread {
                    handover = Handover::OnThread;
                }
            }
        }
        let shares = sessions.iter().filter_map(|session| self.sessions.get(session));
        let sum_ppm = shares.map(|session| u64::from(session.account.turns_ppm())).sum();
        let round_ns = turns::round_ns(sessions.len() as u64, sum_ppm, handover);
        for session in self.sessions.values_mut() {
            session.account.set_round(round_ns);
        }
    }

    /// Ends the leases that others should not wait for.
    pub(super) fn stop_turns(&mut self, now: u64) {
        if self.asking.is_empty() {
            return;
        }
        for id in self.holding.clone() {
            let Some(held) = self.stoppable(id).filter(|held| held.ends_at > now) else { continue };
            if !self.has_to_stop(id, held, now) {
                continue;
            }
            if let Some(held) = self.workers.get_mut(&id).and_then(|state| state.held.as_mut()) {
                held.stopped = true;
                held.ends_at = now;
                self.stops.push((id, held.lease));
            }
        }
    }

    /// When the next turn ends that can be stopped.
    pub(super) fn turn_ends_at(&self, now: u64) -> Option<u64> {
        let held = self.holding.iter().filter_map(|&id| self.stoppable(id));
        held.map(|held| held.turn_ends_at.min(held.ends_at)).filter(|&at| at > now).min()
    }

    fn stoppable(&self, worker: WorkerId) -> Option<Held> {
        let state = self.workers.get(&worker)?;
        state.held.filter(|held| held.counts() && state.handover == Handover::InStream)
    }

    fn has_to_stop(&self, worker: WorkerId, held: Held, now: u64) -> bool {
        let Ok(session) = self.session_of(worker) else { return false };
        let low = self.priority(session) == Priority::Low;
        if low && held.paid == Paid::Spare && self.high_wants(session, now) {
            return true;
        }
        match (self.strongest_waiting(worker, 0, now), held.paid) {
            (None, _) | (Some(Paid::Spare), Paid::Own) => false,
            (Some(Paid::Own), Paid::Spare) => true,
            (Some(_), _) if held.turn_ends_at <= now => true,
            (Some(_), _) => low && held.paid == Paid::Own && self.high_is_behind(session, now),
        }
    }
}
