//! A scheduler's state for display: the daemon's API and metrics read it.

use limits::ComputeLimit;

use crate::account::SavedBalance;
use crate::density::Class;
use crate::roster::{Session, Worker};
use crate::scheduler::Scheduler;
use crate::types::{LeaseId, Paid, SessionId, WorkerId};
use crate::way::Chosen;

/// A device's state at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// All sessions, by id.
    pub sessions: Vec<SessionView>,
    /// All leases that are held, including revoked ones.
    pub leases: Vec<LeaseView>,
    /// The way in which sessions share the device. `None`: fewer than two want it most of the time.
    pub way: Option<Chosen>,
    /// How often turns were chosen anew, and how often to hold leases at once.
    pub way_changes: [u64; 2],
}

/// A session's state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session.
    pub session: SessionId,
    /// Its quota.
    pub quota: ComputeLimit,
    /// Guaranteed time that it may still use, in nanoseconds; negative: it owes time.
    pub balance_ns: i64,
    /// Its balances, with the time that is left below its burst limit.
    pub left: SavedBalance,
    /// All time charged since it was added, in nanoseconds.
    pub charged_ns: u64,
    /// The part of `charged_ns` that was reported or measured, which no report can lower any more.
    pub settled_ns: u64,
    /// The part of `charged_ns` that was spare.
    pub spare_ns: u64,
    /// The share of the device's time charged in the last ten seconds, or since the session was added, in millionths.
    pub recent_ppm: Option<u32>,
    /// The share of the device's time charged since the session was added, in millionths.
    pub mean_ppm: Option<u32>,
    /// The utilization of its densest worker, in millionths; `None`: not known yet.
    pub density_ppm: Option<u64>,
    /// Dense if one of its workers is dense, or may be.
    pub class: Class,
    /// Whether one of its workers asks.
    pub asks: bool,
    /// Whether it is frozen.
    pub frozen: bool,
}

/// A lease that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The lease.
    pub lease: LeaseId,
    /// Its worker.
    pub worker: WorkerId,
    /// The worker's session.
    pub session: SessionId,
    /// The budget from which it is paid.
    pub paid: Paid,
    /// How long it has been held, in nanoseconds.
    pub held_ns: u64,
    /// Whether others no longer wait for it.
    pub revoked: bool,
}

/// A worker's state on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker neither holds a lease nor asks.
    Idle,
    /// The worker asks.
    Asking,
    /// The worker holds a lease.
    Holding,
    /// The worker holds a lease that others no longer wait for.
    Revoked,
}

impl Scheduler {
    /// A worker's state.
    pub fn state_of(&self, worker: WorkerId) -> WorkerState {
        let Some(own) = self.roster.worker(worker) else { return WorkerState::Idle };
        match own.held {
            Some(held) if held.phase.revoked => WorkerState::Revoked,
            Some(_) => WorkerState::Holding,
            None if own.asks || own.aside => WorkerState::Asking,
            None => WorkerState::Idle,
        }
    }

    /// All reported time charged to a worker since it joined, in nanoseconds.
    pub fn charged_to(&self, worker: WorkerId) -> u64 {
        self.roster.worker(worker).map_or(0, |worker| worker.charged_ns)
    }

    /// The way in which sessions share the device, if the ways were compared since the last call.
    pub fn newly_compared(&mut self) -> Option<Chosen> {
        self.choice.take_news()
    }

    /// The state as of `now`.
    pub fn view(&mut self, now: u64) -> DeviceView {
        let mut ids: Vec<SessionId> = self.roster.sessions().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids.iter().for_each(|&session| self.roster.settle(session, now));
        let session = |&id: &SessionId| Some(self.session_view(id, self.roster.session(id)?, now));
        let leases = self.roster.holding().map(|(worker, own, held)| LeaseView {
            lease: held.lease,
            worker,
            session: own.session,
            paid: held.paid,
            held_ns: now.saturating_sub(held.granted_at),
            revoked: held.phase.revoked,
        });
        let (sessions, way) = (ids.iter().filter_map(session).collect(), self.choice.chosen());
        let way_changes = self.choice.changes();
        DeviceView { sessions, leases: leases.collect(), way, way_changes }
    }

    fn session_view(&self, id: SessionId, state: &Session, now: u64) -> SessionView {
        let (account, charged) = (&state.account, state.account.charged());
        let members = || self.roster.members(id).map(|(_, worker)| worker);
        let dense = state.members.is_empty() || members().any(Worker::is_dense);
        SessionView {
            session: id,
            quota: *account.quota(),
            balance_ns: account.balance_ns(),
            left: account.left(),
            charged_ns: charged.all_ns.saturating_add(account.untold_ns()),
            settled_ns: charged.all_ns,
            spare_ns: charged.spare_ns,
            recent_ppm: charged.recent_share_ppm(now),
            mean_ppm: charged.mean_share_ppm(now),
            density_ppm: members().filter_map(|worker| worker.density.known_ppm()).max(),
            class: if dense { Class::Dense } else { Class::Sparse },
            asks: members().any(|worker| worker.asks || worker.aside),
            frozen: state.frozen,
        }
    }
}
