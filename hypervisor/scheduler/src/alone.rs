//! Turns alone: giving the device to a worker alone, to see what it does when no other slows it down.
//!
//! A worker whose class is in doubt is taken for dense until it had such a turn. Its present
//! co-holders are not prolonged, and it keeps others away while it holds or could. So it gets the
//! device, pays as in any turn, and its use of that time is its utilization.
//!
//! Workers that become backlogged, as programs do that begin to work, are all taken for dense at
//! once. To make sure of what was known, one is asked after the other.

use limits::turns;

use super::account::Paid;
use super::worker::Worker;
use super::{Scheduler, SessionId, WorkerId};

impl Scheduler {
    /// Whether the turn alone of another worker keeps this one away.
    pub(super) fn is_kept_away(&self, worker: WorkerId) -> bool {
        if self.suspects_since.is_none() {
            return false;
        }
        let is_suspected = self.is_suspected(worker);
        self.suspected().any(|(id, other)| {
            id != worker
                && match other.held {
                    Some(held) => held.counts(),
                    // Suspected workers do not keep each other away: they take ordinary turns.
                    None => !is_suspected && other.asks && self.can_begin(other),
                }
        })
    }

    fn suspected(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let suspects = self.suspects.iter().filter_map(|&id| Some((id, self.workers.get(&id)?)));
        suspects.filter(|(_, state)| state.density.is_suspected())
    }

    pub(super) fn is_suspected(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|state| state.density.is_suspected())
    }

    fn can_begin(&self, worker: &Worker) -> bool {
        self.sessions
            .get(&worker.session)
            .is_some_and(|session| session.account.can_pay(Paid::Own, false, 0))
    }

    /// Takes workers for dense whose class is in doubt. To be called before anything is granted, so
    /// that none of the present holders is prolonged beside them.
    pub(super) fn suspect(&mut self, now: u64) {
        let tuning = self.tuning;
        if let Some(since) = self.suspects_since {
            for id in &self.suspects {
                if let Some(state) = self.workers.get_mut(id) {
                    state.density.end_overdue_suspicion(now, &tuning);
                }
            }
            if self.suspected().next().is_some() {
                return;
            }
            self.suspects.clear();
            // All other workers were kept away during this time.
            let took = now.saturating_sub(since);
            self.suspects_since = None;
            self.sure_until = now.saturating_add(took.saturating_mul(tuning.alone_spacing));
        }
        let single = |id: &&WorkerId| !self.is_of_several(**id);
        let begin =
            |id: &&WorkerId| self.workers.get(id).is_some_and(|state| state.density.is_suspect());
        let mut suspects: Vec<WorkerId> =
            self.holding.iter().filter(single).filter(begin).copied().collect();
        if suspects.is_empty() && now >= self.sure_until {
            let holding = self.holding.iter().filter(single);
            let in_doubt = holding.filter(|&&id| self.is_in_doubt(id, now));
            let measured_at = |id: &&WorkerId| {
                (self.workers.get(id).map(|state| state.density.measured_at()), **id)
            };
            suspects.extend(in_doubt.min_by_key(measured_at));
        }
        self.begin_turns_alone(&suspects, now);
    }

    /// Whether a turn alone may begin.
    pub fn may_suspect(&self) -> bool {
        self.suspects_since.is_none()
    }

    /// Whether the class of a worker of the session that holds is in doubt, so that a turn alone is due.
    pub fn is_session_in_doubt(&self, session: SessionId, now: u64) -> bool {
        let holds =
            |(_, worker): &(WorkerId, &Worker)| worker.held.is_some_and(|held| held.counts());
        self.may_suspect()
            && self.members(session).filter(holds).any(|(id, worker)| {
                worker.density.is_suspect() || now >= self.sure_until && self.is_in_doubt(id, now)
            })
    }

    /// Takes all workers of a session for dense until they had a turn alone.
    pub fn suspect_session(&mut self, session: SessionId, now: u64) {
        let members: Vec<WorkerId> = self.members(session).map(|(id, _)| id).collect();
        self.begin_turns_alone(&members, now);
    }

    fn begin_turns_alone(&mut self, suspects: &[WorkerId], now: u64) {
        if suspects.is_empty() {
            return;
        }
        let all: u64 = suspects.iter().map(|&id| self.own_turn(id)).sum();
        let until = now.saturating_add(all).saturating_add(turns::PERIOD_NS);
        self.suspects_since = Some(now);
        self.suspects.extend(suspects);
        for &id in suspects {
            // With a small share, a turn is shorter than the time wanted for a measurement: then one
            // turn has to be enough.
            let wanted_ns = self.own_turn(id).min(turns::COMFORTABLE_TURN_NS);
            if let Some(state) = self.workers.get_mut(&id) {
                state.density.suspect(wanted_ns, until);
            }
        }
    }

    /// Whether the worker's class should be known better.
    fn is_in_doubt(&self, worker: WorkerId, now: u64) -> bool {
        let state = self.workers.get(&worker);
        state.is_some_and(|state| state.density.wants_turn_alone(now, &self.tuning))
    }

    /// When the present suspicion is over at the latest.
    pub(super) fn suspicion_ends_at(&self) -> Option<u64> {
        self.suspects_since?;
        self.suspected().filter_map(|(_, state)| state.density.suspected_until()).min()
    }
}
