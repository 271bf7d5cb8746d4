//! What a node shows of itself.

use std::collections::BTreeMap;

use ::limits::GpuId;
use protocol::status::{self, DeviceStatus, LeaseStatus, SessionStatus};
use scheduler::{Class, DeviceView, Paid, SessionId};

use super::{Node, SessionKey};
use crate::identity::Owner;

/// A session that a caller may see.
struct VisibleSession<'node> {
    key: &'node SessionKey,
    pids: Vec<i32>,
}

impl Node {
    /// The state that a caller may see: everything, or that of one owner.
    pub(crate) fn status(&mut self, only: Option<&Owner>, now: u64) -> Vec<DeviceStatus> {
        let views: Vec<(GpuId, DeviceView)> =
            self.devices.iter_mut().map(|(&uuid, device)| (uuid, device.view(now))).collect();
        let mut shown: BTreeMap<SessionId, VisibleSession<'_>> = BTreeMap::new();
        let seen =
            self.sessions.iter().filter(|(key, _)| only.is_none_or(|owner| *owner == key.owner));
        for (key, session) in seen {
            shown.insert(session.id, VisibleSession { key, pids: Vec::new() });
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
        uuid: GpuId,
        view: &DeviceView,
        shown: &BTreeMap<SessionId, VisibleSession<'_>>,
    ) -> DeviceStatus {
        let sessions = view.sessions.iter().filter_map(|state| {
            let VisibleSession { key, pids } = shown.get(&state.session)?;
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
            let VisibleSession { key, .. } = shown.get(&lease.session)?;
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
