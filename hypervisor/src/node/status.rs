//! The node's state as messages of the API.

use std::collections::BTreeMap;

use ::limits::{ComputeLimit, GpuId, Policy};
use api::{
    Class, Container, Device, DeviceState, Lease, LeaseList, Presence, Session, SessionDevice,
    SessionList, SessionMemory, SessionState, Sharing, SharingReason, SharingWay, Sums, Withheld,
    Worker, WorkerDevice, WorkerList, WorkerState,
};
use observer::View;
use scheduler::{
    Chosen, DeviceView, Paid, Reason, Scheduler, SessionId, SessionView, Way, WorkerId,
};
use session::layout::MemoryKind;
use session::ledger::RefusedFor;

use super::snapshot::{Delivered, Restored, SavedAccount};
use super::{Node, RegisteredProcess, SessionKey, SessionQuotas};
use crate::identity::Owner;
use crate::observe;
use crate::page_memory::{MemoryFigures, Sample};

/// Whether the caller may see a session. `only`: the caller's owner, or `None` for a caller who sees all.
fn sees(only: Option<&Owner>, key: &SessionKey) -> bool {
    only.is_none_or(|owner| *owner == key.owner)
}

impl Node {
    /// The devices: what the observer sees, and sums over the sessions that the caller may see and over the others.
    pub(crate) fn devices(&mut self, only: Option<&Owner>, seen: &View, now: u64) -> Vec<Device> {
        let views = self.views(now);
        let known: BTreeMap<SessionId, (bool, &SessionQuotas)> = self
            .sessions
            .iter()
            .map(|(key, session)| (session.id, (sees(only, key), session)))
            .collect();
        let is_own = |session: SessionId| known.get(&session).is_some_and(|&(own, _)| own);
        let mut devices: BTreeMap<GpuId, [Sums; 2]> = BTreeMap::new();
        for (uuid, view) in &views {
            let sums = devices.entry(*uuid).or_default();
            for state in &view.sessions {
                let delivered = known
                    .get(&state.session)
                    .map_or_else(Delivered::default, |known| known.1.delivered(*uuid, Some(state)));
                let sum = &mut sums[usize::from(!is_own(state.session))];
                add(sum, state.quota.share_ppm, delivered);
                sum.asking += u64::from(state.asks);
            }
            for lease in &view.leases {
                sums[usize::from(!is_own(lease.session))].leases += 1;
            }
        }
        for (key, restored) in &self.restored {
            for (&uuid, account) in &restored.devices {
                let sums = devices.entry(uuid).or_default();
                let sum = &mut sums[usize::from(!sees(only, key))];
                add(sum, account.limit.share_ppm, account.delivered);
            }
        }
        for device in &seen.devices {
            devices.entry(device.reading.uuid).or_default();
        }
        let device = |(uuid, [own, others]): (GpuId, [Sums; 2])| {
            let is_in_use = self.devices.get(&uuid).is_some_and(Scheduler::is_in_use);
            let state = if is_in_use { DeviceState::InUse } else { DeviceState::Idle };
            let seen = seen.device(uuid);
            Device {
                uuid: uuid.to_string(),
                state,
                health: seen.map(observe::health).unwrap_or_default(),
                unhealthy: seen.and_then(|seen| seen.health.reason()),
                withheld: self.withheld(uuid).and_then(shown_withheld),
                cordoned: seen.is_some_and(|seen| seen.cordoned),
                declared_healthy: seen.map_or(0, |seen| seen.declared_healthy),
                figures: seen.map(observe::figures),
                unknown: seen.map_or(0, |seen| seen.unknown.len() as u64),
                unknown_seen: seen.map_or(0, |seen| seen.unknown_seen),
                unknown_processes: seen
                    .map(|seen| observe::unknown_processes(seen, only))
                    .unwrap_or_default(),
                own,
                others,
            }
        };
        devices.into_iter().map(device).collect()
    }

    /// The sessions that a caller may see. `id`: only this one.
    pub(crate) fn sessions(
        &mut self,
        only: Option<&Owner>,
        id: Option<u64>,
        pages: &Sample,
        now: u64,
    ) -> SessionList {
        let views = self.views(now);
        let mut pids: BTreeMap<&SessionKey, Vec<i32>> = BTreeMap::new();
        for member in self.members.values() {
            pids.entry(&member.session).or_default().push(member.pid);
        }
        let shown = |key: &SessionKey, session: SessionId| {
            sees(only, key) && id.is_none_or(|id| session == SessionId(id))
        };
        let present = self.sessions.iter().filter(|(key, session)| shown(key, session.id));
        let present = present.map(|(key, session)| {
            let pids = pids.get(key).cloned().unwrap_or_default();
            let presence = if pids.is_empty() { Presence::Left } else { Presence::Active };
            let devices = on_devices(session, &views, now);
            Session {
                pids,
                presence,
                devices,
                memory: memory(key, pages),
                called: pages.called(&key.owner, &key.name).map(str::to_owned),
                ..without_processes(key, session.id, session.frozen)
            }
        });
        let restored = self.restored.iter().filter(|(key, restored)| shown(key, restored.id));
        let restored = restored.map(|(key, restored)| Session {
            devices: before_restart(restored),
            ..without_processes(key, restored.id, restored.frozen)
        });
        let sessions: Vec<Session> = present.chain(restored).collect();
        let all = self.sessions.keys().chain(self.restored.keys());
        let others = all.filter(|key| !sees(only, key)).count() as u64;
        SessionList { sessions, others }
    }

    /// The processes that a caller may see.
    pub(crate) fn workers(&self, only: Option<&Owner>) -> WorkerList {
        let own = self.members.iter().filter(|(_, member)| sees(only, &member.session));
        let workers: Vec<Worker> =
            own.map(|(&worker, member)| self.worker(worker, member)).collect();
        let others = (self.members.len() - workers.len()) as u64;
        WorkerList { workers, others }
    }

    fn worker(&self, worker: WorkerId, member: &RegisteredProcess) -> Worker {
        let session = self.sessions.get(&member.session);
        let limited = session.into_iter().flat_map(|session| &session.quotas);
        let limited = limited.filter(|(_, quota)| quota.policy != Policy::None);
        let devices = limited.filter_map(|(uuid, _)| {
            let state = work_state(self.devices.get(uuid)?, worker);
            Some(WorkerDevice { uuid: uuid.to_string(), state })
        });
        Worker {
            pid: member.pid,
            uid: member.session.owner.uid,
            session: session.map_or(0, |session| session.id.0),
            unit: member.unit.clone(),
            devices: devices.collect(),
            in_stream: member.in_stream.iter().map(GpuId::to_string).collect(),
        }
    }

    /// The leases that a caller may see.
    pub(crate) fn leases(&mut self, only: Option<&Owner>, now: u64) -> LeaseList {
        let (mut leases, mut others) = (Vec::new(), 0);
        for (uuid, view) in self.views(now) {
            for lease in view.leases {
                let member = self.members.get(&lease.worker);
                match member.filter(|member| sees(only, &member.session)) {
                    Some(member) => leases.push(Lease {
                        uuid: uuid.to_string(),
                        session: lease.session.0,
                        pid: member.pid,
                        held_us: lease.held_ns / 1_000,
                        spare: lease.paid == Paid::Spare,
                        revoked: lease.revoked,
                    }),
                    None => others += 1,
                }
            }
        }
        LeaseList { leases, others }
    }

    /// Number of sessions seen since the start that still exist.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn process_count(&self) -> usize {
        self.members.len()
    }

    /// Whether any process has named a device.
    pub(crate) fn knows_a_device(&self) -> bool {
        self.sessions.values().any(|session| !session.quotas.is_empty())
            || !self.restored.is_empty()
    }

    fn views(&mut self, now: u64) -> Vec<(GpuId, DeviceView)> {
        self.devices.iter_mut().map(|(&uuid, device)| (uuid, device.view(now))).collect()
    }
}

const fn shown_withheld(withheld: protocol::Withheld) -> Option<Withheld> {
    match withheld {
        protocol::Withheld::Unhealthy => Some(Withheld::Unhealthy),
        protocol::Withheld::UnknownProcess => Some(Withheld::UnknownProcess),
        protocol::Withheld::Frozen | protocol::Withheld::Other => None,
    }
}

fn add(sum: &mut Sums, share_ppm: u32, delivered: Delivered) {
    sum.sessions += 1;
    sum.share_ppm += u64::from(share_ppm);
    sum.charged_us = sum.charged_us.saturating_add(delivered.shown() / 1_000);
}

fn work_state(device: &Scheduler, worker: WorkerId) -> WorkerState {
    match device.state_of(worker) {
        scheduler::WorkerState::Idle => WorkerState::Idle,
        scheduler::WorkerState::Asking => WorkerState::Asking,
        scheduler::WorkerState::Holding => WorkerState::Holding,
        scheduler::WorkerState::Revoked => WorkerState::Revoked,
    }
}

fn without_processes(key: &SessionKey, id: SessionId, frozen: bool) -> Session {
    let SessionKey { owner, name } = key;
    Session {
        id: id.0,
        uid: owner.uid,
        container: owner.container.map(|container| Container {
            runtime: container.runtime.to_string(),
            id: container.id.to_string(),
            user: container.user,
        }),
        pod: owner.pod.map(|pod| pod.to_string()),
        name: name.clone(),
        called: None,
        presence: Presence::Restored,
        state: if frozen { SessionState::Frozen } else { SessionState::Running },
        pids: Vec::new(),
        devices: Vec::new(),
        memory: Vec::new(),
    }
}

/// A session's memory from its pages, if the daemon sees them.
fn memory(key: &SessionKey, pages: &Sample) -> Vec<SessionMemory> {
    let of = |(uuid, figures): (GpuId, &MemoryFigures)| {
        let bytes = |kind: MemoryKind| figures.bytes[kind as usize];
        let refused = figures.refused_for.iter().zip(RefusedFor::ALL);
        let by_limits = refused.filter(|(_, reason)| *reason != RefusedFor::Device);
        SessionMemory {
            uuid: uuid.to_string(),
            limit_bytes: figures.limit,
            real_bytes: figures.real,
            used_bytes: figures.total(),
            peak_bytes: figures.peak.max(figures.total()),
            data_bytes: bytes(MemoryKind::Data),
            context_bytes: bytes(MemoryKind::Context),
            pool_bytes: bytes(MemoryKind::Pool),
            graph_bytes: bytes(MemoryKind::Graph),
            array_bytes: bytes(MemoryKind::Array),
            overcommitted_bytes: bytes(MemoryKind::Overcommitted),
            driver_bytes: bytes(MemoryKind::Driver),
            headroom_bytes: bytes(MemoryKind::Headroom),
            refusals: by_limits.fold(0, |sum: u64, (count, _)| sum.saturating_add(*count)),
        }
    };
    pages.of(&key.owner, &key.name).map(of).collect()
}

fn on_devices(
    session: &SessionQuotas,
    views: &[(GpuId, DeviceView)],
    now: u64,
) -> Vec<SessionDevice> {
    let on = |(uuid, view): &(GpuId, DeviceView)| {
        let state = view.sessions.iter().find(|state| state.session == session.id)?;
        let waited_ns = session.served.get(uuid).map_or(0, |served| served.waited_ns);
        let known = on_device(*uuid, state, session.delivered(*uuid, Some(state)));
        let on = |view: &DeviceView| sharing(view.way.as_ref()?, session.id, now);
        // The ways of those that hold several devices together are compared on one of them, for all.
        let all = session.together.contains_key(uuid).then_some(views).into_iter().flatten();
        let sharing = on(view).or_else(|| all.filter_map(|(_, view)| on(view)).next());
        Some(SessionDevice { waited_us: waited_ns / 1_000, sharing, ..known })
    };
    views.iter().filter_map(on).collect()
}

/// How a session shares a device with others that want it as much; `None`: it is none of them.
fn sharing(chosen: &Chosen, session: SessionId, now: u64) -> Option<Sharing> {
    let (_, [turns, overlap]) = chosen.rates.iter().find(|(id, _)| *id == session)?;
    Some(Sharing {
        way: match chosen.way {
            Way::Turns => SharingWay::Turns,
            Way::Overlap => SharingWay::Overlap,
        },
        reason: match chosen.reason {
            Reason::NotCompared => SharingReason::NotCompared,
            Reason::MoreDone => SharingReason::MoreDone,
            Reason::Guarantee => SharingReason::Guarantee,
        },
        since_us: now.saturating_sub(chosen.since) / 1_000,
        launches_in_turns: turns.map(|rate| rate.launches),
        launches_at_once: overlap.map(|rate| rate.launches),
    })
}

fn on_device(uuid: GpuId, state: &SessionView, delivered: Delivered) -> SessionDevice {
    SessionDevice {
        recent_ppm: state.recent_ppm,
        mean_ppm: state.mean_ppm,
        density_ppm: state.density_ppm,
        class: match state.class {
            scheduler::Class::Dense => Class::Dense,
            scheduler::Class::Sparse => Class::Sparse,
        },
        asks: state.asks,
        ..account(uuid, &state.quota, state.balance_ns, delivered)
    }
}

fn before_restart(restored: &Restored) -> Vec<SessionDevice> {
    let limited = restored.devices.values();
    let limited = limited.filter(|account| account.limit.policy != Policy::None);
    limited
        .map(|&SavedAccount { uuid, limit, balance_ns, delivered, .. }| {
            account(uuid, &limit, balance_ns, delivered)
        })
        .collect()
}

/// A session's account without processes.
fn account(
    uuid: GpuId,
    quota: &ComputeLimit,
    balance_ns: i64,
    delivered: Delivered,
) -> SessionDevice {
    SessionDevice {
        uuid: uuid.to_string(),
        policy: quota.policy.into(),
        share_ppm: quota.share_ppm,
        soft_ppm: quota.soft_ppm,
        weight: quota.weight,
        priority: quota.priority.into(),
        balance_us: balance_ns / 1_000,
        charged_us: delivered.shown() / 1_000,
        spare_us: delivered.spare_ns / 1_000,
        waited_us: 0,
        recent_ppm: None,
        mean_ppm: None,
        density_ppm: None,
        class: Class::Dense,
        sharing: None,
        asks: false,
    }
}
