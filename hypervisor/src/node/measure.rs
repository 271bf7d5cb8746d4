//! Figures of the node for `/metrics`.

use std::collections::BTreeMap;

use ::limits::{ComputeLimit, GpuId, Policy};
use scheduler::{SessionId, SessionView, WorkerId};

use super::served::Served;
use super::snapshot::{Delivered, SavedAccount};
use super::{Node, SessionKey};
use crate::identity::Owner;

/// Most session accounts and most worker accounts with series of their own, because series take memory during an
/// answer. The number left out is a figure, too.
const MOST_ACCOUNTS: usize = 1024;
const MOST_WORKERS: usize = 4096;

/// All figures of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Each device, summed over all sessions.
    pub(crate) devices: BTreeMap<GpuId, OnDevice>,
    pub(crate) sessions: Vec<SessionFigures>,
    pub(crate) workers: Vec<WorkerFigures>,
    /// Series of sessions and processes omitted because of the bound.
    pub(crate) left_out: usize,
}

/// Figures of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnDevice {
    pub(crate) sessions: u64,
    pub(crate) asking: u64,
    pub(crate) leases: u64,
    /// How often turns were chosen anew, and to hold leases at once.
    pub(crate) way_changes: [u64; 2],
    pub(crate) share_ppm: u64,
    pub(crate) charged_ns: u64,
    pub(crate) served: Served,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionFigures {
    pub(crate) owner: Owner,
    pub(crate) name: String,
    pub(crate) frozen: bool,
    /// The session's process ids, sorted.
    pub(crate) pids: Vec<u32>,
    pub(crate) accounts: Vec<AccountFigures>,
}

impl SessionFigures {
    /// Whether the session has this process.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.pids.binary_search(&pid).is_ok()
    }
}

/// Figures of a session on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountFigures {
    pub(crate) uuid: GpuId,
    pub(crate) limit: ComputeLimit,
    pub(crate) balance_ns: i64,
    pub(crate) charged_ns: u64,
    pub(crate) spare_ns: u64,
    pub(crate) served: Served,
}

/// Figures of a process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerFigures {
    pub(crate) owner: Owner,
    pub(crate) session: String,
    pub(crate) pid: i32,
    pub(crate) uuid: GpuId,
    pub(crate) charged_ns: u64,
    pub(crate) turns: u64,
    pub(crate) waited_ns: u64,
}

impl Node {
    /// The figures of the devices, and of the sessions that a caller may see.
    pub(crate) fn figures(&mut self, only: Option<&Owner>, now: u64) -> Figures {
        let mut figures = Figures::default();
        let views = self.measured_devices(&mut figures, now);
        let mut accounts = 0;
        let mut pids: BTreeMap<&SessionKey, Vec<u32>> = BTreeMap::new();
        for member in self.members.values() {
            pids.entry(&member.session).or_default().push(member.pid.unsigned_abs());
        }
        pids.values_mut().for_each(|pids| pids.sort_unstable());
        let sees = |key: &SessionKey| only.is_none_or(|owner| *owner == key.owner);
        let present = self.sessions.iter().filter(|(key, _)| sees(key)).map(|(key, session)| {
            let account = |(&uuid, &limit): (&GpuId, &ComputeLimit)| {
                let view = views.get(&(session.id, uuid));
                let before = session.before.get(&uuid).copied().unwrap_or_default();
                let delivered = view.map_or(before, |view| settled(before, view));
                let served = session.served.get(&uuid).copied().unwrap_or_default();
                account(uuid, limit, view.map_or(0, |view| view.balance_ns), delivered, served)
            };
            let limited = session.quotas.iter().filter(|(_, quota)| quota.policy != Policy::None);
            SessionFigures {
                owner: key.owner,
                name: key.name.clone(),
                frozen: session.frozen,
                pids: pids.get(key).cloned().unwrap_or_default(),
                accounts: limited.map(account).collect(),
            }
        });
        let restored = self.restored.iter().filter(|(key, _)| sees(key)).map(|(key, restored)| {
            let limited = restored.devices.values();
            let limited = limited.filter(|account| account.limit.policy != Policy::None);
            let of = |saved: &SavedAccount| {
                let served = Served::default();
                account(saved.uuid, saved.limit, saved.balance_ns, saved.delivered, served)
            };
            SessionFigures {
                owner: key.owner,
                name: key.name.clone(),
                frozen: restored.frozen,
                pids: Vec::new(),
                accounts: limited.map(of).collect(),
            }
        });
        for session in present.chain(restored) {
            if accounts + session.accounts.len().max(1) > MOST_ACCOUNTS {
                figures.left_out += 1;
                continue;
            }
            accounts += session.accounts.len().max(1);
            figures.sessions.push(session);
        }
        self.measure_workers(only, &mut figures);
        figures
    }

    fn measured_devices(
        &mut self,
        figures: &mut Figures,
        now: u64,
    ) -> BTreeMap<(SessionId, GpuId), SessionView> {
        let mut views = BTreeMap::new();
        let mut charged: BTreeMap<GpuId, Delivered> = self.delivered.clone();
        for (&uuid, device) in &mut self.devices {
            let view = device.view(now);
            let figures = figures.devices.entry(uuid).or_default();
            figures.leases = view.leases.len() as u64;
            figures.way_changes = view.way_changes;
            for state in view.sessions {
                figures.sessions += 1;
                figures.asking += u64::from(state.asks);
                figures.share_ppm += u64::from(state.quota.share_ppm);
                let total = charged.entry(uuid).or_default();
                *total = settled(*total, &state);
                views.insert((state.session, uuid), state);
            }
        }
        for (uuid, figures) in &mut figures.devices {
            figures.charged_ns = charged.get(uuid).map_or(0, |delivered| delivered.shown());
            figures.served = self.served.get(uuid).copied().unwrap_or_default();
        }
        views
    }

    fn measure_workers(&self, only: Option<&Owner>, figures: &mut Figures) {
        let seen = self
            .members
            .iter()
            .filter(|(_, member)| only.is_none_or(|owner| *owner == member.session.owner));
        for (&worker, member) in seen {
            for (&uuid, served) in &member.served {
                if figures.workers.len() == MOST_WORKERS {
                    figures.left_out += 1;
                    continue;
                }
                figures.workers.push(WorkerFigures {
                    owner: member.session.owner,
                    session: member.session.name.clone(),
                    pid: member.pid,
                    uuid,
                    charged_ns: self.charged_to(worker, uuid),
                    turns: served.turns,
                    waited_ns: served.waited_ns,
                });
            }
        }
    }

    fn charged_to(&self, worker: WorkerId, uuid: GpuId) -> u64 {
        self.devices.get(&uuid).map_or(0, |device| device.charged_to(worker))
    }
}

/// Adds the account's definite charges, so that the counter never decreases.
fn settled(before: Delivered, view: &SessionView) -> Delivered {
    before.and(view.settled_ns, view.spare_ns)
}

fn account(
    uuid: GpuId,
    limit: ComputeLimit,
    balance_ns: i64,
    delivered: Delivered,
    served: Served,
) -> AccountFigures {
    let (charged_ns, spare_ns) = (delivered.shown(), delivered.spare_ns);
    AccountFigures { uuid, limit, balance_ns, charged_ns, spare_ns, served }
}
