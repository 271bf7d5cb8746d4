//! What a scheduler shows of itself.

use super::account::{Paid, SavedBalance};
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
    /// The same, and what is left below its ceiling.
    pub left: SavedBalance,
    /// All time charged since it was added, in nanoseconds.
    pub charged_ns: u64,
    /// The part of it that was reported or measured. Unlike the rest, no report lowers it any more.
    pub settled_ns: u64,
    /// The part of it that was spare.
    pub spare_ns: u64,
    /// The share of the device's time that it was charged in the last ten seconds, or since it was added, in millionths.
    pub recent_ppm: Option<u32>,
    /// The same since it was added.
    pub mean_ppm: Option<u32>,
    /// The utilization of its densest worker, in millionths. `None`: not known yet.
    pub density_ppm: Option<u64>,
    /// Dense if one of its workers is dense, or may be.
    pub class: Class,
    /// Whether one of its workers asks.
    pub asks: bool,
    /// Whether it is granted nothing for the time being.
    pub frozen: bool,
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

/// What a worker does on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It neither holds nor asks.
    Idle,
    /// It asks.
    Asking,
    /// It holds a lease.
    Holding,
    /// It holds a lease that others no longer wait for.
    Revoked,
}

impl Scheduler {
    /// What a worker does.
    pub fn state_of(&self, worker: WorkerId) -> WorkerState {
        match self.held(worker) {
            Some(held) if held.revoked => WorkerState::Revoked,
            Some(_) => WorkerState::Holding,
            None if self.asking.contains(&worker) || self.is_aside(worker) => WorkerState::Asking,
            None => WorkerState::Idle,
        }
    }

    /// All time that a worker has been charged since it joined, as far as it was reported, in nanoseconds.
    pub fn charged_to(&self, worker: WorkerId) -> u64 {
        self.workers.get(&worker).map_or(0, |worker| worker.charged_ns)
    }

    /// The state as of `now`.
    pub fn view(&mut self, now: u64) -> DeviceView {
        let mut ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        ids.sort_unstable();
        for &session in &ids {
            self.settle(session, now);
        }
        let sessions = ids.iter().filter_map(|session| self.sessions.get_key_value(session));
        let sessions = sessions.map(|(&session, state)| {
            let account = &state.account;
            let densities = || self.members(session).map(|(_, worker)| &worker.density);
            let dense = densities().any(|density| density.is_dense());
            SessionView {
                session,
                quota: *account.quota(),
                balance_ns: account.balance_ns(),
                left: account.left(),
                charged_ns: account.charged_ns().saturating_add(account.untold_ns()),
                settled_ns: account.charged_ns(),
                spare_ns: account.spare_ns(),
                recent_ppm: account.recent_share_ppm(now),
                mean_ppm: account.mean_share_ppm(now),
                density_ppm: densities().filter_map(|d| d.known_ppm()).max(),
                class: if dense || state.members.is_empty() { Class::Dense } else { Class::Sparse },
                asks: state.frozen.as_ref().is_some_and(|aside| !aside.is_empty())
                    || state.members.iter().any(|member| self.asking.contains(member)),
                frozen: state.frozen.is_some(),
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
        let mut leases: Vec<LeaseView> = leases.collect();
        leases.sort_unstable_by_key(|lease| lease.worker);
        DeviceView { sessions: sessions.collect(), leases }
    }
}
