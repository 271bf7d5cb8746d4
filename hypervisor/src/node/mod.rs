//! The daemon's model: sessions, their processes, and one scheduler per device. No I/O and no clock; times are
//! nanoseconds since the daemon's start.

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
    Chosen, Gangs, Grant, Handover, LeaseId, Scheduler, SessionId, SessionView, Way, WorkerId,
};
use served::{Served, WorkerServed};
use session::process::ProcessIdentity;
use snapshot::{Delivered, Restored, SavedAccount};

/// Exits of processes before idle sessions are searched for when there is no room. A search takes a millisecond in
/// which nothing else is served.
const WORTH_FORGETTING: usize = 32;

/// Key of a session. It includes the owner: a process of another owner cannot join the session by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SessionKey {
    owner: Owner,
    name: String,
}

#[derive(Debug)]
struct SessionQuotas {
    id: SessionId,
    quotas: BTreeMap<GpuId, ComputeLimit>,
    /// The worker that last reported the session's limit, by device.
    limited_by: BTreeMap<GpuId, WorkerId>,
    /// Devices used together (as a gang), and the workers that say so.
    together: BTreeMap<GpuId, BTreeSet<WorkerId>>,
    /// Charges before the current accounts.
    before: BTreeMap<GpuId, Delivered>,
    /// Accounts from before a restart, and the time as of which they apply, until they are used again.
    unclaimed: BTreeMap<GpuId, (SavedAccount, u64)>,
    /// No lease is granted.
    frozen: bool,
    /// Leases and waits.
    served: BTreeMap<GpuId, Served>,
}

impl SessionQuotas {
    fn new(id: SessionId) -> Self {
        let (quotas, together) = (BTreeMap::new(), BTreeMap::new());
        let (before, unclaimed) = (BTreeMap::new(), BTreeMap::new());
        let (served, limited_by) = (BTreeMap::new(), BTreeMap::new());
        Self { id, quotas, limited_by, together, before, unclaimed, frozen: false, served }
    }

    /// Continues a session from before a restart.
    fn restored(from: Restored) -> Self {
        let Restored { id, frozen, devices, since, .. } = from;
        let mut session = Self { frozen, ..Self::new(id) };
        for (uuid, account) in devices {
            session.before.insert(uuid, account.delivered);
            session.unclaimed.insert(uuid, (account, since));
        }
        session
    }

    /// All charges to the session on a device. `view`: its current account there.
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
    /// The systemd unit that the process runs in.
    unit: Option<String>,
    /// Devices on which the process's gates are in its streams.
    in_stream: BTreeSet<GpuId>,
    /// Leases and waits.
    served: BTreeMap<GpuId, WorkerServed>,
}

impl RegisteredProcess {
    /// Whether the process is the caller. A process that has ended may have left its connection to another process, or
    /// its id may be reused.
    fn is(&self, caller: &Caller) -> bool {
        (self.pid, self.started, self.session.owner) == (caller.pid, caller.started, caller.owner)
    }

    /// The process's identity, if its start time is known.
    fn identity(&self) -> Option<ProcessIdentity> {
        let start_time = self.started?;
        Some(ProcessIdentity { pid: self.pid.unsigned_abs(), start_time })
    }
}

/// The result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) worker: WorkerId,
    /// Whether the worker is new and must be watched.
    pub(crate) new: bool,
    /// The process's previous worker, which has been removed.
    pub(crate) former: Option<WorkerId>,
}

pub(crate) use snapshot::Snapshot;

#[derive(Debug)]
pub(crate) struct Node {
    quotas: Arc<dyn Quotas>,
    sessions: BTreeMap<SessionKey, SessionQuotas>,
    members: BTreeMap<WorkerId, RegisteredProcess>,
    devices: BTreeMap<GpuId, Scheduler>,
    /// Devices on which no lease is granted, and the reasons.
    withheld: BTreeMap<GpuId, Withheld>,
    gangs: Gangs<GpuId>,
    /// Sessions from before a restart that wait for their processes.
    restored: BTreeMap<SessionKey, Restored>,
    /// Totals of each device's removed accounts.
    delivered: BTreeMap<GpuId, Delivered>,
    /// Leases and waits on each device.
    served: BTreeMap<GpuId, Served>,
    /// Hashes owners to numbers for the schedulers.
    owner_numbers: RandomState,
    /// Devices that cannot be looked up, and the user who first named each.
    unlisted: BTreeMap<GpuId, u32>,
    /// The only way in which sessions share a device; `None`: the schedulers choose.
    pub(crate) share: Option<Way>,
    /// Processes that have left since idle sessions were last forgotten.
    left: usize,
    last_session: u64,
    last_worker: u64,
    /// Pending events.
    happened: Vec<Happened>,
}

impl Node {
    /// Workers and sessions are numbered from `first`, so that an id from before a restart does not denote a current
    /// one.
    pub(crate) fn new(first: u64, quotas: Arc<dyn Quotas>) -> Self {
        Self {
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
            share: None,
            left: 0,
            last_session: first,
            last_worker: first,
            happened: Vec::new(),
        }
    }

    /// Whether the process is registered, with the same owner.
    pub(crate) fn serves(&self, caller: &Caller) -> bool {
        self.members.values().any(|member| member.is(caller))
    }

    /// Registers a process, once or once per device. Ends its leases on the named devices: the process has forgotten
    /// them, or is a new program with the same pid. `unlisted`: the devices that cannot be looked up.
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
        // A process that moves between sessions must not keep others out.
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
            // The message may predate the session's limit. Only the worker that reported the limit may report its
            // removal.
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

    /// Whether there is room for the registration's session, quotas and devices.
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

    /// The session's quota, given the limit that its process reports.
    fn quota(&self, key: &SessionKey, uuid: GpuId, said: ComputeLimit) -> ComputeLimit {
        let SessionKey { owner, name } = key;
        self.quotas.quota(&Asked { owner, session: name, uuid, said }).in_range()
    }

    /// Changes a session's quota for a device and returns the resulting one. The latest message counts, whichever of
    /// the session's processes sent it: all of them read the limit in a page that the session's user owns.
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
            // Processes without a limit until now may request leases, too.
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

    /// Whether another process of the session, still present, was the last to report its limit.
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
            let device = self.devices.entry(uuid).or_default();
            if let Some(way) = self.share {
                device.share_only(way);
            }
            if self.withheld.contains_key(&uuid) {
                device.suspend(now);
            }
            // Cannot fail: the share was validated.
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

    /// Sets how a worker's gates on a device work, even if it has no limit there yet.
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

    /// Records whether a worker's session uses a device together with others. A worker that does not know does not
    /// affect those that do.
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

    /// A worker requests an extension of its lease.
    pub(crate) fn renew(
        &mut self,
        worker: WorkerId,
        uuid: GpuId,
        lease: LeaseId,
        now: u64,
    ) -> Option<Grant> {
        let member = self.members.get(&worker)?;
        let session = self.sessions.get(&member.session)?.id;
        self.gangs.renew(session, uuid, (worker, lease), &mut self.devices, now)
    }

    /// Grants leases to gangs: sessions that use several devices together.
    pub(crate) fn decide_together(&mut self, now: u64) -> Vec<(GpuId, Grant)> {
        self.gangs.decide(&mut self.devices, now)
    }

    /// Whether gangs may exist.
    pub(crate) fn has_gangs(&self) -> bool {
        !self.gangs.is_empty()
    }

    /// Removes a process that has exited.
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

    /// Devices with at least one worker that holds or requests a lease.
    pub(crate) fn in_use(&self) -> Vec<GpuId> {
        let in_use = self.devices.iter().filter(|(_, device)| device.is_in_use());
        in_use.map(|(&uuid, _)| uuid).collect()
    }

    pub(crate) fn all_devices(&self) -> Vec<GpuId> {
        self.devices.keys().copied().collect()
    }

    pub(crate) fn decide(&mut self, uuid: GpuId, now: u64) -> Vec<Grant> {
        let Some(device) = self.devices.get_mut(&uuid) else { return Vec::new() };
        let grants = device.decide(now);
        if let Some(Chosen { way, reason, since, rates }) = device.newly_compared() {
            let for_ms = now.saturating_sub(since) / 1_000_000;
            tracing::debug!(
                "device {uuid}: {way:?} for {for_ms} ms, {reason:?}; in turns and at once: {rates:?}"
            );
        }
        grants
    }

    /// Leases to end early; each is returned once.
    pub(crate) fn stopped(&mut self, uuid: GpuId, now: u64) -> Vec<(WorkerId, LeaseId)> {
        let Some(device) = self.devices.get_mut(&uuid) else { return Vec::new() };
        let stopped = device.to_stop(now);
        // Counted, but not published as events: there are so many that they would displace all others.
        for (worker, _) in &stopped {
            let Some(member) = self.members.get(worker) else { continue };
            let Some(session) = self.sessions.get_mut(&member.session) else { continue };
            session.served.entry(uuid).or_default().stopped += 1;
        }
        stopped
    }

    /// Leases whose permission to be kept unused has changed, and the new permission.
    pub(crate) fn kept(&mut self, uuid: GpuId, now: u64) -> Vec<(WorkerId, LeaseId, bool)> {
        self.devices.get_mut(&uuid).map(|device| device.to_keep(now)).unwrap_or_default()
    }

    /// Takes back a grant that could not be delivered.
    pub(crate) fn give_back(&mut self, uuid: GpuId, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(device) = self.devices.get_mut(&uuid) {
            device.take_back(worker, lease, now);
        }
    }

    /// Ends a lease of which no report will come.
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

    /// Ends a lease whose work is done, as the worker signalled. `false`: the worker does not hold it.
    pub(crate) fn ended(
        &mut self,
        uuid: GpuId,
        worker: WorkerId,
        lease: LeaseId,
        now: u64,
    ) -> bool {
        self.devices.get_mut(&uuid).is_some_and(|device| device.ended(worker, lease, now))
    }

    /// Ends all leases and requests.
    pub(crate) fn dismiss_all(&mut self, now: u64) {
        for device in self.devices.values_mut() {
            device.dismiss_all(now);
        }
    }

    /// Whether any worker holds or requests a lease.
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

/// Number of items of one user, and of all users.
fn count(uid: u32, users: impl Iterator<Item = u32>) -> (usize, usize) {
    users.fold((0, 0), |(own, all), user| (own + usize::from(user == uid), all + 1))
}
