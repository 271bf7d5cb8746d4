//! Sessions that are granted nothing until they are thawed.
//!
//! What a frozen session's workers ask for is kept aside. So to all decisions it is a session that does not ask,
//! and what it does not use is the others'. When it is thawed it asks anew, as one that was idle, and without
//! savings: it was not idle by its own choice, but the others are not to pay for that.

use std::collections::BTreeSet;

use super::preempt::Next;
use super::{Scheduler, SessionId, WorkerId};

impl Scheduler {
    /// From now on the session is granted nothing. Its leases end now where they can be stopped (see
    /// [`Self::to_stop`]), and are not prolonged elsewhere.
    pub fn freeze(&mut self, session: SessionId, now: u64) {
        let Some(state) = self.sessions.get_mut(&session).filter(|state| state.frozen.is_none())
        else {
            return;
        };
        let members = state.members.clone();
        let asking: BTreeSet<WorkerId> =
            members.iter().filter(|member| self.asking.contains(member)).copied().collect();
        asking.iter().for_each(|&worker| self.withdraw(worker, now));
        if let Some(state) = self.sessions.get_mut(&session) {
            state.frozen = Some(asking);
        }
        for worker in members {
            self.stop_early(worker, Next::InTurn, now);
        }
    }

    /// From now on the session is granted leases again. What it owes stays.
    pub fn thaw(&mut self, session: SessionId, now: u64) {
        self.settle(session, now);
        let state = self.sessions.get_mut(&session);
        let Some(asking) = state.and_then(|state| state.frozen.take()) else { return };
        self.forget_savings(session);
        for worker in asking {
            // Cannot fail: a worker that leaves takes its ask along.
            let _ = self.ask(worker, now);
        }
    }

    /// Whether a worker is of a frozen session.
    pub(super) fn is_frozen(&self, worker: WorkerId) -> bool {
        let session = self.workers.get(&worker).and_then(|state| self.sessions.get(&state.session));
        session.is_some_and(|session| session.frozen.is_some())
    }

    /// Whether a worker's ask is kept aside.
    pub(super) fn is_aside(&self, worker: WorkerId) -> bool {
        let session = self.workers.get(&worker).and_then(|state| self.sessions.get(&state.session));
        session
            .and_then(|session| session.frozen.as_ref())
            .is_some_and(|asking| asking.contains(&worker))
    }

    /// Keeps a worker's ask aside if its session is frozen.
    pub(super) fn set_aside(&mut self, worker: WorkerId, session: SessionId) -> bool {
        let aside = self.sessions.get_mut(&session).and_then(|session| session.frozen.as_mut());
        aside.map(|asking| asking.insert(worker)).is_some()
    }

    /// Forgets an ask that was kept aside.
    pub(super) fn forget_aside(&mut self, worker: WorkerId) {
        if let Some(state) = self.workers.get(&worker)
            && let Some(session) = self.sessions.get_mut(&state.session)
            && let Some(asking) = &mut session.frozen
        {
            asking.remove(&worker);
        }
    }
}
