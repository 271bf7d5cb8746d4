//! All that the daemon knows: sessions, their processes, and a scheduler per device. No I/O and no
//! clock; times are nanoseconds since the daemon's start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::limits::Policy;
use protocol::Register;
use protocol::status::{self, DeviceStatus, LeaseStatus, SessionStatus};

use super::identity::{Caller, Owner};
use super::limits::{self, SESSIONS, WORKERS};
use super::quotas::{Asked, Quotas, in_range};
use super::refused::Refused;
use scheduler::{
    Class, DeviceView, Grant, LeaseId, Paid, Quota, Scheduler, SessionId, Told, Tuning, WorkerId,
};

/// A session belongs to its owner: no other owner's process can join it by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SessionKey {
    owner: Owner,
    name: String,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    quotas: BTreeMap<String, Quota>,
}

#[derive(Debug)]
struct Member {
    pid: i32,
    session: SessionKey,
}

/// A session that a caller may see.
struct Shown<'node> {
    key: &'node SessionKey,
    pids: Vec<i32>,
}

/// What a registration led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) worker: WorkerId,
    /// Whether the worker is new, and so has to be watched.
    pub(super) new: bool,
    /// The worker that the process has been until now, and is no more.
    pub(super) former: Option<WorkerId>,
}

#[derive(Debug)]
pub(super) struct Node {
    tuning: Tuning,
    quotas: Arc<dyn Quotas>,
    sessions: BTreeMap<SessionKey, Session>,
    members: BTreeMap<WorkerId, Member>,
    devices: BTreeMap<String, Scheduler>,
    last_session: u64,
    last_worker: u64,
}

impl Node {
    /// Workers are numbered from `first_worker`, so that a number from before a restart is not
    /// taken for a present one.
    pub(super) fn new(tuning: Tuning, first_worker: u64, quotas: Arc<dyn Quotas>) -> Self {
        Self {
            tuning,
            quotas,
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            devices: BTreeMap::new(),
            last_session: 0,
            last_worker: first_worker,
        }
    }

    /// Whether a process is known, as one of that owner.
    pub(super) fn serves(&self, caller: &Caller) -> bool {
        let is_it =
            |member: &Member| member.pid == caller.pid && member.session.owner == caller.owner;
        self.members.values().any(is_it)
    }

    /// A process introduces itself, once or once per device. Whatever it held on the devices that
    /// it names is over: it has forgotten it, or it is a new program under the same pid.
    pub(super) fn register(
        &mut self,
        caller: &Caller,
        register: &Register,
        now: u64,
    ) -> Result<Admitted, Refused> {
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
        if !self.sessions.contains_key(&key) {
            let check = |node: &Self| {
                let users = node.sessions.keys().map(|key| key.owner.uid);
                limits::check_fair_part("sessions", uid, count(uid, users), SESSIONS)
            };
            // A process that goes from one session to the next must not keep others out.
            if check(self).is_err() {
                self.forget_idle(now);
                check(self)?;
            }
        }
        if let Some(former) = former {
            self.leave(former, now);
        }
        let session = self.session(&key);
        let worker = stays.unwrap_or_else(|| self.new_worker(pid, &key));
        for (uuid, said) in said {
            let quota = self.quota(&key, &uuid, said);
            if let Some(device) = self.devices.get_mut(&uuid) {
                device.leave(worker, now);
            }
            self.set_quota(&key, session, &uuid, quota, now);
            if quota.policy != Policy::None {
                self.join(worker, session, &uuid);
            }
        }
        Ok(Admitted { worker, new: stays.is_none(), former })
    }

    /// What the session may have, given what its process says.
    fn quota(&self, key: &SessionKey, uuid: &str, said: Quota) -> Quota {
        let SessionKey { owner, name } = key;
        in_range(self.quotas.quota(&Asked { owner, session: name, uuid, said }))
    }

    /// What the session may take of a device, from now on; tells it. The latest word counts, whichever
    /// of its processes it comes from: they read it in a page that the session's user owns.
    pub(super) fn change(
        &mut self,
        worker: WorkerId,
        pid: i32,
        uuid: &str,
        said: Quota,
        now: u64,
    ) -> Result<Quota, Refused> {
        let key = self.caller(worker, pid)?.session.clone();
        let quota = self.quota(&key, uuid, said);
        let Some(session) = self.sessions.get(&key) else { return Ok(quota) };
        match session.quotas.get(uuid) {
            None => return Err(Refused::UnknownDevice(uuid.to_owned())),
            Some(present) if *present == quota => return Ok(quota),
            Some(_) => {}
        }
        let id = session.id;
        self.set_quota(&key, id, uuid, quota, now);
        if quota.policy != Policy::None {
            // Those who had no limit until now, or have none here, ask like the others.
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
        uuid: &str,
        quota: Quota,
        now: u64,
    ) {
        if quota.policy == Policy::None {
            let members: Vec<WorkerId> = self.members_of(key).map(|(worker, _)| worker).collect();
            if let Some(device) = self.devices.get_mut(uuid) {
                for member in members {
                    device.leave(member, now);
                }
            }
        } else {
            let tuning = self.tuning;
            let device =
                self.devices.entry(uuid.to_owned()).or_insert_with(|| Scheduler::new(tuning));
            // Can not fail: the share was checked.
            let _ = device.set_session(session, quota, now);
            let before = self.sessions.get(key).and_then(|session| session.quotas.get(uuid));
            if before.is_some_and(|before| before.policy == Policy::None) {
                device.forget_savings(session);
            }
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.quotas.insert(uuid.to_owned(), quota);
        }
    }

    fn join(&mut self, worker: WorkerId, session: SessionId, uuid: &str) {
        if let Some(device) = self.devices.get_mut(uuid) {
            // Can not fail: the session has been added.
            let _ = device.join(worker, session);
        }
    }

    fn members_of(&self, key: &SessionKey) -> impl Iterator<Item = (WorkerId, &Member)> {
        let of_session = self.members.iter().filter(move |(_, member)| member.session == *key);
        of_session.map(|(&worker, member)| (worker, member))
    }

    fn session(&mut self, key: &SessionKey) -> SessionId {
        if let Some(session) = self.sessions.get(key) {
            return session.id;
        }
        self.last_session += 1;
        let id = SessionId(self.last_session);
        self.sessions.insert(key.clone(), Session { id, quotas: BTreeMap::new() });
        id
    }

    fn new_worker(&mut self, pid: i32, key: &SessionKey) -> WorkerId {
        self.last_worker += 1;
        let worker = WorkerId(self.last_worker);
        self.members.insert(worker, Member { pid, session: key.clone() });
        worker
    }

    /// A process has ended.
    pub(super) fn leave(&mut self, worker: WorkerId, now: u64) {
        self.members.remove(&worker);
        for device in self.devices.values_mut() {
            device.leave(worker, now);
        }
    }

    /// Forgets sessions that nobody uses and that owe nothing.
    pub(super) fn forget_idle(&mut self, now: u64) {
        let mut kept: BTreeSet<SessionId> = BTreeSet::new();
        for device in self.devices.values_mut() {
            device.forget_idle(now);
            kept.extend(device.view(now).sessions.iter().map(|view| view.session));
        }
        self.devices.retain(|_, device| !device.is_empty());
        let used: BTreeSet<&SessionKey> =
            self.members.values().map(|member| &member.session).collect();
        self.sessions.retain(|key, session| kept.contains(&session.id) || used.contains(key));
    }

    /// The scheduler that a worker's call is about.
    pub(super) fn device(
        &mut self,
        worker: WorkerId,
        pid: i32,
        uuid: &str,
    ) -> Result<&mut Scheduler, Refused> {
        let member = self.caller(worker, pid)?;
        let quota = self.sessions.get(&member.session).and_then(|session| session.quotas.get(uuid));
        match quota.map(|quota| quota.policy) {
            None => Err(Refused::UnknownDevice(uuid.to_owned())),
            Some(Policy::None) => Err(Refused::NoLimit(uuid.to_owned())),
            Some(Policy::Fixed | Policy::Balance) => {
                self.devices.get_mut(uuid).ok_or_else(|| Refused::UnknownDevice(uuid.to_owned()))
            }
        }
    }

    fn caller(&self, worker: WorkerId, pid: i32) -> Result<&Member, Refused> {
        let member = self.members.get(&worker).ok_or(Refused::UnknownWorker(worker.0))?;
        if member.pid == pid { Ok(member) } else { Err(Refused::NotYours(worker.0)) }
    }

    /// The devices that somebody holds or asks for.
    pub(super) fn in_use(&self) -> Vec<String> {
        let in_use = self.devices.iter().filter(|(_, device)| device.is_in_use());
        in_use.map(|(uuid, _)| uuid.clone()).collect()
    }

    pub(super) fn decide(&mut self, uuid: &str, now: u64) -> Vec<Grant> {
        self.devices.get_mut(uuid).map(|device| device.decide(now)).unwrap_or_default()
    }

    /// A grant could not be delivered.
    pub(super) fn give_back(&mut self, uuid: &str, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(device) = self.devices.get_mut(uuid) {
            // An unknown worker has nothing to give back.
            let _ = device.report(worker, lease, Told::UNUSED, now);
        }
    }

    /// Nobody holds or asks any more.
    pub(super) fn dismiss_all(&mut self, now: u64) {
        for device in self.devices.values_mut() {
            device.dismiss_all(now);
        }
    }

    /// Whether anybody holds or asks.
    pub(super) fn is_in_use(&self) -> bool {
        self.devices.values().any(Scheduler::is_in_use)
    }

    pub(super) fn withdraw(&mut self, uuid: &str, worker: WorkerId, now: u64) {
        if let Some(device) = self.devices.get_mut(uuid) {
            device.withdraw(worker, now);
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.devices.values().filter_map(|device| device.next_deadline(now)).min()
    }

    /// What somebody may see: everything, or what is theirs.
    pub(super) fn status(&mut self, only: Option<&Owner>, now: u64) -> Vec<DeviceStatus> {
        let views: Vec<(String, DeviceView)> = self
            .devices
            .iter_mut()
            .map(|(uuid, device)| (uuid.clone(), device.view(now)))
            .collect();
        let mut shown: BTreeMap<SessionId, Shown<'_>> = BTreeMap::new();
        let seen =
            self.sessions.iter().filter(|(key, _)| only.is_none_or(|owner| *owner == key.owner));
        for (key, session) in seen {
            shown.insert(session.id, Shown { key, pids: Vec::new() });
        }
        for member in self.members.values() {
            let session = self.sessions.get(&member.session).map(|session| session.id);
            if let Some(shown) = session.and_then(|id| shown.get_mut(&id)) {
                shown.pids.push(member.pid);
            }
        }
        views.into_iter().map(|(uuid, view)| self.device_status(uuid, &view, &shown)).collect()
    }

    fn device_status(
        &self,
        uuid: String,
        view: &DeviceView,
        shown: &BTreeMap<SessionId, Shown<'_>>,
    ) -> DeviceStatus {
        let sessions = view.sessions.iter().filter_map(|state| {
            let Shown { key, pids } = shown.get(&state.session)?;
            Some(SessionStatus {
                uid: key.owner.uid,
                session: key.name.clone(),
                share_ppm: state.quota.share_ppm,
                policy: state.quota.policy,
                soft_ppm: state.quota.soft_ppm,
                weight: state.quota.weight,
                priority: state.quota.priority,
                balance_us: state.balance_ns / 1_000,
                charged_us: state.charged_ns / 1_000,
                spare_us: state.spare_ns / 1_000,
                density_ppm: state.density_ppm,
                class: match state.class {
                    Class::Dense => status::Class::Dense,
                    Class::Sparse => status::Class::Sparse,
                },
                asks: state.asks,
                pids: pids.clone(),
            })
        });
        let leases = view.leases.iter().filter_map(|lease| {
            let Shown { key, .. } = shown.get(&lease.session)?;
            Some(LeaseStatus {
                session: key.name.clone(),
                pid: self.members.get(&lease.worker).map_or(0, |member| member.pid),
                held_us: lease.held_ns / 1_000,
                spare: lease.paid == Paid::Spare,
                revoked: lease.revoked,
            })
        });
        DeviceStatus { sessions: sessions.collect(), leases: leases.collect(), uuid }
    }
}

/// How many there are of one user, and of all.
fn count(uid: u32, users: impl Iterator<Item = u32>) -> (usize, usize) {
    users.fold((0, 0), |(own, all), user| (own + usize::from(user == uid), all + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quotas::AsRegistered;
    use protocol::{DeviceQuota, VERSION};

    const MS: u64 = 1_000_000;
    const GPUS: [&str; 2] =
        ["gpu-5a1ce000-0000-4000-8000-000000000000", "gpu-5a1ce000-0000-4000-8000-000000000001"];

    fn node() -> Node {
        Node::new(Tuning::default(), 1_000, Arc::new(AsRegistered))
    }

    fn by(pid: i32, uid: u32) -> Caller {
        Caller { pid, owner: Owner::user(uid) }
    }

    fn register(session: &str, devices: &[(&str, u32)]) -> Register {
        let quota = |&(uuid, share_ppm): &(&str, u32)| DeviceQuota::fixed(uuid, share_ppm);
        let devices = devices.iter().map(quota).collect();
        Register { protocol: VERSION, session: session.to_owned(), devices }
    }

    #[test]
    fn a_process_may_register_device_by_device() {
        let mut node = node();
        let first = node.register(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
        let second = node.register(&by(7, 0), &register("a", &[(GPUS[1], 250_000)]), 0).unwrap();
        assert!(first.new && !second.new);
        assert_eq!(first.worker, second.worker);
        for gpu in GPUS {
            assert!(node.device(first.worker, 7, gpu).is_ok());
        }
        let stranger = node.device(first.worker, 8, GPUS[0]).map(|_| ());
        assert_eq!(stranger, Err(Refused::NotYours(first.worker.0)));
    }

    #[test]
    fn registering_again_ends_what_was_held_on_that_device() {
        let mut node = node();
        let message = register("a", &[(GPUS[0], 500_000)]);
        let worker = node.register(&by(7, 0), &message, 0).unwrap().worker;
        node.device(worker, 7, GPUS[0]).unwrap().ask(worker, 0).unwrap();
        assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
        node.register(&by(7, 0), &message, 110 * MS).unwrap();
        let status = node.status(None, 200 * MS);
        assert!(status[0].leases.is_empty());
        assert_eq!(status[0].sessions[0].charged_us, 10_000);
    }

    #[test]
    fn the_latest_word_about_a_quota_counts() {
        let mut node = node();
        let half = register("a", &[(GPUS[0], 500_000)]);
        let more = register("a", &[(GPUS[0], 900_000)]);
        let share =
            |node: &mut Node| node.status(Some(&Owner::user(0)), MS)[0].sessions[0].share_ppm;
        let first = node.register(&by(7, 0), &half, 0).unwrap().worker;
        // Another user's session of the same name is another session.
        assert!(node.register(&by(9, 1000), &more, 0).unwrap().new);
        assert_eq!(node.status(Some(&Owner::user(1000)), 0)[0].sessions.len(), 1);
        assert_eq!(node.status(None, 0)[0].sessions.len(), 2);
        assert_eq!(share(&mut node), 500_000);
        node.register(&by(8, 0), &more, 0).unwrap();
        assert_eq!(share(&mut node), 900_000);
        node.change(first, 7, GPUS[0], Quota::fixed(100_000), MS).unwrap();
        assert_eq!(share(&mut node), 100_000);
        let quota = Quota::fixed(1);
        let refused = |result: Result<Quota, Refused>| result.unwrap_err();
        let other = Refused::NotYours(first.0);
        assert_eq!(refused(node.change(first, 8, GPUS[0], quota, MS)), other);
        let unknown = Refused::UnknownDevice(GPUS[1].to_owned());
        assert_eq!(refused(node.change(first, 7, GPUS[1], quota, MS)), unknown);
    }

    #[test]
    fn a_limit_can_be_lifted_and_come_back() {
        let mut node = node();
        let message = register("a", &[(GPUS[0], 500_000)]);
        let workers = [7, 8].map(|pid| node.register(&by(pid, 0), &message, 0).unwrap().worker);
        node.device(workers[1], 8, GPUS[0]).unwrap().ask(workers[1], 0).unwrap();
        let free = Quota { policy: Policy::None, ..Quota::fixed(0) };
        node.change(workers[0], 7, GPUS[0], free, MS).unwrap();
        assert!(node.decide(GPUS[0], 100 * MS).is_empty());
        let refused = node.device(workers[1], 8, GPUS[0]).map(|_| ()).unwrap_err();
        assert_eq!(refused, Refused::NoLimit(GPUS[0].to_owned()));
        node.change(workers[0], 7, GPUS[0], Quota::fixed(500_000), 100 * MS).unwrap();
        node.device(workers[1], 8, GPUS[0]).unwrap().ask(workers[1], 100 * MS).unwrap();
        // Nothing was saved up while there was no limit.
        assert!(node.decide(GPUS[0], 100 * MS).is_empty());
        assert_eq!(node.decide(GPUS[0], 200 * MS).len(), 1);
    }

    #[test]
    fn a_pid_that_turns_up_in_another_session_has_left_the_first() {
        let mut node = node();
        let first = node.register(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
        let second = node.register(&by(7, 0), &register("b", &[(GPUS[0], 500_000)]), 0).unwrap();
        assert!(second.new && first.worker != second.worker);
        let gone = node.device(first.worker, 7, GPUS[0]).map(|_| ());
        assert_eq!(gone, Err(Refused::UnknownWorker(first.worker.0)));
    }

    #[test]
    fn sessions_are_forgotten_when_they_owe_nothing() {
        let mut node = node();
        let message = register("a", &[(GPUS[0], 500_000)]);
        let worker = node.register(&by(7, 0), &message, 0).unwrap().worker;
        node.device(worker, 7, GPUS[0]).unwrap().ask(worker, 0).unwrap();
        assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
        // Dies in a kernel of 500 ms.
        node.leave(worker, 600 * MS);
        node.forget_idle(600 * MS);
        assert_eq!(node.sessions.len(), 1);
        node.forget_idle(1_200 * MS);
        assert!(node.sessions.is_empty() && node.devices.is_empty());
    }

    #[test]
    fn there_is_a_limit_to_processes_and_sessions() {
        for (what, most) in [("processes", WORKERS), ("sessions", SESSIONS)] {
            let mut node = node();
            let mut pids = 1..;
            let mut fill = |node: &mut Node, uid| {
                let refused = pids.by_ref().find_map(|pid: i32| {
                    let session = if what == "sessions" { pid.to_string() } else { "a".to_owned() };
                    node.register(&by(pid, uid), &register(&session, &[(GPUS[0], 1)]), 0).err()
                });
                let own =
                    node.members.values().filter(|member| member.session.owner.uid == uid).count();
                assert_eq!(refused, Some(Refused::TooMany { what, uid, own }));
                own
            };
            assert_eq!(fill(&mut node, 0), most / 2);
            // Another user is served as if the first one had not come.
            assert_eq!(fill(&mut node, 1000), most / 4);
            // A process that is served stays so, in whatever session there is.
            node.register(&by(1, 0), &register("2", &[(GPUS[0], 2)]), 0).unwrap();
        }
    }

    #[test]
    fn a_process_that_goes_through_sessions_keeps_nobody_out() {
        let mut node = node();
        for name in 0..2 * SESSIONS {
            let admitted =
                node.register(&by(7, 0), &register(&name.to_string(), &[(GPUS[0], 1)]), 0);
            assert_eq!(admitted.map(|admitted| admitted.former.is_some()), Ok(name > 0));
        }
        assert!(node.register(&by(8, 0), &register("a", &[(GPUS[0], 1)]), 0).is_ok());
        assert_eq!(node.members.len(), 2);
    }
}
