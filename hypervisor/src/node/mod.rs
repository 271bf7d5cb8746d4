//! The daemon's knowledge: sessions, their processes, and one scheduler per device. No I/O and no
//! clock; times are nanoseconds since the daemon's start.

mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use ::limits::{ComputeLimit, GpuId, Policy};
use protocol::{MAX_DEVICES, Register};

use crate::identity::{Caller, Owner};
use crate::limits::{self, QUOTAS, SESSIONS, UNLISTED_DEVICES, WORKERS};
use crate::quotas::{Asked, Quotas};
use crate::refused::CallRefused;
use scheduler::{Grant, Handover, LeaseId, Scheduler, SessionId, Tuning, WorkerId};

/// Idle sessions are looked for, where there is no place left, after so many processes have left:
/// looking takes a millisecond, in which nobody else is served.
const WORTH_FORGETTING: usize = 32;

/// A session belongs to its owner: a process of another owner cannot join it by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SessionKey {
    owner: Owner,
    name: String,
}

#[derive(Debug)]
struct SessionQuotas {
    id: SessionId,
    quotas: BTreeMap<GpuId, ComputeLimit>,
}

#[derive(Debug)]
struct RegisteredProcess {
    pid: i32,
    session: SessionKey,
    /// The devices on which its gates are in its streams.
    in_stream: BTreeSet<GpuId>,
}

/// The result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) worker: WorkerId,
    /// Whether the worker is new and has to be watched.
    pub(crate) new: bool,
    /// The worker that the process was until now.
    pub(crate) former: Option<WorkerId>,
}

#[derive(Debug)]
pub(crate) struct Node {
    tuning: Tuning,
    quotas: Arc<dyn Quotas>,
    sessions: BTreeMap<SessionKey, SessionQuotas>,
    members: BTreeMap<WorkerId, RegisteredProcess>,
    devices: BTreeMap<GpuId, Scheduler>,
    /// Numbers owners for the schedulers.
    owner_numbers: RandomState,
    /// The devices that cannot be looked up, and the user that named each first.
    unlisted: BTreeMap<GpuId, u32>,
    /// How many processes have left their sessions since idle sessions were last forgotten.
    left: usize,
    last_session: u64,
    last_worker: u64,
}

impl Node {
    /// Workers are numbered from `first_worker`, so that a number from before a restart is not
    /// taken for a present one.
    pub(crate) fn new(tuning: Tuning, first_worker: u64, quotas: Arc<dyn Quotas>) -> Self {
        Self {
            tuning,
            quotas,
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            devices: BTreeMap::new(),
            owner_numbers: RandomState::new(),
            unlisted: BTreeMap::new(),
            left: 0,
            last_session: 0,
            last_worker: first_worker,
        }
    }

    /// Whether the process is known, with the same owner.
    pub(crate) fn serves(&self, caller: &Caller) -> bool {
        let is_it = |member: &RegisteredProcess| {
            member.pid == caller.pid && member.session.owner == caller.owner
        };
        self.members.values().any(is_it)
    }

    /// Registers a process, once or once per device. Its leases on the named devices end: it has
    /// forgotten them, or it is a new program with the same pid. `unlisted` are those of the devices
    /// that cannot be looked up.
    pub(crate) fn register(
        &mut self,
        caller: &Caller,
        register: &Register,
        unlisted: &BTreeSet<GpuId>,
        now: u64,
    ) -> Result<Admitted, CallRefused> {
        let said = limits::check(register)?;
        let (pid, uid) = (caller.pid, caller.owner.uid);
        let key = SessionKey { owner: caller.owner.clone(), name: register.session.clone() };
        let present = self.members.iter().find(|(_, member)| member.pid == pid);
        let present = present.map(|(&worker, member)| (worker, member.session == key));
        let (stays, former) = match present {
            Some((worker, true)) => (Some(worker), None),
            Some((worker, false)) => (None, Some(worker)),
            None => (None, None),
        };
        if !self.serves(caller) {
            let users = self.members.values().map(|member| member.session.owner.uid);
            limits::check_fair_part("processes", uid, count(uid, users), WORKERS)?;
        }
        let fits = self.check_bounds(&key, &said, unlisted);
        // A process that moves from one session to another must not keep others out.
        if fits.is_err() && self.left >= WORTH_FORGETTING {
            self.forget_idle(now);
            if self.check_bounds(&key, &said, unlisted).is_err() {
                self.forget_left(uid, now);
            }
            self.check_bounds(&key, &said, unlisted)?;
        } else {
            fits?;
        }
        for &uuid in unlisted {
            self.unlisted.entry(uuid).or_insert(uid);
        }
        if let Some(former) = former {
            self.leave(former, now);
        }
        let session = self.session(&key);
        let worker = stays.unwrap_or_else(|| self.new_worker(pid, &key));
        for (uuid, said) in said {
            let quota = self.quota(&key, uuid, said);
            if let Some(device) = self.devices.get_mut(&uuid) {
                device.leave(worker, now);
            }
            self.set_quota(&key, session, uuid, quota, now);
            if quota.policy != Policy::None {
                self.join(worker, session, uuid);
            }
        }
        Ok(Admitted { worker, new: stays.is_none(), former })
    }

    /// Whether there is a place for what a registration adds: a session, quotas, devices.
    fn check_bounds(
        &self,
        key: &SessionKey,
        said: &BTreeMap<GpuId, ComputeLimit>,
        unlisted: &BTreeSet<GpuId>,
    ) -> Result<(), CallRefused> {
        let uid = key.owner.uid;
        let session = self.sessions.get(key);
        if session.is_none() {
            let users = self.sessions.keys().map(|key| key.owner.uid);
            limits::check_fair_part("sessions", uid, count(uid, users), SESSIONS)?;
        }
        let own = session.map_or(0, |session| session.quotas.len());
        let is_new = |uuid: &&GpuId| session.is_none_or(|known| !known.quotas.contains_key(uuid));
        let more = said.keys().filter(is_new).count();
        if own + more > MAX_DEVICES {
            let session = key.name.clone();
            return Err(CallRefused::SessionDevices { session, own, more });
        }
        let (mut own, mut all) = (0, 0);
        for (key, session) in &self.sessions {
            all += session.quotas.len();
            own += if key.owner.uid == uid { session.quotas.len() } else { 0 };
        }
        let what = "quotas of sessions for devices";
        limits::check_fair_parts(what, uid, (own, all), more, QUOTAS)?;
        let more = unlisted.iter().filter(|uuid| !self.unlisted.contains_key(uuid)).count();
        let has = count(uid, self.unlisted.values().copied());
        limits::check_fair_parts("devices", uid, has, more, UNLISTED_DEVICES)
    }

    /// The session's quota, given what its process says.
    fn quota(&self, key: &SessionKey, uuid: GpuId, said: ComputeLimit) -> ComputeLimit {
        let SessionKey { owner, name } = key;
        self.quotas.quota(&Asked { owner, session: name, uuid, said }).in_range()
    }

    /// Changes what a session may have of a device from now on, and returns it. The latest message
    /// counts, whichever of the session's processes sent it: they read the quota in a page that the
    /// session's user owns.
    pub(crate) fn change(
        &mut self,
        worker: WorkerId,
        pid: i32,
        uuid: GpuId,
        said: ComputeLimit,
        now: u64,
    ) -> Result<ComputeLimit, CallRefused> {
        let key = self.caller(worker, pid)?.session.clone();
        let quota = self.quota(&key, uuid, said);
        let Some(session) = self.sessions.get(&key) else { return Ok(quota) };
        match session.quotas.get(&uuid) {
            None => return Err(CallRefused::UnknownDevice(uuid)),
            Some(present) if *present == quota => return Ok(quota),
            Some(_) => {}
        }
        let id = session.id;
        self.set_quota(&key, id, uuid, quota, now);
        if quota.policy != Policy::None {
            // Processes that had no limit until now, or none on this device, may ask like the
            // others.
            let members: Vec<WorkerId> = self.members_of(&key).map(|(worker, _)| worker).collect();
            for member in members {
                self.join(member, id, uuid);
            }
        }
        Ok(quota)
    }

    fn set_quota(
        &mut self,
        key: &SessionKey,
        session: SessionId,
        uuid: GpuId,
        quota: ComputeLimit,
        now: u64,
    ) {
        if quota.policy == Policy::None {
            let members: Vec<WorkerId> = self.members_of(key).map(|(worker, _)| worker).collect();
            if let Some(device) = self.devices.get_mut(&uuid) {
                for member in members {
                    device.leave(member, now);
                }
            }
        } else {
            let tuning = self.tuning;
            let device = self.devices.entry(uuid).or_insert_with(|| Scheduler::new(tuning));
            // Cannot fail: the share was checked.
            let _ = device.set_session(session, quota, now);
            device.belongs_to(session, self.owner_numbers.hash_one(&key.owner), now);
            let before = self.sessions.get(key).and_then(|session| session.quotas.get(&uuid));
            if before.is_some_and(|before| before.policy == Policy::None) {
                device.forget_savings(session);
            }
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.quotas.insert(uuid, quota);
        }
    }

    fn join(&mut self, worker: WorkerId, session: SessionId, uuid: GpuId) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            // Cannot fail: the session has been added.
            let _ = device.join(worker, session);
            let member = self.members.get(&worker);
            if member.is_some_and(|member| member.in_stream.contains(&uuid)) {
                let _ = device.set_handover(worker, Handover::InStream);
            }
        }
    }

    /// Says how a worker's gates on a device work, also if it has no limit there yet.
    pub(crate) fn set_handover(&mut self, worker: WorkerId, uuid: GpuId, handover: Handover) {
        if let Some(member) = self.members.get_mut(&worker) {
            match handover {
                Handover::InStream => _ = member.in_stream.insert(uuid),
                Handover::OnThread => _ = member.in_stream.remove(&uuid),
            }
        }
        if let Some(device) = self.devices.get_mut(&uuid) {
            // A worker without a limit has not joined.
            let _ = device.set_handover(worker, handover);
        }
    }

    fn members_of(&self, key: &SessionKey) -> impl Iterator<Item = (WorkerId, &RegisteredProcess)> {
        let of_session = self.members.iter().filter(move |(_, member)| member.session == *key);
        of_session.map(|(&worker, member)| (worker, member))
    }

    fn session(&mut self, key: &SessionKey) -> SessionId {
        if let Some(session) = self.sessions.get(key) {
            return session.id;
        }
        self.last_session += 1;
        let id = SessionId(self.last_session);
        self.sessions.insert(key.clone(), SessionQuotas { id, quotas: BTreeMap::new() });
        id
    }

    fn new_worker(&mut self, pid: i32, key: &SessionKey) -> WorkerId {
        self.last_worker += 1;
        let worker = WorkerId(self.last_worker);
        self.members.insert(
            worker,
            RegisteredProcess { pid, session: key.clone(), in_stream: BTreeSet::new() },
        );
        worker
    }

    /// Removes a process that has ended.
    pub(crate) fn leave(&mut self, worker: WorkerId, now: u64) {
        self.members.remove(&worker);
        self.left += 1;
        for device in self.devices.values_mut() {
            device.leave(worker, now);
        }
    }

    /// Forgets sessions that have no process and owe nothing.
    pub(crate) fn forget_idle(&mut self, now: u64) {
        self.left = 0;
        let mut kept: BTreeSet<SessionId> = BTreeSet::new();
        for device in self.devices.values_mut() {
            device.forget_idle(now);
            kept.extend(device.view(now).sessions.iter().map(|view| view.session));
        }
        self.devices.retain(|_, device| !device.is_empty());
        let used: BTreeSet<&SessionKey> =
            self.members.values().map(|member| &member.session).collect();
        self.sessions.retain(|key, session| kept.contains(&session.id) || used.contains(key));
        let named: BTreeSet<&GpuId> =
            self.sessions.values().flat_map(|session| session.quotas.keys()).collect();
        self.unlisted.retain(|uuid, _| named.contains(uuid));
    }

    /// Forgets a user's sessions that have no process, whatever they owe. A debt of a tiny share
    /// takes hours to earn back, and would keep the user's other programs out. Nobody gains by it: a
    /// debt of 10 s at most goes for each place that is filled with debtors.
    fn forget_left(&mut self, uid: u32, now: u64) {
        let used: BTreeSet<&SessionKey> =
            self.members.values().map(|member| &member.session).collect();
        let left =
            self.sessions.iter().filter(|(key, _)| key.owner.uid == uid && !used.contains(key));
        for (_, session) in left {
            for uuid in session.quotas.keys() {
                if let Some(device) = self.devices.get_mut(uuid) {
                    device.forget(session.id);
                }
            }
        }
        self.forget_idle(now);
    }

    /// The scheduler for a worker's call.
    pub(crate) fn device(
        &mut self,
        worker: WorkerId,
        pid: i32,
        uuid: GpuId,
    ) -> Result<&mut Scheduler, CallRefused> {
        let member = self.caller(worker, pid)?;
        let quota =
            self.sessions.get(&member.session).and_then(|session| session.quotas.get(&uuid));
        match quota.map(|quota| quota.policy) {
            None => Err(CallRefused::UnknownDevice(uuid)),
            Some(Policy::None) => Err(CallRefused::NoLimit(uuid)),
            Some(Policy::Fixed | Policy::Balance) => {
                self.devices.get_mut(&uuid).ok_or(CallRefused::UnknownDevice(uuid))
            }
        }
    }

    fn caller(&self, worker: WorkerId, pid: i32) -> Result<&RegisteredProcess, CallRefused> {
        let member = self.members.get(&worker).ok_or(CallRefused::UnknownWorker(worker.0))?;
        if member.pid == pid { Ok(member) } else { Err(CallRefused::NotYours(worker.0)) }
    }

    /// The devices with at least one worker that holds or asks.
    pub(crate) fn in_use(&self) -> Vec<GpuId> {
        let in_use = self.devices.iter().filter(|(_, device)| device.is_in_use());
        in_use.map(|(&uuid, _)| uuid).collect()
    }

    pub(crate) fn decide(&mut self, uuid: GpuId, now: u64) -> Vec<Grant> {
        self.devices.get_mut(&uuid).map(|device| device.decide(now)).unwrap_or_default()
    }

    /// The leases that end early from now on. Each is named once.
    pub(crate) fn stopped(&mut self, uuid: GpuId, now: u64) -> Vec<(WorkerId, LeaseId)> {
        self.devices.get_mut(&uuid).map(|device| device.to_stop(now)).unwrap_or_default()
    }

    /// Takes back a grant that could not be delivered.
    pub(crate) fn give_back(&mut self, uuid: GpuId, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            device.take_back(worker, lease, now);
        }
    }

    /// Ends all leases and asks.
    pub(crate) fn dismiss_all(&mut self, now: u64) {
        for device in self.devices.values_mut() {
            device.dismiss_all(now);
        }
    }

    /// Whether any worker holds or asks.
    pub(crate) fn is_in_use(&self) -> bool {
        self.devices.values().any(Scheduler::is_in_use)
    }

    pub(crate) fn withdraw(&mut self, uuid: GpuId, worker: WorkerId, now: u64) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            device.withdraw(worker, now);
        }
    }

    pub(crate) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.devices.values().filter_map(|device| device.next_deadline(now)).min()
    }
}

/// How many of the items are one user's, and how many there are.
fn count(uid: u32, users: impl Iterator<Item = u32>) -> (usize, usize) {
    users.fold((0, 0), |(own, all), user| (own + usize::from(user == uid), all + 1))
}
