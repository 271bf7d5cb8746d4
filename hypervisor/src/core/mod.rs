//! The daemon's only state, and the calls that wait on it.

mod pending_poll;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_bidir_comm::server::{ApiError, Peer, wait_up_to};
use limits::{GpuId, Policy};
use protocol::status::NodeStatus;
use protocol::{Admission, Decision, LONGEST_LEASE_US, Lease, LeaseReport, Register, Registered};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use crate::Sources;
use crate::clock::Clock;
use crate::connection_quota::ConnectionQuota;
use crate::devices::{Devices, Existence};
use crate::gate_pages::{self, GatePages};
use crate::identity::{Caller, Identity};
use crate::limits::check_quota;
use crate::log;
use crate::node::Node;
use crate::process_exit::ProcessExit;
use crate::refused::CallRefused;
use crate::status_quota::{StatusPermit, StatusQuota};
use pending_poll::PendingPoll;
use scheduler::{Grant, Handover, LeaseId, Told, Tuning, WorkerId};
use session::gate_page::PeerGatePage;
use session::ledger::TAKEN_OFF_NS;

/// The longest that a call may wait for a lease.
const LONGEST_POLL: Duration = Duration::from_secs(10);
/// How often unused sessions are looked for.
const FORGET_EVERY_NS: u64 = 5_000_000_000;
/// The clock is read at least this often while a process holds or waits. A stall is noticed because
/// the clock was not read.
const TICK_NS: u64 = 50_000_000;
/// How long to delay a call that may have been sent before a stall's end. It is dropped if its
/// caller has gone by then.
const SETTLE: Duration = Duration::from_millis(2);

/// Shared by all handlers.
#[derive(Debug)]
pub(super) struct Core {
    state: Mutex<DaemonState>,
    identity: Arc<dyn Identity>,
    devices: Arc<dyn Devices>,
    statuses: Arc<StatusQuota>,
    connections: Arc<ConnectionQuota>,
    started: Instant,
    /// Signalled when the next deadline has become earlier.
    sooner: Notify,
}

#[derive(Debug)]
struct DaemonState {
    node: Node,
    clock: Clock,
    waiting: HashMap<(WorkerId, GpuId), Waiter>,
    watches: HashMap<WorkerId, AbortHandle>,
    gates: GatePages,
    tickets: u64,
    /// When the timer will run next, on the schedulers' clock.
    alarm: u64,
}

impl DaemonState {
    /// Ends leases early and hands out those that can be granted on a device. A grant that no call takes is given
    /// back, and the scheduler decides again. Each round has one waiting worker less, so this ends.
    fn hand_out(&mut self, uuid: GpuId, now: u64) {
        loop {
            let mut refused = false;
            let grants = self.node.decide(uuid, now);
            // First, so that what is granted begins with a device that is about to be free.
            for (worker, lease) in self.node.stopped(uuid, now) {
                self.gates.stop(worker, uuid, lease);
            }
            for grant in grants {
                let waiter = self.waiting.remove(&(grant.worker, uuid));
                let taken = waiter.is_some_and(|waiter| waiter.answer.send(grant).is_ok());
                if !taken {
                    self.node.give_back(uuid, grant.worker, grant.lease, now);
                    refused = true;
                }
            }
            if !refused {
                break;
            }
        }
    }

    /// From now on a worker's gates on the devices of a registration are as that says.
    fn take_gates(
        &mut self,
        worker: WorkerId,
        caller: &Caller,
        register: &Register,
        page: Option<PeerGatePage>,
    ) {
        let is_kept = page.is_some_and(|page| self.gates.keep(worker, caller, page));
        for device in &register.devices {
            let in_stream = is_kept && self.gates.has_gate(worker, device.uuid);
            let handover = if in_stream { Handover::InStream } else { Handover::OnThread };
            self.node.set_handover(worker, device.uuid, handover);
        }
    }

    /// Removes a worker that has ended.
    fn forget(&mut self, worker: WorkerId) {
        if let Some(watch) = self.watches.remove(&worker) {
            watch.abort();
        }
        self.waiting.retain(|(waiting, _), _| *waiting != worker);
        self.gates.forget(worker);
    }
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    answer: oneshot::Sender<Grant>,
}

impl Core {
    pub(super) fn new(
        tuning: Tuning,
        connections: Arc<ConnectionQuota>,
        sources: Sources,
    ) -> Arc<Self> {
        let Sources { identity, quotas, devices } = sources;
        // Hard to guess, and different from the numbers that a daemon before this one gave. Below
        // 2^53.
        let first_worker = (RandomState::new().hash_one(0) >> 32) << 20;
        let state = DaemonState {
            node: Node::new(tuning, first_worker, quotas),
            clock: Clock::default(),
            waiting: HashMap::new(),
            watches: HashMap::new(),
            gates: GatePages::default(),
            tickets: 0,
            alarm: FORGET_EVERY_NS,
        };
        let (started, sooner) = (Instant::now(), Notify::new());
        let (state, statuses) = (Mutex::new(state), Arc::default());
        Arc::new(Self { state, identity, devices, statuses, connections, started, sooner })
    }

    /// The process at the other end of a connection.
    pub(super) fn caller(&self, peer: Peer) -> Result<Caller, ApiError> {
        Ok(self.identity.caller(peer)?)
    }

    /// Registers a process.
    pub(super) async fn register(
        self: &Arc<Self>,
        caller: &Caller,
        register: &Register,
    ) -> Result<Registered, CallRefused> {
        let (pid, uid) = (caller.pid, caller.owner.uid);
        let unlisted = self.unlisted(register)?;
        // A process that is watched already has a permit, and gives it up for this one.
        let permit = if self.state().node.serves(caller) {
            self.connections.exchange(uid)
        } else {
            self.connections.take(uid)?
        };
        let watch = ProcessExit::start(pid)
            .map_err(|error| CallRefused::Unwatchable { pid, reason: error.to_string() })?;
        let page = gate_pages::named(caller, register).await;
        let mut state = self.state();
        let now = self.now(&mut state);
        let admitted = state.node.register(caller, register, &unlisted, now)?;
        let worker = admitted.worker;
        if let Some(former) = admitted.former {
            state.forget(former);
        }
        state.take_gates(worker, caller, register, page);
        if admitted.new {
            let core = Arc::clone(self);
            let watching = tokio::spawn(async move {
                let _permit = permit;
                watch.ended().await;
                // Until then the device may go on with its work, and it holds and pays.
                tokio::time::sleep(Duration::from_nanos(TAKEN_OFF_NS)).await;
                core.ended(worker);
            });
            state.watches.insert(worker, watching.abort_handle());
            let session = &register.session;
            tracing::info!(worker = worker.0, pid, uid, session, "registered");
        }
        // Workers that waited for what it held may have it now.
        if admitted.former.is_some() {
            self.decide_all(&mut state, now);
        } else {
            for device in &register.devices {
                state.hand_out(device.uuid, now);
            }
            self.set_alarm(&mut state, now);
        }
        Ok(Registered { worker: worker.0 })
    }

    /// Those of the devices that cannot be looked up.
    fn unlisted(&self, register: &Register) -> Result<BTreeSet<GpuId>, CallRefused> {
        let mut unlisted = BTreeSet::new();
        for uuid in register.devices.iter().map(|device| device.uuid) {
            match self.devices.exists(uuid) {
                Existence::Present => {}
                Existence::Absent(present) => {
                    return Err(CallRefused::NoSuchDevice { uuid, present });
                }
                Existence::Unknown => _ = unlisted.insert(uuid),
            }
        }
        Ok(unlisted)
    }

    /// Takes a report, if there is one, and waits for a lease, if the call asks for one. If the
    /// report is not the last of its lease, the call asks for that lease to go on.
    pub(super) async fn admission(
        self: &Arc<Self>,
        caller: &Caller,
        admission: Admission,
    ) -> Result<Decision, CallRefused> {
        let uuid = admission.uuid;
        let worker = WorkerId(admission.worker);
        let said = match &admission.quota {
            Some(quota) => {
                check_quota(quota)?;
                if quota.uuid != uuid {
                    return Err(CallRefused::QuotaOfAnother { asked: uuid, quota: quota.uuid });
                }
                Some(quota.limit)
            }
            None => None,
        };
        if self.notice_stall() {
            tokio::time::sleep(SETTLE).await;
        }
        let waiting = {
            let mut state = self.state();
            let now = self.now(&mut state);
            // Before the quota changes: what was used until now was used under the old one.
            let going_on = match admission.report {
                Some(report) => {
                    let lease = LeaseId(report.lease);
                    match state.node.device(worker, caller.pid, uuid) {
                        Ok(device) => {
                            // Cannot fail: the device knows the worker.
                            let _ = device.report(worker, lease, told(&report), now);
                        }
                        // Another process's message took the limit away, and the lease with it.
                        Err(CallRefused::NoLimit(_)) => {}
                        Err(other) => return Err(other),
                    }
                    (!report.done).then_some(lease)
                }
                None => None,
            };
            let quota = match said {
                Some(said) => Some(state.node.change(worker, caller.pid, uuid, said, now)?),
                None => None,
            };
            if quota.is_some_and(|quota| quota.policy == Policy::None) {
                self.decide(&mut state, uuid, now);
                return Ok(Decision { lease: None });
            }
            let device = match state.node.device(worker, caller.pid, uuid) {
                // Only an ask needs a limit.
                Err(CallRefused::NoLimit(_)) if admission.ask.is_none() => {
                    return Ok(Decision { lease: None });
                }
                other => other?,
            };
            match (admission.ask, going_on) {
                (Some(_), Some(lease)) => {
                    let renewed = device.renew(worker, lease, now).map(wire);
                    self.decide(&mut state, uuid, now);
                    return Ok(Decision { lease: renewed });
                }
                (Some(asked_us), None) => {
                    // Cannot fail, as above.
                    let _ = device.ask(worker, now);
                    let waiting = self.wait(&mut state, worker, uuid);
                    self.decide(&mut state, uuid, now);
                    Some((waiting, asked_us))
                }
                (None, _) => {
                    self.decide(&mut state, uuid, now);
                    None
                }
            }
        };
        let Some((mut waiting, asked_us)) = waiting else { return Ok(Decision { lease: None }) };
        let asked = Duration::from_micros(asked_us);
        let granted = wait_up_to(asked, LONGEST_POLL, &mut waiting.answer).await;
        let grant = match granted {
            Some(answer) => {
                waiting.settled = true;
                answer.ok()
            }
            None => waiting.give_up(),
        };
        Ok(Decision { lease: grant.map(wire) })
    }

    /// The state that a caller may see, and the right to send it.
    pub(super) async fn status(
        &self,
        caller: &Caller,
    ) -> Result<(NodeStatus, StatusPermit), CallRefused> {
        let permit = self.statuses.take(caller.owner.uid, Instant::now())?;
        tokio::time::sleep(permit.wait).await;
        let start = Instant::now();
        let own = rustix::process::geteuid().as_raw();
        let only = (!caller.owner.sees_all(own)).then_some(&caller.owner);
        let mut state = self.state();
        let now = self.now(&mut state);
        let status = NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            log_lines_lost: log::lines_lost(),
            devices: state.node.status(only, now),
        };
        drop(state);
        permit.took(start.elapsed(), Instant::now());
        Ok((status, permit))
    }

    /// Acts at the schedulers' deadlines. Never returns.
    pub(super) async fn keep_time(&self) {
        let mut forget_at = FORGET_EVERY_NS;
        loop {
            let at = {
                let state = self.state();
                self.started + Duration::from_nanos(state.clock.to_system(state.alarm))
            };
            tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = self.sooner.notified() => continue,
            }
            let mut state = self.state();
            let now = self.now(&mut state);
            if now < state.alarm {
                // A stall has moved the deadline.
                continue;
            }
            if now >= forget_at {
                state.node.forget_idle(now);
                forget_at = now.saturating_add(FORGET_EVERY_NS);
            }
            state.alarm = forget_at;
            self.decide_all(&mut state, now);
        }
    }

    fn ended(&self, worker: WorkerId) {
        let mut state = self.state();
        let now = self.now(&mut state);
        state.node.leave(worker, now);
        state.forget(worker);
        tracing::info!(worker = worker.0, "ended");
        self.decide_all(&mut state, now);
    }

    /// From now on, grants for this worker go to the returned value. An older call of the same
    /// worker is answered without a lease.
    fn wait(
        self: &Arc<Self>,
        state: &mut DaemonState,
        worker: WorkerId,
        uuid: GpuId,
    ) -> PendingPoll {
        let (sender, answer) = oneshot::channel();
        state.tickets += 1;
        let ticket = state.tickets;
        let key = (worker, uuid);
        state.waiting.insert(key, Waiter { ticket, answer: sender });
        PendingPoll { core: Arc::clone(self), key, ticket, answer, settled: false }
    }

    fn decide_all(&self, state: &mut DaemonState, now: u64) {
        for uuid in state.node.in_use() {
            state.hand_out(uuid, now);
        }
        self.set_alarm(state, now);
    }

    fn decide(&self, state: &mut DaemonState, uuid: GpuId, now: u64) {
        state.hand_out(uuid, now);
        self.set_alarm(state, now);
    }

    /// Sets the timer for the next moment at which a scheduler has something to do.
    fn set_alarm(&self, state: &mut DaemonState, now: u64) {
        let tick = state.node.is_in_use().then(|| now.saturating_add(TICK_NS));
        let next = state.node.next_deadline(now).into_iter().chain(tick).min();
        if let Some(next) = next.filter(|&next| next < state.alarm) {
            state.alarm = next;
            self.sooner.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, DaemonState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The schedulers' time. If the daemon has just stood still, all leases have ended, because
    /// they were shorter than the stall. All waiting calls are answered: most callers have stopped
    /// waiting and go on without the daemon.
    fn now(&self, state: &mut DaemonState) -> u64 {
        let system = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (now, stall) = state.clock.read(system, state.alarm);
        if let Some(stall_ns) = stall {
            tracing::warn!(milliseconds = stall_ns / 1_000_000, "stood still");
            state.waiting.clear();
            state.node.dismiss_all(now);
        }
        now
    }

    /// Checks whether the daemon has stood still. `true`: calls may still arrive that were sent
    /// before it went on.
    fn notice_stall(&self) -> bool {
        let mut state = self.state();
        let now = self.now(&mut state);
        state.clock.has_just_resumed(now)
    }
}

fn wire(grant: Grant) -> Lease {
    let Grant { lease, length_ns, shared, exclusive, .. } = grant;
    Lease { id: lease.0, length_us: (length_ns / 1_000).min(LONGEST_LEASE_US), shared, exclusive }
}

/// A report for the scheduler, which cuts off impossible values.
fn told(report: &LeaseReport) -> Told {
    Told {
        held_ns: report.held_us.saturating_mul(1_000),
        estimated_ns: report.estimated_us.saturating_mul(1_000),
        backlogged_ns: report.backlogged_us.saturating_mul(1_000),
        done: report.done,
    }
}
