//! All that the daemon knows: sessions, their processes, and a scheduler per device. No I/O and no
//! clock; times are nanoseconds since the daemon's start.

use std::collections::BTreeMap;

use utils::protocol::{Policy, Register};

use super::limits::{self, Quota, SESSIONS, WORKERS};
use super::refused::Refused;
use super::status::{DeviceStatus, LeaseStatus, SessionStatus};
use crate::scheduler::{DeviceView, Grant, LeaseId, Scheduler, SessionId, Tuning, WorkerId};

/// A session belongs to a user: no other user's process can join it by its name.
type SessionKey = (u32, String);

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

/// What a registration led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) worker: WorkerId,
    /// Whether the worker is new, and so has to be watched.
    pub(super) new: bool,
}

#[derive(Debug)]
pub(super) struct Node {
    tuning: Tuning,
    sessions: BTreeMap<SessionKey, Session>,
    members: BTreeMap<WorkerId, Member>,
    devices: BTreeMap<String, Scheduler>,
    last_session: u64,
    last_worker: u64,
}

impl Node {
    /// Workers are numbered from `first_worker`, so that a number from before a restart is not
    /// taken for a present one.
    pub(super) fn new(tuning: Tuning, first_worker: u64) -> Self {
        Self {
            tuning,
            sessions: BTreeMap::new(),
            members: BTreeMap::new(),
            devices: BTreeMap::new(),
            last_session: 0,
            last_worker: first_worker,
        }
    }

    /// A process introduces itself, once or once per device. Whatever it held on the devices that
    /// it names is over: it has forgotten it, or it is a new program under the same pid.
    pub(super) fn register(
        &mut self,
        pid: i32,
        uid: u32,
        register: &Register,
        now: u64,
    ) -> Result<Admitted, Refused> {
        let quotas = limits::check(register)?;
        let key = (uid, register.session.clone());
        self.check_conflict(&key, &quotas)?;
        let present = self.members.iter().find(|(_, member)| member.pid == pid);
        let present = present.map(|(&worker, member)| (worker, member.session == key));
        let stays = match present {
            Some((worker, true)) => Some(worker),
            Some((worker, false)) => {
                self.leave(worker, now);
                None
            }
            None => None,
        };
        if stays.is_none() && self.members.len() >= WORKERS {
            return Err(Refused::TooMany { what: "processes", limit: WORKERS });
        }
        if !self.sessions.contains_key(&key) && self.sessions.len() >= SESSIONS {
            return Err(Refused::TooMany { what: "sessions", limit: SESSIONS });
        }
        let session = self.session(&key);
        let worker = stays.unwrap_or_else(|| self.new_worker(pid, &key));
        for (uuid, quota) in quotas {
            if quota.policy != Policy::None {
                let tuning = self.tuning;
                let device =
                    self.devices.entry(uuid.clone()).or_insert_with(|| Scheduler::new(tuning));
                device.leave(worker, now);
                // Neither can fail: the share was checked, and the session is there now.
                let _ = device.set_session(session, quota.share_ppm, now);
                let _ = device.join(worker, session);
            }
            if let Some(session) = self.sessions.get_mut(&key) {
                session.quotas.insert(uuid, quota);
            }
        }
        Ok(Admitted { worker, new: stays.is_none() })
    }

    /// The first registration decides a session's quota, as long as any of its processes lives.
    fn check_conflict(
        &self,
        key: &SessionKey,
        quotas: &BTreeMap<String, Quota>,
    ) -> Result<(), Refused> {
        let Some(session) = self.sessions.get(key) else { return Ok(()) };
        if !self.members.values().any(|member| member.session == *key) {
            return Ok(());
        }
        for (uuid, asked) in quotas {
            if let Some(present) = session.quotas.get(uuid)
                && present != asked
            {
                return Err(Refused::Conflict {
                    session: key.1.clone(),
                    uuid: uuid.clone(),
                    asked: asked.to_string(),
                    present: present.to_string(),
                });
            }
        }
        Ok(())
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
        let mut kept: Vec<SessionId> = Vec::new();
        for device in self.devices.values_mut() {
            device.forget_idle(now);
            kept.extend(device.view(now).sessions.iter().map(|view| view.session));
        }
        self.devices.retain(|_, device| !device.is_empty());
        let members = &self.members;
        self.sessions.retain(|key, session| {
            kept.contains(&session.id) || members.values().any(|member| member.session == *key)
        });
    }

    /// The scheduler that a worker's call is about.
    pub(super) fn device(
        &mut self,
        worker: WorkerId,
        pid: i32,
        uuid: &str,
    ) -> Result<&mut Scheduler, Refused> {
        let member = self.members.get(&worker).ok_or(Refused::UnknownWorker(worker.0))?;
        if member.pid != pid {
            return Err(Refused::NotYours(worker.0));
        }
        let quota = self.sessions.get(&member.session).and_then(|session| session.quotas.get(uuid));
        match quota.map(|quota| quota.policy) {
            None => Err(Refused::UnknownDevice(uuid.to_owned())),
            Some(Policy::None) => Err(Refused::NoLimit(uuid.to_owned())),
            Some(Policy::Fixed | Policy::Balance) => {
                self.devices.get_mut(uuid).ok_or_else(|| Refused::UnknownDevice(uuid.to_owned()))
            }
        }
    }

    pub(super) fn uuids(&self) -> Vec<String> {
        self.devices.keys().cloned().collect()
    }

    pub(super) fn decide(&mut self, uuid: &str, now: u64) -> Vec<Grant> {
        self.devices.get_mut(uuid).map(|device| device.decide(now)).unwrap_or_default()
    }

    /// A grant could not be delivered.
    pub(super) fn give_back(&mut self, uuid: &str, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(device) = self.devices.get_mut(uuid) {
            // An unknown worker has nothing to give back.
            let _ = device.report(worker, lease, 0, now);
        }
    }

    pub(super) fn withdraw(&mut self, uuid: &str, worker: WorkerId) {
        if let Some(device) = self.devices.get_mut(uuid) {
            device.withdraw(worker);
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.devices.values().filter_map(|device| device.next_deadline(now)).min()
    }

    /// What a user may see: everything, or what is their own.
    pub(super) fn status(&mut self, only: Option<u32>, now: u64) -> Vec<DeviceStatus> {
        let views: Vec<(String, DeviceView)> = self
            .devices
            .iter_mut()
            .map(|(uuid, device)| (uuid.clone(), device.view(now)))
            .collect();
        views.into_iter().map(|(uuid, view)| self.device_status(uuid, &view, only)).collect()
    }

    fn device_status(&self, uuid: String, view: &DeviceView, only: Option<u32>) -> DeviceStatus {
        let seen = |key: &SessionKey| only.is_none_or(|uid| uid == key.0);
        let name = |id: SessionId| {
            let found = self.sessions.iter().find(|(_, session)| session.id == id);
            found.map(|(key, _)| key).filter(|key| seen(key))
        };
        let sessions = view.sessions.iter().filter_map(|state| {
            let key = name(state.session)?;
            let mine = self.members.values().filter(|member| member.session == *key);
            Some(SessionStatus {
                uid: key.0,
                session: key.1.clone(),
                share_ppm: state.share_ppm,
                balance_us: state.balance_ns / 1_000,
                charged_us: state.charged_ns / 1_000,
                asks: state.asks,
                pids: mine.map(|member| member.pid).collect(),
            })
        });
        let leases = view.leases.iter().filter_map(|lease| {
            let key = name(lease.session)?;
            Some(LeaseStatus {
                session: key.1.clone(),
                pid: self.members.get(&lease.worker).map_or(0, |member| member.pid),
                held_us: lease.held_ns / 1_000,
                revoked: lease.revoked,
            })
        });
        DeviceStatus { sessions: sessions.collect(), leases: leases.collect(), uuid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use utils::protocol::{DeviceQuota, VERSION};

    const MS: u64 = 1_000_000;
    const GPUS: [&str; 2] =
        ["gpu-5a1ce000-0000-4000-8000-000000000000", "gpu-5a1ce000-0000-4000-8000-000000000001"];

    fn node() -> Node {
        Node::new(Tuning::default(), 1_000)
    }

    fn register(session: &str, devices: &[(&str, u32)]) -> Register {
        let quota = |&(uuid, share_ppm): &(&str, u32)| DeviceQuota {
            uuid: uuid.to_owned(),
            share_ppm,
            policy: Policy::Fixed,
            soft_ppm: None,
            weight: 1,
            priority: utils::protocol::Priority::High,
        };
        let devices = devices.iter().map(quota).collect();
        Register { protocol: VERSION, session: session.to_owned(), devices }
    }

    #[test]
    fn a_process_may_register_device_by_device() {
        let mut node = node();
        let first = node.register(7, 0, &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
        let second = node.register(7, 0, &register("a", &[(GPUS[1], 250_000)]), 0).unwrap();
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
        let worker = node.register(7, 0, &message, 0).unwrap().worker;
        node.device(worker, 7, GPUS[0]).unwrap().ask(worker, 0).unwrap();
        assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
        node.register(7, 0, &message, 110 * MS).unwrap();
        let status = node.status(None, 200 * MS);
        assert!(status[0].leases.is_empty());
        assert_eq!(status[0].sessions[0].charged_us, 10_000);
    }

    #[test]
    fn the_first_registration_decides_while_any_process_lives() {
        let mut node = node();
        let half = register("a", &[(GPUS[0], 500_000)]);
        let more = register("a", &[(GPUS[0], 900_000)]);
        let worker = node.register(7, 0, &half, 0).unwrap().worker;
        assert!(matches!(node.register(8, 0, &more, 0), Err(Refused::Conflict { .. })));
        assert!(matches!(node.register(7, 0, &more, 0), Err(Refused::Conflict { .. })));
        assert_eq!(node.members.len(), 1);
        // Another user's session of the same name is another session.
        assert!(node.register(9, 1000, &more, 0).unwrap().new);
        assert_eq!(node.status(Some(1000), 0)[0].sessions.len(), 1);
        assert_eq!(node.status(None, 0)[0].sessions.len(), 2);
        node.leave(worker, MS);
        assert!(node.register(8, 0, &more, MS).unwrap().new);
    }

    #[test]
    fn a_pid_that_turns_up_in_another_session_has_left_the_first() {
        let mut node = node();
        let first = node.register(7, 0, &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
        let second = node.register(7, 0, &register("b", &[(GPUS[0], 500_000)]), 0).unwrap();
        assert!(second.new && first.worker != second.worker);
        let gone = node.device(first.worker, 7, GPUS[0]).map(|_| ());
        assert_eq!(gone, Err(Refused::UnknownWorker(first.worker.0)));
    }

    #[test]
    fn sessions_are_forgotten_when_they_owe_nothing() {
        let mut node = node();
        let message = register("a", &[(GPUS[0], 500_000)]);
        let worker = node.register(7, 0, &message, 0).unwrap().worker;
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
        let (mut node, mut other) = (node(), node());
        let mut last = Ok(());
        for pid in 1..=WORKERS as i32 + 1 {
            last = node.register(pid, 0, &register("a", &[(GPUS[0], 1)]), 0).map(|_| ());
        }
        assert_eq!(last, Err(Refused::TooMany { what: "processes", limit: WORKERS }));
        for pid in 1..=SESSIONS as i32 + 1 {
            last =
                other.register(pid, 0, &register(&pid.to_string(), &[(GPUS[0], 1)]), 0).map(|_| ());
        }
        assert_eq!(last, Err(Refused::TooMany { what: "sessions", limit: SESSIONS }));
        assert_eq!(other.members.len(), SESSIONS);
    }
}
