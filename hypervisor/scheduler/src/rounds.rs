//! The length of a round: the time in which each session that takes turns gets its share once. Set by the scheduler at
//! its decisions.

use std::collections::BTreeSet;

use limits::turns::{Handover, PERIOD_NS, TakingTurns};

use crate::roster::Roster;
use crate::tuning::ROUNDS_EVERY_NS;

/// The rounds of a device.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// When their length is next computed.
    next_at: u64,
    /// The length (ns). Unbounded until it is first computed.
    ns: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { next_at: 0, ns: u64::MAX }
    }
}

impl Rounds {
    pub(crate) fn ns(&self) -> u64 {
        self.ns
    }

    /// Makes the next decision compute the length.
    pub(crate) fn look_again(&mut self) {
        self.next_at = 0;
    }

    /// Computes the length of a round, if that is due.
    pub(crate) fn set(&mut self, roster: &mut Roster, now: u64) {
        if now < self.next_at {
            return;
        }
        self.next_at = now.saturating_add(ROUNDS_EVERY_NS);
        self.ns = taking_turns(roster, now).round_ns();
        for (_, session) in roster.sessions_mut() {
            session.account.set_round(self.ns);
        }
    }
}

/// The sessions that take turns now.
fn taking_turns(roster: &Roster, now: u64) -> TakingTurns {
    let (mut sessions, mut handover, mut queued_ns) =
        (BTreeSet::new(), Handover::InStream, u64::MAX);
    for (_, worker) in roster.workers().filter(|(_, own)| own.is_active_within(PERIOD_NS, now)) {
        queued_ns = queued_ns.min(worker.queued_ns);
        let together = roster.session(worker.session).is_some_and(|own| own.together);
        // A gang waits for a whole turn, sparse or not.
        if together || worker.is_dense() {
            sessions.insert(worker.session);
            handover = handover.max(if together { Handover::Together } else { worker.handover });
        }
    }
    let accounts = sessions.iter().filter_map(|&session| roster.account(session));
    let shares = accounts.map(|account| u64::from(account.order().share_ppm()));
    let (sum_ppm, least_ppm) = (shares.clone().sum(), shares.min().unwrap_or(0));
    let sessions = sessions.len() as u64;
    TakingTurns { sessions, sum_ppm, least_ppm, handover, queued_ns }
}
