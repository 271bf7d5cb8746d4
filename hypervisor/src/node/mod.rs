//! The daemon's knowledge: sessions, their processes, and one scheduler per device. No I/O and no
//! clock; times are nanoseconds since the daemon's start.

mod forget;
mod frozen;
pub(crate) mod measure;
pub(crate) mod served;
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod status;
#[cfg(test)]
mod tests;
mod withheld;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use ::limits::{ComputeLimit, GpuId, Policy};
use api::EventKind;
use protocol::{MAX_DEVICES, Register, Withheld};

use crate::events::Happened;
use crate::identity::{Caller, Owner};
use crate::limits::{self, QUOTAS, SESSIONS, UNLISTED_DEVICES, WORKERS};
use crate::quotas::{Asked, Quotas};
use crate::refused::CallRefused;
use scheduler::{
    Gangs, Grant, Handover, LeaseId, Scheduler, SessionId, SessionView, Tuning, WorkerId,
};
use served::{Served, WorkerServed};
use session::process::ProcessIdentity;
use snapshot::{Delivered, Restored, SavedAccount};

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
    /// Who was the last to tell of its limit on a device.
    limited_by: BTreeMap<GpuId, WorkerId>,
    /// The devices that it uses together, and the processes that say so of each.
    together: BTreeMap<GpuId, BTreeSet<WorkerId>>,
    /// What it was charged before its present accounts.
    before: BTreeMap<GpuId, Delivered>,
    /// Accounts from before a restart, and as of when they count, until they are used again.
    unclaimed: BTreeMap<GpuId, (SavedAccount, u64)>,
    /// It is granted nothing.
    frozen: bool,
    /// The turns that it got.
    served: BTreeMap<GpuId, Served>,
}

impl SessionQuotas {
    fn new(id: SessionId) -> Self {
        let (quotas, together) = (BTreeMap::new(), BTreeMap::new());
        let (before, unclaimed) = (BTreeMap::new(), BTreeMap::new());
        let (served, limited_by) = (BTreeMap::new(), BTreeMap::new());
        Self { id, quotas, limited_by, together, before, unclaimed, frozen: false, served }
    }

    /// Goes on where it was before a restart.
    fn restored(from: Restored) -> Self {
        let Restored { id, frozen, devices, since, .. } = from;
        let mut session = Self { frozen, ..Self::new(id) };
        for (uuid, account) in devices {
            session.before.insert(uuid, account.delivered);
            session.unclaimed.insert(uuid, (account, since));
        }
        session
    }

    /// All that it was charged on a device. `view`: its present account there.
    fn delivered(&self, uuid: GpuId, view: Option<&SessionView>) -> Delivered {
        let before = self.before.get(&uuid).copied().unwrap_or_default();
        view.map_or(before, |view| before.and(view.charged_ns, view.spare_ns))
    }
}

#[derive(Debug)]
struct RegisteredProcess {
    pid: i32,
    /// As in [`Caller::started`].
    started: Option<u64>,
    session: SessionKey,
    /// The unit of systemd that it runs in.
    unit: Option<String>,
    /// The devices on which its gates are in its streams.
    in_stream: BTreeSet<GpuId>,
    /// The turns that it got.
    served: BTreeMap<GpuId, WorkerServed>,
}

impl RegisteredProcess {
    /// Whether it is the caller. A process that has ended may have left its connection to another one, and its id, too.
    fn is(&self, caller: &Caller) -> bool {
        (self.pid, self.started, self.session.owner) == (caller.pid, caller.started, caller.owner)
    }

    /// The process, if it is known when it started.
    fn identity(&self) -> Option<ProcessIdentity> {
        let start_time = self.started?;
        Some(ProcessIdentity { pid: self.pid.unsigned_abs(), start_time })
    }
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

pub(crate) use snapshot::Snapshot;

#[derive(Debug)]
pub(crate) struct Node {
    tuning: Tuning,
    quotas: Arc<dyn Quotas>,
    sessions: BTreeMap<SessionKey, SessionQuotas>,
    members: BTreeMap<WorkerId, RegisteredProcess>,
    devices: BTreeMap<GpuId, Scheduler>,
    /// The devices on which nobody is granted anything, and why.
    withheld: BTreeMap<GpuId, Withheld>,
    gangs: Gangs<GpuId>,
    /// The sessions from before a restart that wait for their processes.
    restored: BTreeMap<SessionKey, Restored>,
    /// What each device gave to sessions whose accounts are gone.
    delivered: BTreeMap<GpuId, Delivered>,
    /// The turns on each device.
    served: BTreeMap<GpuId, Served>,
    /// Numbers owners for the schedulers.
    owner_numbers: RandomState,
    /// The devices that cannot be looked up, and the user that named each first.
    unlisted: BTreeMap<GpuId, u32>,
    /// How many processes have left their sessions since idle sessions were last forgotten.
    left: usize,
    last_session: u64,
    last_worker: u64,
    /// What has happened, until it is taken.
    happened: Vec<Happened>,
}

impl Node {
    /// Workers and sessions are numbered from `first`, so that a number from before a restart is not
    /// taken for a present one.
    pub(crate) fn new(tuning: Tuning, first: u64, quotas: Arc<dyn Quotas>) -> Self {
        Self {
            tuning,
            quotas,
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            devices: BTreeMap::new(),
            withheld: BTreeMap::new(),
            gangs: Gangs::default(),
            restored: BTreeMap::new(),
            delivered: BTreeMap::new(),
            served: BTreeMap::new(),
            owner_numbers: RandomState::new(),
            unlisted: BTreeMap::new(),
            left: 0,
            last_session: first,
            last_worker: first,
            happened: Vec::new(),
        }
    }

    /// Whether the process is known, with the same owner.
    pub(crate) fn serves(&self, caller: &Caller) -> bool {
        self.members.values().any(|member| member.is(caller))
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
        let key = SessionKey { owner: caller.owner, name: register.session.clone() };
        let present = self.members.iter().find(|(_, member)| member.pid == pid);
        let stays = |member: &RegisteredProcess| member.is(caller) && member.session == key;
        let present = present.map(|(&worker, member)| (worker, stays(member)));
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
        let worker = stays.unwrap_or_else(|| self.new_worker(caller, &key));
        for (uuid, said) in said {
            let quota = self.quota(&key, uuid, said);
            if let Some(device) = self.devices.get_mut(&uuid) {
                device.leave(worker, now);
            }
            // It may have been sent before the session came to be limited. Who told of the limit tells of its end.
            let is_late =
                quota.policy == Policy::None && self.is_limited_by_other(&key, uuid, worker);
            if !is_late {
                self.set_quota(&key, session, uuid, quota, now);
                self.note_who_limits(&key, uuid, worker, quota);
            }
            if is_late || quota.policy != Policy::None {
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
        caller: &Caller,
        uuid: GpuId,
        said: ComputeLimit,
        now: u64,
    ) -> Result<ComputeLimit, CallRefused> {
        let key = self.caller(worker, caller)?.session.clone();
        let quota = self.quota(&key, uuid, said);
        let Some(session) = self.sessions.get(&key) else { return Ok(quota) };
        let (id, present) = (session.id, session.quotas.get(&uuid).copied());
        let Some(present) = present else { return Err(CallRefused::UnknownDevice(uuid)) };
        self.note_who_limits(&key, uuid, worker, quota);
        if present == quota {
            return Ok(quota);
        }
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

    fn note_who_limits(
        &mut self,
        key: &SessionKey,
        uuid: GpuId,
        worker: WorkerId,
        to: ComputeLimit,
    ) {
        if let Some(session) = self.sessions.get_mut(key) {
            match to.policy {
                Policy::None => _ = session.limited_by.remove(&uuid),
                Policy::Fixed | Policy::Balance => _ = session.limited_by.insert(uuid, worker),
            }
        }
    }

    /// Whether another process of the session, which is still there, was the last to tell of its limit.
    fn is_limited_by_other(&self, key: &SessionKey, uuid: GpuId, worker: WorkerId) -> bool {
        let told_by = self.sessions.get(key).and_then(|session| session.limited_by.get(&uuid));
        told_by.is_some_and(|told_by| *told_by != worker && self.members.contains_key(told_by))
    }

    fn set_quota(
        &mut self,
        key: &SessionKey,
        session: SessionId,
        uuid: GpuId,
        quota: ComputeLimit,
        now: u64,
    ) {
        let known = self.sessions.get(key).and_then(|known| known.quotas.get(&uuid).copied());
        if known.is_some_and(|known| known != quota) {
            self.happened_on(EventKind::LimitsChanged, key, session, uuid);
        }
        if quota.policy == Policy::None {
            self.thaw_without_limit(key, now);
            let members: Vec<WorkerId> = self.members_of(key).map(|(worker, _)| worker).collect();
            if let Some(device) = self.devices.get_mut(&uuid) {
                for member in members {
                    device.leave(member, now);
                }
            }
        } else {
            let tuning = self.tuning;
            let device = self.devices.entry(uuid).or_insert_with(|| Scheduler::new(tuning));
            if self.withheld.contains_key(&uuid) {
                device.suspend(now);
            }
            // Cannot fail: the share was checked.
            let _ = device.set_session(session, quota, now);
            let state = self.sessions.get_mut(key);
            let frozen = state.as_ref().is_some_and(|state| state.frozen);
            if let Some((saved, at)) = state.and_then(|state| state.unclaimed.remove(&uuid)) {
                device.restore(session, saved.left(), at);
            }
            device.belongs_to(session, self.owner_numbers.hash_one(key.owner.party()), now);
            if known.is_some_and(|known| known.policy == Policy::None) {
                device.forget_savings(session);
            }
            if frozen {
                device.freeze(session, now);
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
                Handover::OnThread | Handover::Together => _ = member.in_stream.remove(&uuid),
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
        let session = match self.restored.remove(key) {
            Some(restored) => SessionQuotas::restored(restored),
            None => SessionQuotas::new(self.next_session()),
        };
        let id = session.id;
        self.sessions.insert(key.clone(), session);
        self.happened(EventKind::SessionCame, key, id);
        id
    }

    fn next_session(&mut self) -> SessionId {
        self.last_session += 1;
        SessionId(self.last_session)
    }

    fn new_worker(&mut self, caller: &Caller, key: &SessionKey) -> WorkerId {
        self.last_worker += 1;
        let worker = WorkerId(self.last_worker);
        let Caller { pid, started, unit, .. } = caller.clone();
        let (session, in_stream, served) = (key.clone(), BTreeSet::new(), BTreeMap::new());
        let process = RegisteredProcess { pid, started, session, unit, in_stream, served };
        self.members.insert(worker, process);
        worker
    }

    /// A worker says whether its session uses a device together with others. One that does not know of it changes
    /// nothing for those that do.
    pub(crate) fn set_together(&mut self, worker: WorkerId, uuid: GpuId, together: bool) {
        let Some(member) = self.members.get(&worker) else { return };
        let Some(session) = self.sessions.get_mut(&member.session) else { return };
        let before = session.together.len();
        if together && session.quotas.contains_key(&uuid) {
            session.together.entry(uuid).or_default().insert(worker);
        } else if let Some(say_so) = session.together.get_mut(&uuid) {
            say_so.remove(&worker);
            session.together.retain(|_, say_so| !say_so.is_empty());
        }
        if session.together.len() != before {
            self.tell_together(&member.session.clone());
        }
    }

    fn tell_together(&mut self, key: &SessionKey) {
        let Some(session) = self.sessions.get(key) else { return };
        let devices = session.together.keys().copied().collect();
        self.gangs.set(session.id, devices, &mut self.devices);
    }

    /// A worker asks for its lease to go on.
    pub(crate) fn renew(
        &mut self,
        worker: WorkerId,
        uuid: GpuId,
        lease: LeaseId,
        now: u64,
    ) -> Option<Grant> {
        let member = self.members.get(&worker)?;
        let session = self.sessions.get(&member.session)?.id;
        let of_gang = self.gangs.renew(session, uuid, (worker, lease), &mut self.devices, now);
        match of_gang {
            Ok(renewed) => renewed,
            Err(scheduler::NoGang) => self.devices.get_mut(&uuid)?.renew(worker, lease, now),
        }
    }

    /// Grants what sessions can have that use several devices together.
    pub(crate) fn decide_together(&mut self, now: u64) -> Vec<(GpuId, Grant)> {
        self.gangs.decide(&mut self.devices, now)
    }

    /// Whether there may be such sessions.
    pub(crate) fn has_gangs(&self) -> bool {
        !self.gangs.is_empty()
    }

    /// Removes a process that has ended.
    pub(crate) fn leave(&mut self, worker: WorkerId, now: u64) {
        let member = self.members.remove(&worker);
        self.left += 1;
        if let Some(key) = member.map(|member| member.session)
            && let Some(session) = self.sessions.get_mut(&key)
        {
            let before = session.together.len();
            session.together.values_mut().for_each(|say_so| _ = say_so.remove(&worker));
            session.together.retain(|_, say_so| !say_so.is_empty());
            if session.together.len() != before {
                self.tell_together(&key);
            }
        }
        for device in self.devices.values_mut() {
            device.leave(worker, now);
        }
    }

    /// The scheduler for a worker's call.
    pub(crate) fn device(
        &mut self,
        worker: WorkerId,
        caller: &Caller,
        uuid: GpuId,
    ) -> Result<&mut Scheduler, CallRefused> {
        let member = self.caller(worker, caller)?;
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

    fn caller(&self, worker: WorkerId, caller: &Caller) -> Result<&RegisteredProcess, CallRefused> {
        let own = self.members.get(&worker).filter(|member| member.is(caller));
        own.ok_or(CallRefused::UnknownWorker(worker.0))
    }

    /// The devices with at least one worker that holds or asks.
    pub(crate) fn in_use(&self) -> Vec<GpuId> {
        let in_use = self.devices.iter().filter(|(_, device)| device.is_in_use());
        in_use.map(|(&uuid, _)| uuid).collect()
    }

    pub(crate) fn all_devices(&self) -> Vec<GpuId> {
        self.devices.keys().copied().collect()
    }

    pub(crate) fn decide(&mut self, uuid: GpuId, now: u64) -> Vec<Grant> {
        self.devices.get_mut(&uuid).map(|device| device.decide(now)).unwrap_or_default()
    }

    /// The leases that end early from now on. Each is named once.
    pub(crate) fn stopped(&mut self, uuid: GpuId, now: u64) -> Vec<(WorkerId, LeaseId)> {
        let Some(device) = self.devices.get_mut(&uuid) else { return Vec::new() };
        let stopped = device.to_stop(now);
        // Counted, and no events: they are many, and would displace all others.
        for (worker, _) in &stopped {
            let Some(member) = self.members.get(worker) else { continue };
            let Some(session) = self.sessions.get_mut(&member.session) else { continue };
            session.served.entry(uuid).or_default().stopped += 1;
        }
        stopped
    }

    /// The leases that may be kept from now on while they are not used, or may not any more.
    pub(crate) fn kept(&mut self, uuid: GpuId, now: u64) -> Vec<(WorkerId, LeaseId, bool)> {
        self.devices.get_mut(&uuid).map(|device| device.to_keep(now)).unwrap_or_default()
    }

    /// Takes back a grant that could not be delivered.
    pub(crate) fn give_back(&mut self, uuid: GpuId, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            device.take_back(worker, lease, now);
        }
    }

    /// Ends a lease of which nothing more will be heard.
    pub(crate) fn end_unreported(
        &mut self,
        uuid: GpuId,
        worker: WorkerId,
        lease: LeaseId,
        now: u64,
    ) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            device.end_unreported(worker, lease, now);
        }
    }

    /// The worker says that all work of its lease is done. `false`: it does not hold it.
    pub(crate) fn ended(
        &mut self,
        uuid: GpuId,
        worker: WorkerId,
        lease: LeaseId,
        now: u64,
    ) -> bool {
        self.devices.get_mut(&uuid).is_some_and(|device| device.ended(worker, lease, now))
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
        let devices = self.devices.values().filter_map(|device| device.next_deadline(now));
        devices.chain(self.gangs.next_deadline(now)).min()
    }
}

/// How many of the items are one user's, and how many there are.
fn count(uid: u32, users: impl Iterator<Item = u32>) -> (usize, usize) {
    users.fold((0, 0), |(own, all), user| (own + usize::from(user == uid), all + 1))
}
