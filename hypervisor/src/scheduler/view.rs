//! What a scheduler shows of itself.

use super::{LeaseId, Scheduler, SessionId, WorkerId};

/// A device's state at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// All sessions, by id.
    pub sessions: Vec<SessionView>,
    /// All leases that are held, revoked ones included.
    pub leases: Vec<LeaseView>,
}

/// A session's state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which session.
    pub session: SessionId,
    /// Its share, in millionths.
    pub share_ppm: u32,
    /// Time it may still hold (negative: owes), in nanoseconds.
    pub balance_ns: i64,
    /// All time charged since it was added, in nanoseconds.
    pub charged_ns: u64,
    /// Whether one of its workers asks.
    pub asks: bool,
}

/// A lease that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Which lease.
    pub lease: LeaseId,
    /// Whose.
    pub worker: WorkerId,
    /// Of which session.
    pub session: SessionId,
    /// How long it has been held, in nanoseconds.
    pub held_ns: u64,
    /// Whether others no longer wait for it.
    pub revoked: bool,
}

impl Scheduler {
    /// The state as of `now`.
    pub fn view(&mut self, now: u64) -> DeviceView {
        for account in self.sessions.values_mut() {
            account.settle(now, &self.tuning);
        }
        let sessions = self.sessions.iter().map(|(&session, account)| SessionView {
            session,
            share_ppm: account.share_ppm(),
            balance_ns: account.balance_ns(),
            charged_ns: account.charged_ns(),
            asks: self.asks(session),
        });
        let leases = self.workers.iter().filter_map(|(&worker, state)| {
            let held = state.held?;
            let held_ns = now.saturating_sub(held.granted_at);
            let (lease, revoked) = (held.lease, held.revoked);
            Some(LeaseView { lease, worker, session: state.session, held_ns, revoked })
        });
        DeviceView { sessions: sessions.collect(), leases: leases.collect() }
    }
}
