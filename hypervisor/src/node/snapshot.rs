//! The part of a node that survives a restart of the daemon: sessions with limits and accounts, and totals of each
//! device. It contains durations but no points in time, so clock jumps do not matter, and no processes: they register
//! again.

use std::collections::{BTreeMap, BTreeSet};

use ::limits::{ComputeLimit, GpuId};
use scheduler::{SavedBalance, SessionId, SessionView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::forget::went;
use super::{Node, SessionKey};
use crate::identity::Owner;
use crate::limits::{MOST_SAVED_SESSIONS, TOTALS, is_session_name};
use protocol::MAX_DEVICES;

/// How long a session from before a restart is kept without a process if it is frozen or owes time, in nanoseconds.
const KEPT_NS: u64 = 24 * 3_600_000_000_000;
/// How long any other session is kept without a process. A process that uses its GPU registers again within seconds.
const COMES_BACK_NS: u64 = 600_000_000_000;

/// Highest id that a daemon gives; a higher one means a damaged file.
const HIGHEST_NUMBER: u64 = (1 << 53) - 2 * FURTHER;
/// More ids than are given between two snapshots.
const FURTHER: u64 = 1 << 20;

/// The saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Id of the latest worker.
    #[serde(default)]
    pub(crate) last_worker: u64,
    /// Id of the latest session.
    #[serde(default)]
    pub(crate) last_session: u64,
    #[serde(default, deserialize_with = "those_that_can_be_read")]
    pub(crate) sessions: Vec<SavedSession>,
    #[serde(default, deserialize_with = "those_that_can_be_read")]
    pub(crate) devices: Vec<SavedDevice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedSession {
    #[serde(flatten)]
    pub(crate) owner: Owner,
    pub(crate) name: String,
    /// How long the session has been without a process since a restart, in nanoseconds.
    #[serde(default)]
    pub(crate) absent_ns: u64,
    /// Whether the session is frozen.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(crate) frozen: bool,
    #[serde(default, deserialize_with = "those_that_can_be_read")]
    pub(crate) devices: Vec<SavedAccount>,
}

/// A session's limit and account on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedAccount {
    pub(crate) uuid: GpuId,
    pub(crate) limit: ComputeLimit,
    /// Remaining guaranteed time, in nanoseconds. Negative: the session owes time.
    #[serde(default)]
    pub(crate) balance_ns: i64,
    /// Remaining time below the burst limit, if the session has one, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ceiling_ns: Option<i64>,
    #[serde(flatten)]
    pub(crate) delivered: Delivered,
}

impl SavedAccount {
    pub(super) fn left(&self) -> SavedBalance {
        SavedBalance { balance_ns: self.balance_ns, ceiling_ns: self.ceiling_ns }
    }
}

/// Totals of a device over all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDevice {
    pub(crate) uuid: GpuId,
    #[serde(flatten)]
    pub(crate) delivered: Delivered,
}

/// Counters of device time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivered {
    /// Time charged.
    #[serde(default)]
    pub(crate) charged_ns: u64,
    /// The part of it beyond the guaranteed share.
    #[serde(default)]
    pub(crate) spare_ns: u64,
    /// Highest value that may have been published. A killed daemon has charged more than it saved; the next one starts
    /// from this value, so the published counter does not decrease.
    #[serde(default)]
    pub(crate) shown_ns: u64,
}

impl Delivered {
    /// Adds later charges of an account.
    pub(super) fn and(self, charged_ns: u64, spare_ns: u64) -> Self {
        Self {
            charged_ns: self.charged_ns.saturating_add(charged_ns),
            spare_ns: self.spare_ns.saturating_add(spare_ns),
            ..self
        }
    }

    /// The published counter.
    pub(super) fn shown(self) -> u64 {
        self.charged_ns.max(self.shown_ns)
    }

    fn to_save(self, ahead_ns: u64) -> Self {
        Self { shown_ns: self.shown().max(self.charged_ns.saturating_add(ahead_ns)), ..self }
    }
}

/// Skips elements that cannot be parsed, such as those of a later version.
fn those_that_can_be_read<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let all: Vec<serde_json::Value> = Vec::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// A session from before the restart; no process of it has registered yet.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) id: SessionId,
    pub(super) frozen: bool,
    pub(super) devices: BTreeMap<GpuId, SavedAccount>,
    /// When this daemon restored the session.
    pub(super) since: u64,
    /// How long the session had been without a process before that, in nanoseconds.
    absent_ns: u64,
}

impl Restored {
    fn absent_ns(&self, now: u64) -> u64 {
        self.absent_ns.saturating_add(now.saturating_sub(self.since))
    }

    /// Whether the session can be forgotten: it has been absent long enough.
    fn is_over(&self, now: u64) -> bool {
        let absent = self.absent_ns(now);
        let earned = |share_ppm: u32| {
            let since = now.saturating_sub(self.since);
            i64::try_from(u128::from(since) * u128::from(share_ppm) / 1_000_000).unwrap_or(i64::MAX)
        };
        let owes = |account: &SavedAccount| {
            let SavedAccount { limit, balance_ns, ceiling_ns, .. } = account;
            let ceiling = limit.soft_ppm.unwrap_or(limit.share_ppm);
            balance_ns.saturating_add(earned(limit.share_ppm)) < 0
                || ceiling_ns.is_some_and(|left| left.saturating_add(earned(ceiling)) < 0)
        };
        let matters = self.frozen || self.devices.values().any(owes);
        absent >= if matters { KEPT_NS } else { COMES_BACK_NS }
    }
}

impl Node {
    /// Restores an earlier node's state. Call first.
    pub(crate) fn restore(&mut self, snapshot: Snapshot, now: u64) {
        // Ids must not be reused. A killed daemon has given more ids than its last snapshot says.
        let beyond = |number: u64| number.min(HIGHEST_NUMBER) + FURTHER;
        self.last_session = self.last_session.max(beyond(snapshot.last_session));
        self.last_worker = self.last_worker.max(beyond(snapshot.last_worker));
        for device in snapshot.devices.into_iter().take(TOTALS) {
            self.delivered.insert(device.uuid, device.delivered);
        }
        for saved in snapshot.sessions.into_iter().take(MOST_SAVED_SESSIONS) {
            let SavedSession { owner, name, absent_ns, frozen, devices } = saved;
            if !is_session_name(&name) {
                continue;
            }
            let devices = devices.into_iter().take(MAX_DEVICES).map(|account| {
                let limit = account.limit.in_range();
                (account.uuid, SavedAccount { limit, ..account })
            });
            let (id, devices) = (self.next_session(), devices.collect());
            let restored = Restored { id, frozen, devices, since: now, absent_ns };
            self.restored.insert(SessionKey { owner, name }, restored);
        }
    }

    /// The state to save. `ahead_ns`: how long until the next snapshot may be written; 0 for the last one.
    pub(crate) fn snapshot(&mut self, now: u64, ahead_ns: u64) -> Snapshot {
        let mut views: BTreeMap<(u64, GpuId), SessionView> = BTreeMap::new();
        let mut totals = self.delivered.clone();
        let mut busy: BTreeMap<GpuId, u64> = BTreeMap::new();
        let sessions =
            self.members.values().filter_map(|member| self.sessions.get(&member.session));
        let used: BTreeSet<SessionId> = sessions.map(|session| session.id).collect();
        for (&uuid, device) in &mut self.devices {
            for view in device.view(now).sessions {
                let total = totals.entry(uuid).or_default();
                *total = total.and(view.charged_ns, view.spare_ns);
                *busy.entry(uuid).or_default() += u64::from(used.contains(&view.session));
                views.insert((view.session.0, uuid), view);
            }
        }
        let present = self.sessions.iter().map(|(key, session)| {
            // A session without a process is charged nothing more.
            let ahead_ns = if used.contains(&session.id) { ahead_ns } else { 0 };
            let used = session.quotas.iter().map(|(&uuid, &limit)| {
                let view = views.get(&(session.id.0, uuid));
                let left = view.map(|view| view.left);
                let left = left.or_else(|| Some(session.unclaimed.get(&uuid)?.0.left()));
                let SavedBalance { balance_ns, ceiling_ns } = left.unwrap_or_default();
                let delivered = session.delivered(uuid, view).to_save(ahead_ns);
                SavedAccount { uuid, limit, balance_ns, ceiling_ns, delivered }
            });
            // Accounts that no process has named since the restart.
            let is_used = |account: &SavedAccount| session.quotas.contains_key(&account.uuid);
            let waiting = session.unclaimed.values().map(|(account, _)| *account);
            let devices = used.chain(waiting.filter(|account| !is_used(account))).collect();
            let (owner, name, frozen) = (key.owner, key.name.clone(), session.frozen);
            SavedSession { owner, name, absent_ns: 0, frozen, devices }
        });
        let absent = self.restored.iter().map(|(key, restored)| SavedSession {
            owner: key.owner,
            name: key.name.clone(),
            absent_ns: restored.absent_ns(now),
            frozen: restored.frozen,
            devices: restored.devices.values().copied().collect(),
        });
        let sessions = present.chain(absent).collect();
        let devices = totals.into_iter().map(|(uuid, delivered)| {
            let ahead_ns = ahead_ns.saturating_mul(busy.get(&uuid).copied().unwrap_or(0));
            SavedDevice { uuid, delivered: delivered.to_save(ahead_ns) }
        });
        let (last_worker, last_session) = (self.last_worker, self.last_session);
        Snapshot { last_worker, last_session, sessions, devices: devices.collect() }
    }

    /// Forgets sessions from before the restart that no longer matter.
    pub(super) fn forget_restored(&mut self, now: u64) {
        let over = self.restored.iter().filter(|(_, restored)| restored.is_over(now));
        self.happened.extend(over.map(|(key, restored)| went(key, restored.id)));
        self.restored.retain(|_, restored| !restored.is_over(now));
    }
}
