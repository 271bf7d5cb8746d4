//! The daemon's state behind one lock, and the limiter's calls, which wait on it: registration, leases, reports.

mod alive;
mod answers;
mod devices;
pub(super) mod ends;
mod figures;
mod pending_poll;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::limits::{GpuId, Policy};
use api::UnknownProcesses;
use http_bidir_comm::server::wait_up_to;
use observer::Model;
use protocol::{Admission, Decision, LONGEST_LEASE_US, Lease, LeaseReport, Register, Registered};
use tokio::sync::{Notify, oneshot};

use crate::Sources;
use crate::clock::Clock;
use crate::connection_quota::ConnectionQuota;
use crate::devices::{Devices, Existence};
use crate::events::Events;
use crate::gate_pages::{self, GatePages};
use crate::identity::{Caller, KernelIdentity, Owner};
use crate::limits::check_quota;
use crate::node::{Node, Snapshot};
use crate::page_memory::PageMemory;
use crate::process_exit::ProcessExit;
use crate::refused::{CallRefused, Refusals};
use crate::state::{Beginning, Writing};
use crate::status_quota::StatusQuota;
pub(super) use alive::Alive;
pub(super) use answers::SessionToChange;
use pending_poll::PendingPoll;
use scheduler::{Grant, LeaseId, Told, Way, WorkerId};
use session::ledger::TAKEN_OFF_NS;
use state::{DaemonState, Waiter};

/// Longest time that a call may wait for a lease.
const LONGEST_POLL: Duration = Duration::from_secs(10);
/// How often unused sessions are forgotten.
const FORGET_EVERY_NS: u64 = 5_000_000_000;
/// Longest time between two readings of the clock while a process holds or waits for a lease. A stall is a reading that
/// comes late.
const TICK_NS: u64 = 50_000_000;
/// Delay of a call that may have been sent before the end of a stall: if its caller has gone by then, the call is
/// dropped.
const SETTLE: Duration = Duration::from_millis(2);

/// Shared by all handlers and threads of the daemon.
#[derive(Debug)]
pub(super) struct Core {
    state: Mutex<DaemonState>,
    /// The owner under which the daemon's own process would count.
    own: Owner,
    devices: Arc<dyn Devices>,
    statuses: Arc<StatusQuota>,
    connections: Arc<ConnectionQuota>,
    writing: Option<Arc<Writing>>,
    started: Instant,
    events: Arc<Events>,
    refusals: Refusals,
    memory: Arc<PageMemory>,
    /// The observer's model of the node's devices.
    observed: Mutex<Model>,
    unknown_policy: UnknownProcesses,
    /// When the timer last ran, in milliseconds since the start.
    came_round: AtomicU64,
    /// Signalled when the next deadline has become earlier.
    sooner: Notify,
}

impl Core {
    /// Makes sessions share devices in this way only.
    pub(super) fn share_only(&self, way: Way) {
        self.state().node.share = Some(way);
    }

    pub(super) fn new(
        connections: Arc<ConnectionQuota>,
        sources: Sources,
        beginning: Option<&Beginning>,
        unknown_policy: UnknownProcesses,
    ) -> Arc<Self> {
        let Sources { identity: _, quotas, devices } = sources;
        // First id: hard to guess, below 2^53, and unlike the ids of an earlier daemon.
        let first = (RandomState::new().hash_one(0) >> 32) << 20;
        let mut node = Node::new(first, quotas);
        if let Some(beginning) = beginning {
            node.restore(beginning.snapshot.clone(), 0);
        }
        let writing = beginning.map(|beginning| Arc::clone(&beginning.writing));
        let state = DaemonState {
            node,
            clock: Clock::default(),
            waiting: HashMap::new(),
            watches: HashMap::new(),
            gates: GatePages::default(),
            tickets: 0,
            alarm: FORGET_EVERY_NS,
        };
        let (started, sooner) = (Instant::now(), Notify::new());
        let (state, statuses) = (Mutex::new(state), Arc::default());
        let own = KernelIdentity::default().own();
        let (events, came_round) = (Events::new(started), AtomicU64::new(0));
        let (refusals, memory) = (Refusals::default(), Arc::default());
        Arc::new(Self {
            state,
            own,
            devices,
            statuses,
            connections,
            writing,
            started,
            events,
            refusals,
            memory,
            observed: Mutex::default(),
            unknown_policy,
            came_round,
            sooner,
        })
    }

    /// Registers a process and starts to watch for its end.
    pub(super) async fn register(
        self: &Arc<Self>,
        caller: &Caller,
        register: &Register,
    ) -> Result<Registered, CallRefused> {
        let (pid, uid) = (caller.pid, caller.owner.uid);
        let unlisted = self.unlisted(register)?;
        // A process that is already watched exchanges its permit for the new one.
        let permit = if self.state().node.serves(caller) {
            self.connections.exchange(uid)
        } else {
            self.connections.take(uid)?
        };
        let watch = ProcessExit::start(pid)
            .map_err(|error| CallRefused::Unwatchable { pid, reason: error.to_string() })?;
        if !caller.is_present() {
            let reason = "it has ended, and another process has its id".to_owned();
            return Err(CallRefused::Unwatchable { pid, reason });
        }
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
                // Until then the device may still work for the former worker, which holds and pays.
                tokio::time::sleep(Duration::from_nanos(TAKEN_OFF_NS)).await;
                core.ended(worker);
            });
            state.watches.insert(worker, watching.abort_handle());
            let session = &register.session;
            tracing::info!(worker = worker.0, pid, uid, session, "registered");
        }
        // Workers that waited for the former worker's leases may get them now.
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

    /// The registration's devices that cannot be looked up.
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

    /// Takes a report, if present, and waits for a lease if the call asks for one. A report that is not the last of its
    /// lease asks to extend that lease.
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
            // Before the quota changes: the report covers use under the old quota.
            let going_on = match admission.report {
                Some(report) => {
                    let lease = LeaseId(report.lease);
                    match state.node.device(worker, caller, uuid) {
                        Ok(device) => {
                            // Cannot fail: the device knows the worker.
                            let _ = device.report(worker, lease, told(&report), now);
                            if report.done {
                                state.gates.forget_lease(worker, uuid);
                            }
                        }
                        // Another process's message removed the limit, and with it the lease.
                        Err(CallRefused::NoLimit(_)) => {}
                        Err(other) => return Err(other),
                    }
                    (!report.done).then_some(lease)
                }
                None => None,
            };
            let quota = match said {
                Some(said) => Some(state.node.change(worker, caller, uuid, said, now)?),
                None => None,
            };
            if quota.is_some_and(|quota| quota.policy == Policy::None) {
                self.decide(&mut state, uuid, now);
                return Ok(Decision::of(None));
            }
            if admission.ask.is_some() {
                state.node.set_together(worker, uuid, admission.together);
            }
            let device = match state.node.device(worker, caller, uuid) {
                // Only a request for a lease needs a limit.
                Err(CallRefused::NoLimit(_)) if admission.ask.is_none() => {
                    return Ok(Decision::of(None));
                }
                other => other?,
            };
            device.used_outside(worker, admission.outside_us.saturating_mul(1000), now);
            device.has_queued(worker, admission.queued_us.saturating_mul(1000));
            match (admission.ask, going_on) {
                (Some(_), Some(lease)) => {
                    let renewed = state.node.renew(worker, uuid, lease, now).map(wire);
                    self.decide(&mut state, uuid, now);
                    return Ok(Decision::of(renewed));
                }
                (Some(asked_us), None) => {
                    // Cannot fail, as above.
                    let _ = device.ask(worker, now);
                    state.node.asks(worker, uuid, now);
                    let waiting = self.wait(&mut state, worker, uuid, admission.gate);
                    self.decide(&mut state, uuid, now);
                    Some((waiting, asked_us))
                }
                (None, _) => {
                    self.decide(&mut state, uuid, now);
                    None
                }
            }
        };
        let Some((mut waiting, asked_us)) = waiting else { return Ok(Decision::of(None)) };
        let asked = Duration::from_micros(asked_us);
        let granted = wait_up_to(asked, LONGEST_POLL, &mut waiting.answer).await;
        let grant = match granted {
            Some(answer) => {
                waiting.settled = true;
                answer.ok()
            }
            None => waiting.give_up(),
        };
        let lease = grant.map(|granted| wire(granted.grant));
        let withheld =
            if lease.is_none() { self.state().node.withheld_from(worker, uuid) } else { None };
        Ok(Decision { lease, withheld })
    }

    /// The state that survives a restart; see [`Node::snapshot`].
    pub(super) fn snapshot(&self, ahead_ns: u64) -> Snapshot {
        let mut state = self.state();
        let now = self.now(&mut state);
        state.node.snapshot(now, ahead_ns)
    }

    /// Runs the schedulers' deadlines. Never returns.
    pub(super) async fn keep_time(&self) {
        let mut forget_at = FORGET_EVERY_NS;
        loop {
            self.came_round.store(self.milliseconds(), Ordering::Relaxed);
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

    /// Registers a call that waits for a grant to this worker. An older call of the same worker is answered without a
    /// lease.
    fn wait(
        self: &Arc<Self>,
        state: &mut DaemonState,
        worker: WorkerId,
        uuid: GpuId,
        gate: Option<u32>,
    ) -> PendingPoll {
        let (sender, answer) = oneshot::channel();
        state.tickets += 1;
        let ticket = state.tickets;
        let key = (worker, uuid);
        state.waiting.insert(key, Waiter { ticket, answer: sender, gate });
        PendingPoll { core: Arc::clone(self), key, ticket, answer, settled: false }
    }

    fn decide_all(&self, state: &mut DaemonState, now: u64) {
        for uuid in state.node.in_use() {
            state.hand_out(uuid, now);
        }
        self.set_alarm(state, now);
    }

    fn decide(&self, state: &mut DaemonState, uuid: GpuId, now: u64) {
        if state.node.has_gangs() {
            return self.decide_all(state, now);
        }
        state.hand_out(uuid, now);
        self.set_alarm(state, now);
    }

    /// Sets the timer to the schedulers' next deadline, and publishes pending events.
    fn set_alarm(&self, state: &mut DaemonState, now: u64) {
        state.node.take_happened().into_iter().for_each(|happened| self.events.publish(happened));
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

    /// Reads the schedulers' clock. After a stall all leases have ended, because they are shorter than a stall, and all
    /// waiting calls are answered: most callers have timed out and continue without the daemon.
    fn now(&self, state: &mut DaemonState) -> u64 {
        let system = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (now, stall) = state.clock.read(system, state.alarm);
        if let Some(stall_ns) = stall {
            tracing::warn!(milliseconds = stall_ns / 1_000_000, "the daemon was stalled");
            state.waiting.clear();
            state.node.dismiss_all(now);
        }
        now
    }

    /// Checks for a stall. `true`: calls may still arrive that were sent before its end.
    fn notice_stall(&self) -> bool {
        let mut state = self.state();
        let now = self.now(&mut state);
        state.clock.has_just_resumed(now)
    }
}

fn wire(grant: Grant) -> Lease {
    let Grant { lease, length_ns, shared, overlaps, .. } = grant;
    let length_us = (length_ns / 1_000).min(LONGEST_LEASE_US);
    Lease { id: lease.0, length_us, shared, overlaps }
}

/// Converts a report for the scheduler, which clips impossible values.
fn told(report: &LeaseReport) -> Told {
    Told {
        held_ns: report.held_us.saturating_mul(1_000),
        estimated_ns: report.estimated_us.saturating_mul(1_000),
        backlogged_ns: report.backlogged_us.saturating_mul(1_000),
        idle_ns: report.idle_us.saturating_mul(1_000),
        launches: report.launches,
        done: report.done,
    }
}
