//! What of a node survives a restart of the daemon: sessions with their limits and accounts, and how
//! much of each device was delivered. No moment is in it, only spans, so no jump of a clock changes
//! anything. No process is in it either: a process has to register again.

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

/// How long a session from before a restart is kept while none of its processes registers, if it is frozen or owes
/// time.
const KEPT_NS: u64 = 24 * 3_600_000_000_000;
/// The same, if neither is so. A process that uses its GPU comes back within seconds.
const COMES_BACK_NS: u64 = 600_000_000_000;

/// No number that a daemon gave is higher, unless a file is damaged.
const HIGHEST_NUMBER: u64 = (1 << 53) - 2 * FURTHER;
/// More than are given from one snapshot to the next.
const FURTHER: u64 = 1 << 20;

/// What survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The last worker's number.
    #[serde(default)]
    pub(crate) last_worker: u64,
    /// The last session's number.
    #[serde(default)]
    pub(crate) last_session: u64,
    #[serde(default, deserialize_with = "those_that_can_be_read")]
    pub(crate) sessions: Vec<SavedSession>,
    #[serde(default, deserialize_with = "those_that_can_be_read")]
    pub(crate) devices: Vec<SavedDevice>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedSession {
    #[serde(flatten)]
    pub(crate) owner: Owner,
    pub(crate) name: String,
    /// For how long it has waited for a process since a restart, in nanoseconds.
    #[serde(default)]
    pub(crate) absent_ns: u64,
    /// Whether it is granted nothing.
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
    /// What it may still use, in nanoseconds. Negative: it owes time.
    #[serde(default)]
    pub(crate) balance_ns: i64,
    /// The same below its ceiling, if it has one.
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

/// What a device gave to all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDevice {
    pub(crate) uuid: GpuId,
    #[serde(flatten)]
    pub(crate) delivered: Delivered,
}

/// Counters of GPU time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delivered {
    /// All that was charged.
    #[serde(default)]
    pub(crate) charged_ns: u64,
    /// The part of it that was spare.
    #[serde(default)]
    pub(crate) spare_ns: u64,
    /// What somebody may have been shown. A daemon that is killed has charged more than it wrote. The
    /// next one shows no less than this, so that the counter does not go back.
    #[serde(default)]
    pub(crate) shown_ns: u64,
}

impl Delivered {
    /// With what an account was charged since.
    pub(super) fn and(self, charged_ns: u64, spare_ns: u64) -> Self {
        Self {
            charged_ns: self.charged_ns.saturating_add(charged_ns),
            spare_ns: self.spare_ns.saturating_add(spare_ns),
            ..self
        }
    }

    /// The counter as it is shown.
    pub(super) fn shown(self) -> u64 {
        self.charged_ns.max(self.shown_ns)
    }

    fn to_save(self, ahead_ns: u64) -> Self {
        Self { shown_ns: self.shown().max(self.charged_ns.saturating_add(ahead_ns)), ..self }
    }
}

/// An element that cannot be read, as a later version may write it, is left out.
fn those_that_can_be_read<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let all: Vec<serde_json::Value> = Vec::deserialize(from)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// A session from before the restart, of which no process has registered yet.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) id: SessionId,
    pub(super) frozen: bool,
    pub(super) devices: BTreeMap<GpuId, SavedAccount>,
    /// When the daemon started.
    pub(super) since: u64,
    /// For how long it was absent before.
    absent_ns: u64,
}

impl Restored {
    fn absent_ns(&self, now: u64) -> u64 {
        self.absent_ns.saturating_add(now.saturating_sub(self.since))
    }

    /// Whether it would have the same with a new account.
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
    /// Goes on where an earlier node was. To be called before anything else.
    pub(crate) fn restore(&mut self, snapshot: Snapshot, now: u64) {
        // Numbers that are given again would be taken for those of before. More were given than the
        // last snapshot of a killed daemon says.
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

    /// What has to survive. `ahead_ns`: how long it may take until the next snapshot is written; 0: it
    /// is the last one.
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
            // Without a process it is charged nothing more.
            let ahead_ns = if used.contains(&session.id) { ahead_ns } else { 0 };
            let used = session.quotas.iter().map(|(&uuid, &limit)| {
                let view = views.get(&(session.id.0, uuid));
                let left = view.map(|view| view.left);
                let left = left.or_else(|| Some(session.unclaimed.get(&uuid)?.0.left()));
                let SavedBalance { balance_ns, ceiling_ns } = left.unwrap_or_default();
                let delivered = session.delivered(uuid, view).to_save(ahead_ns);
                SavedAccount { uuid, limit, balance_ns, ceiling_ns, delivered }
            });
            // Those that none of its processes has named since the restart.
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

    /// Forgets sessions from before the restart that do not matter any more.
    pub(super) fn forget_restored(&mut self, now: u64) {
        let over = self.restored.iter().filter(|(_, restored)| restored.is_over(now));
        self.happened.extend(over.map(|(key, restored)| went(key, restored.id)));
        self.restored.retain(|_, restored| !restored.is_over(now));
    }
}
