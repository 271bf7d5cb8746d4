//! A device on which nothing is granted for a while: it is faulty, or somebody uses it who takes no turns.
//!
//! Workers go on asking. A gang that uses the device gets leases on none of its others, and does not keep them from
//! those that wait there. When the device goes on, nobody has savings: nobody could use them, and those who were
//! idle meanwhile are not to come first.

use super::preempt::Next;
use super::{Scheduler, SessionId, WorkerId};

impl Scheduler {
    /// From now on nothing is granted. Leases end now where they can be stopped (see [`Self::to_stop`]), and are not
    /// prolonged elsewhere.
    pub fn suspend(&mut self, now: u64) {
        if core::mem::replace(&mut self.suspended, true) {
            return;
        }
        let holding: Vec<WorkerId> = self.holding.iter().copied().collect();
        for worker in holding {
            self.stop_early(worker, Next::InTurn, now);
        }
    }

    /// From now on leases are granted again. What sessions owe stays.
    pub fn resume(&mut self, now: u64) {
        if !core::mem::replace(&mut self.suspended, false) {
            return;
        }
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.settle(session, now);
            self.forget_savings(session);
        }
    }

    /// Whether nothing is granted.
    #[must_use]
    pub const fn is_suspended(&self) -> bool {
        self.suspended
    }
}
