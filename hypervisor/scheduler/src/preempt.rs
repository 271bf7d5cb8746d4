//! Leases that end before their time, because another worker is to have the device now.
//!
//! Only a worker whose gates are in its streams can be stopped: its device goes on with what runs
//! and no further. For the others a lease ends when it is not prolonged.

use std::collections::BTreeSet;

use limits::Priority;
use limits::turns::TakingTurns;

use super::account::Paid;
use super::worker::{Held, Worker};
use super::{Handover, LeaseId, ScheduleError, Scheduler, SessionId, WorkerId};

/// How often the length of rounds is set.
const ROUNDS_EVERY_NS: u64 = 5_000_000;
/// A session that has so much saved up uses less than its share.
const SAVED_UP_PPM: u64 = 500_000;

/// Who has the device after a lease that ends early.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The next in turn. It waits until what runs is done, for a moment.
    InTurn,
    /// A session that is preferred, or has saved up time. It begins beside what runs.
    Preferred,
}

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
        state.density.lets_go(handover == Handover::InStream);
        Ok(())
    }

    /// The leases that end now, before the time that was granted. Each is named once. Their workers
    /// are to be told at once; they report as ever. To be called with [`Self::decide`], after every
    /// change.
    pub fn to_stop(&mut self, now: u64) -> Vec<(WorkerId, LeaseId)> {
        self.stop_turns(now);
        core::mem::take(&mut self.stops)
    }

    /// Leases that their workers may keep from now on while they do not use them, because nobody else holds or waits,
    /// or may not any more. Each change is named once. To be called after every change, before [`Self::decide`] and after
    /// it.
    pub fn to_keep(&mut self, now: u64) -> Vec<(WorkerId, LeaseId, bool)> {
        let stoppable = self.holding.iter().filter_map(|&id| Some((id, self.stoppable(id)?)));
        let holders: Vec<(WorkerId, Held)> = stoppable.collect();
        let is_alone = self.holding.len() == 1 && !holders.is_empty() && !self.is_waited_for(now);
        let mut changes = Vec::new();
        for (id, held) in holders {
            let may_keep = is_alone && !self.is_of_several(id);
            if may_keep == held.may_keep {
                continue;
            }
            if let Some(own) = self.workers.get_mut(&id).and_then(|state| state.held.as_mut()) {
                own.may_keep = may_keep;
                changes.push((id, held.lease, may_keep));
            }
        }
        changes
    }

    /// Whether a worker waits, whatever for, or did so just now: its next question is on its way.
    fn is_waited_for(&self, now: u64) -> bool {
        let comes_back = |worker: &Worker| {
            !worker.held.is_some_and(|held| held.counts())
                && worker.was_active_within(self.tuning.message_ns, now)
        };
        !self.asking.is_empty() || self.workers.values().any(comes_back)
    }

    /// Sets the length of a round.
    pub(super) fn set_rounds(&mut self, now: u64) {
        if now < self.rounds_at {
            return;
        }
        self.rounds_at = now.saturating_add(ROUNDS_EVERY_NS);
        let mut sessions = Vec::new();
        let mut handover = Handover::InStream;
        let mut cheapest = Handover::Together;
        let mut queued_ns = u64::MAX;
        for worker in self.workers.values() {
            let takes_part = worker.held.is_some()
                || worker.was_active_within(limits::turns::PERIOD_NS, now)
                || worker.asks;
            if !takes_part {
                continue;
            }
            queued_ns = queued_ns.min(worker.queued_ns);
            let together = self.sessions.get(&worker.session).is_some_and(|own| own.together);
            // A gang waits for a whole turn, sparse or not.
            if together || worker.density.is_dense() {
                sessions.push(worker.session);
                let own = if together { Handover::Together } else { worker.handover };
                handover = handover.max(own);
                cheapest = cheapest.min(own);
            }
        }
        sessions.sort_unstable();
        sessions.dedup();
        let shares = sessions.iter().filter_map(|session| self.sessions.get(session));
        let shares = shares.map(|session| u64::from(session.account.turns_ppm()));
        let (sum_ppm, least_ppm) = (shares.clone().sum(), shares.min().unwrap_or(0));
        let sessions = sessions.len() as u64;
        let all = TakingTurns { sessions, sum_ppm, least_ppm, handover, cheapest, queued_ns };
        self.round_ns = all.round_ns();
        for session in self.sessions.values_mut() {
            session.account.set_round(self.round_ns);
        }
    }

    /// Ends the leases that others should not wait for. Those of a session that holds several devices end together.
    pub(super) fn stop_turns(&mut self, now: u64) {
        let stoppable: Vec<WorkerId> =
            self.holding.iter().filter(|&&id| self.stoppable(id).is_some()).copied().collect();
        if self.asking.is_empty() || stoppable.is_empty() {
            return;
        }
        let asking = self.asking.iter().filter_map(|&id| self.session_of(id).ok());
        for session in asking.collect::<BTreeSet<_>>() {
            self.settle(session, now);
        }
        for id in stoppable {
            let Some(held) = self.stoppable(id).filter(|held| held.ends_at > now) else { continue };
            if !self.is_of_several(id)
                && let Some(whose) = self.has_to_stop(id, held, now)
            {
                self.stop_early(id, whose, now);
            }
        }
    }

    /// Ends a worker's lease before its time, if it can be stopped.
    pub(super) fn stop_early(&mut self, worker: WorkerId, next: Next, now: u64) {
        let session = self.session_of(worker);
        let low = session.is_ok_and(|session| self.priority(session) == Priority::Low);
        let is_preferred = low || next == Next::Preferred;
        if self.stoppable(worker).is_some_and(|held| held.ends_at > now)
            && let Some(held) = self.workers.get_mut(&worker).and_then(|state| state.held.as_mut())
        {
            held.stopped = true;
            // What such a one has running is done about when the device has gone over to another process.
            held.passed = is_preferred;
            held.ends_at = now;
            self.stops.push((worker, held.lease));
        }
    }

    /// When the next turn ends that can be stopped.
    pub(super) fn turn_ends_at(&self, now: u64) -> Option<u64> {
        let held = self.holding.iter().filter_map(|&id| self.stoppable(id));
        held.map(|held| held.turn_ends_at.min(held.ends_at)).filter(|&at| at > now).min()
    }

    fn stoppable(&self, worker: WorkerId) -> Option<Held> {
        let state = self.workers.get(&worker)?;
        state.held.filter(|held| held.goes_on() && state.handover == Handover::InStream)
    }

    /// Whether a lease has to end now, and for whom.
    fn has_to_stop(&self, worker: WorkerId, held: Held, now: u64) -> Option<Next> {
        let session = self.session_of(worker).ok()?;
        let low = self.priority(session) == Priority::Low;
        if low && held.paid == Paid::Spare && self.high_wants(session, now) {
            return Some(Next::Preferred);
        }
        let saved_up =
            || self.next_in_line(now).is_some_and(|next| self.has_saved_up(next, session));
        match (self.strongest_waiting(worker, 0, now), held.paid) {
            (None, _) | (Some(Paid::Spare), Paid::Own) => None,
            (Some(Paid::Own), _) if saved_up() => Some(Next::Preferred),
            (Some(Paid::Own), Paid::Spare) => Some(Next::InTurn),
            (Some(_), _) if held.turn_ends_at <= now => Some(Next::InTurn),
            (Some(_), _) => None,
        }
    }

    /// The session that would begin a turn now, if the device were free. Only for it a turn may be cut short: otherwise
    /// another one would have what is cut off, and would be stopped for the same reason.
    fn next_in_line(&self, now: u64) -> Option<SessionId> {
        let able = |id: &WorkerId| {
            let worker = self.workers.get(id).filter(|worker| worker.density.is_dense())?;
            let account = &self.sessions.get(&worker.session)?.account;
            let ready = account.ready_at(Paid::Own).is_some_and(|at| at <= now)
                && self.length(*id, Paid::Own, false).is_some();
            let free = !self.is_of_several(*id) && !self.is_kept_away(*id);
            (ready && free).then(|| (account.next_deadline(), worker.served_at, worker.session))
        };
        self.asking.iter().filter_map(able).min().map(|(.., session)| session)
    }

    /// Whether a session that waits has saved up half of what it may, beside a holder that has not: it uses less than its
    /// share, a little at a time. It need not wait for the end of a turn.
    fn has_saved_up(&self, session: SessionId, holder: SessionId) -> bool {
        let fullness = |session: SessionId| {
            self.sessions.get(&session).map_or(0, |session| session.account.fullness_ppm())
        };
        let preferred =
            self.priority(session) == Priority::High || self.priority(holder) == Priority::Low;
        session != holder
            && preferred
            && fullness(session) >= SAVED_UP_PPM
            && fullness(holder) < SAVED_UP_PPM
    }
}
