//! Forgets idle sessions, and keeps the totals of their accounts.

use std::collections::BTreeSet;

use ::limits::GpuId;
use api::EventKind;
use scheduler::SessionId;

use super::{Node, SessionKey, SessionQuotas};
use crate::events::Happened;
use crate::limits::TOTALS;

pub(super) fn went(key: &SessionKey, id: SessionId) -> Happened {
    Happened::to_session(EventKind::SessionWent, &key.owner, id.0, &key.name)
}

impl Node {
    /// Forgets sessions that have no process and owe nothing.
    pub(crate) fn forget_idle(&mut self, now: u64) {
        self.left = 0;
        self.forget_restored(now);
        let mut kept: BTreeSet<SessionId> = BTreeSet::new();
        let mut gone = Vec::new();
        for (&uuid, device) in &mut self.devices {
            gone.extend(device.forget_idle(now).into_iter().map(|account| (uuid, account)));
            kept.extend(device.view(now).sessions.iter().map(|view| view.session));
        }
        for (uuid, (session, charged_ns, spare_ns)) in gone {
            self.account_is_gone(uuid, session, charged_ns, spare_ns);
        }
        self.devices.retain(|_, device| !device.is_empty());
        let used: BTreeSet<&SessionKey> =
            self.members.values().map(|member| &member.session).collect();
        for (_, session) in self.sessions.iter().filter(|(key, _)| !used.contains(key)) {
            self.gangs.set(session.id, BTreeSet::new(), &mut self.devices);
        }
        let stays = |key: &SessionKey, session: &SessionQuotas| {
            kept.contains(&session.id) || used.contains(key)
        };
        let gone = self.sessions.iter().filter(|(key, session)| !stays(key, session));
        let gone: Vec<Happened> = gone.map(|(key, session)| went(key, session.id)).collect();
        self.sessions.retain(|key, session| stays(key, session));
        self.happened.extend(gone);
        let named: BTreeSet<&GpuId> =
            self.sessions.values().flat_map(|session| session.quotas.keys()).collect();
        self.unlisted.retain(|uuid, _| named.contains(uuid));
    }

    /// Forgets a user's sessions without processes, even if they owe time. With a tiny share a debt takes hours to earn
    /// back and would block the user's other programs. Nobody gains much: filling the quota with debtors cancels at
    /// most 10 s of debt per session.
    pub(super) fn forget_left(&mut self, uid: u32, now: u64) {
        let used: BTreeSet<&SessionKey> =
            self.members.values().map(|member| &member.session).collect();
        let left =
            self.sessions.iter().filter(|(key, _)| key.owner.uid == uid && !used.contains(key));
        let mut gone = Vec::new();
        for (_, session) in left {
            for &uuid in session.quotas.keys() {
                let device = self.devices.get_mut(&uuid);
                let charged = device.and_then(|device| device.forget(session.id));
                gone.extend(charged.map(|charged| (uuid, session.id, charged)));
            }
        }
        for (uuid, session, (charged_ns, spare_ns)) in gone {
            self.account_is_gone(uuid, session, charged_ns, spare_ns);
        }
        self.forget_idle(now);
    }

    /// Adds a removed account to the totals of its device, and to its session's if the session continues. Anyone can
    /// name devices that cannot be looked up: if there are too many, the smallest totals are dropped.
    fn account_is_gone(&mut self, uuid: GpuId, id: SessionId, charged_ns: u64, spare_ns: u64) {
        if charged_ns == 0 && spare_ns == 0 {
            return;
        }
        if self.delivered.len() >= TOTALS && !self.delivered.contains_key(&uuid) {
            let least = self.delivered.iter().min_by_key(|(_, delivered)| delivered.charged_ns);
            if let Some(least) = least.map(|(&uuid, _)| uuid) {
                self.delivered.remove(&least);
            }
        }
        let session = self.sessions.values_mut().find(|session| session.id == id);
        let of_session = session.map(|session| session.before.entry(uuid).or_default());
        let of_device = self.delivered.entry(uuid).or_default();
        for counter in [of_device].into_iter().chain(of_session) {
            *counter = counter.and(charged_ns, spare_ns);
        }
    }
}
