//! Freezing and thawing of sessions.

use std::collections::BTreeMap;

use ::limits::{GpuId, Policy};
use api::EventKind;

use super::snapshot::SavedAccount;
use super::{Node, RegisteredProcess, SessionKey};
use crate::events::Happened;
use crate::identity::Owner;
use crate::page_memory::Registered;
use crate::refused::CallRefused;
use scheduler::SessionId;
use session::process::ProcessIdentity;

impl Node {
    /// The session with an id, for a caller who sees all sessions or is its owner.
    pub(crate) fn session_for(
        &self,
        id: u64,
        only: Option<&Owner>,
    ) -> Result<(&Owner, &str), CallRefused> {
        let key = self.key_of(id)?;
        // Reported as unknown, so that a caller learns nothing about hidden sessions.
        let is_hidden = only.is_some_and(|owner| *owner != key.owner);
        if is_hidden { Err(CallRefused::UnknownSession(id)) } else { Ok((&key.owner, &key.name)) }
    }

    /// The processes of a session.
    pub(crate) fn processes_of(&self, id: u64) -> Vec<ProcessIdentity> {
        let of_session = |member: &&RegisteredProcess| {
            self.sessions.get(&member.session).is_some_and(|session| session.id.0 == id)
        };
        let of_session = self.members.values().filter(of_session);
        of_session.filter_map(RegisteredProcess::identity).collect()
    }

    /// The sessions that have processes.
    pub(crate) fn registered(&self) -> Vec<Registered> {
        let mut processes: BTreeMap<&SessionKey, Vec<ProcessIdentity>> = BTreeMap::new();
        for member in self.members.values() {
            processes.entry(&member.session).or_default().extend(member.identity());
        }
        let of = |(key, processes): (&SessionKey, _)| {
            let SessionKey { owner, name } = key.clone();
            Registered { owner, name, processes }
        };
        processes.into_iter().map(of).collect()
    }

    /// Freezes or thaws a session. Returns whether the state has changed, and how many leases the session still holds.
    pub(crate) fn set_frozen(
        &mut self,
        id: u64,
        frozen: bool,
        only: Option<&Owner>,
        now: u64,
    ) -> Result<(bool, usize), CallRefused> {
        self.session_for(id, only)?;
        let key = self.key_of(id)?.clone();
        if let Some(restored) = self.restored.get_mut(&key) {
            let lifted = |account: &&SavedAccount| account.limit.policy == Policy::None;
            if let Some(account) = restored.devices.values().find(lifted).filter(|_| frozen) {
                let device = account.uuid;
                return Err(CallRefused::NoTimeLimit { session: key.name, device });
            }
            let changed = core::mem::replace(&mut restored.frozen, frozen) != frozen;
            self.frozen_or_thawed(changed, frozen, &key, SessionId(id));
            return Ok((changed, 0));
        }
        let session = self.sessions.get_mut(&key).ok_or(CallRefused::UnknownSession(id))?;
        if frozen {
            let limited = |quota: &::limits::ComputeLimit| quota.policy != Policy::None;
            let without = session.quotas.iter().find(|(_, quota)| !limited(quota));
            if let Some(device) = without.map(|(uuid, _)| *uuid) {
                return Err(CallRefused::NoTimeLimit { session: key.name, device });
            }
        }
        let changed = session.frozen != frozen;
        session.frozen = frozen;
        let session = session.id;
        let mut leases = 0;
        for device in self.devices.values_mut() {
            if frozen {
                device.freeze(session, now);
            } else {
                device.thaw(session, now);
            }
            leases += device.leases_of(session).len();
        }
        self.frozen_or_thawed(changed, frozen, &key, session);
        Ok((changed, leases))
    }

    fn frozen_or_thawed(
        &mut self,
        changed: bool,
        frozen: bool,
        key: &SessionKey,
        session: SessionId,
    ) {
        if changed {
            let kind = if frozen { EventKind::Frozen } else { EventKind::Thawed };
            self.happened(kind, key, session);
        }
    }

    /// Whether a session is frozen.
    pub(crate) fn is_frozen(&self, id: u64) -> bool {
        let session = self.sessions.values().find(|session| session.id == SessionId(id));
        let restored = self.restored.values().find(|restored| restored.id == SessionId(id));
        session.map(|session| session.frozen).or(restored.map(|restored| restored.frozen))
            == Some(true)
    }

    /// Thaws a session that has a device without a compute share: such a session cannot be frozen.
    pub(super) fn thaw_without_limit(&mut self, key: &SessionKey, now: u64) {
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.frozen) else {
            return;
        };
        session.frozen = false;
        let id = session.id;
        self.devices.values_mut().for_each(|device| device.thaw(id, now));
        self.happened(EventKind::Thawed, key, id);
    }

    pub(super) fn happened(&mut self, kind: EventKind, key: &SessionKey, session: SessionId) {
        self.happened.push(Happened::to_session(kind, &key.owner, session.0, &key.name));
    }

    pub(super) fn happened_on(
        &mut self,
        kind: EventKind,
        key: &SessionKey,
        session: SessionId,
        uuid: GpuId,
    ) {
        let happened = Happened::to_session(kind, &key.owner, session.0, &key.name);
        self.happened.push(Happened { uuid: Some(uuid), ..happened });
    }

    /// Takes the pending events.
    pub(crate) fn take_happened(&mut self) -> Vec<Happened> {
        core::mem::take(&mut self.happened)
    }

    fn key_of(&self, id: u64) -> Result<&SessionKey, CallRefused> {
        let sessions = self.sessions.iter().map(|(key, session)| (key, session.id));
        let restored = self.restored.iter().map(|(key, restored)| (key, restored.id));
        let found = sessions.chain(restored).find(|&(_, session)| session == SessionId(id));
        found.map(|(key, _)| key).ok_or(CallRefused::UnknownSession(id))
    }
}
