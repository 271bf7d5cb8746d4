//! What a scheduler shows of itself.

use super::account::Paid;
use super::density::Class;
use super::{LeaseId, Scheduler, SessionId, WorkerId};
use limits::ComputeLimit;

/// A device's state at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// All sessions, by id.
    pub sessions: Vec<SessionView>,
    /// All leases that are held, with the revoked ones.
    pub leases: Vec<LeaseView>,
}

/// A session's state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which session.
    pub session: SessionId,
    /// What it may take.
    pub quota: ComputeLimit,
    /// Guaranteed time that it may still use, in nanoseconds. Negative: it owes time.
    pub balance_ns: i64,
    /// All time charged since it was added, in nanoseconds.
    pub charged_ns: u64,
    /// The part of it that was spare.
    pub spare_ns: u64,
    /// The utilization of its densest worker, in millionths. `None`: not known yet.
    pub density_ppm: Option<u64>,
    /// Dense if one of its workers is dense, or may be.
    pub class: Class,
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
    /// What it is paid from.
    pub paid: Paid,
    /// How long it has been held, in nanoseconds.
    pub held_ns: u64,
    /// Whether others no longer wait for it.
    pub revoked: bool,
}

impl Scheduler {
    /// The state as of `now`.
    pub fn view(&mut self, now: u64) -> DeviceView {
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for &session in &ids {
            self.settle(session, now);
        }
        let sessions = self.sessions.iter().map(|(&session, state)| {
            let account = &state.account;
            let densities = || self.members(session).map(|(_, worker)| &worker.density);
            let dense = densities().any(|density| density.is_dense());
            SessionView {
                session,
                quota: *account.quota(),
                balance_ns: account.balance_ns(),
                charged_ns: account.charged_ns().saturating_add(account.untold_ns()),
                spare_ns: account.spare_ns(),
                density_ppm: densities().filter_map(|d| d.known_ppm()).max(),
                class: if dense || state.members.is_empty() { Class::Dense } else { Class::Sparse },
                asks: state.members.iter().any(|member| self.asking.contains(member)),
            }
        });
        let leases = self.workers.iter().filter_map(|(&worker, state)| {
            let held = state.held?;
            Some(LeaseView {
                lease: held.lease,
                worker,
                session: state.session,
                paid: held.paid,
                held_ns: now.saturating_sub(held.granted_at),
                revoked: held.revoked,
            })
        });
        DeviceView { sessions: sessions.collect(), leases: leases.collect() }
    }
}
