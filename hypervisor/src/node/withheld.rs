//! Withholds leases on devices that are unhealthy or used by processes without a session.

use std::collections::BTreeMap;

use ::limits::GpuId;
use protocol::Withheld;
use scheduler::WorkerId;

use super::Node;

impl Node {
    /// Replaces the devices on which leases are withheld. Returns the devices whose status has changed.
    pub(crate) fn withhold(&mut self, withheld: BTreeMap<GpuId, Withheld>, now: u64) -> Vec<GpuId> {
        let before = core::mem::replace(&mut self.withheld, withheld);
        let mut changed = Vec::new();
        for (&uuid, device) in &mut self.devices {
            let (was, is) = (before.contains_key(&uuid), self.withheld.contains_key(&uuid));
            match (was, is) {
                (false, true) => device.suspend(now),
                (true, false) => device.resume(now),
                _ => continue,
            }
            changed.push(uuid);
        }
        changed
    }

    /// Why leases on a device are withheld.
    pub(crate) fn withheld(&self, uuid: GpuId) -> Option<Withheld> {
        self.withheld.get(&uuid).copied()
    }

    /// Why leases on a device are withheld from this worker.
    pub(crate) fn withheld_from(&self, worker: WorkerId, uuid: GpuId) -> Option<Withheld> {
        let session = self.members.get(&worker).and_then(|own| self.sessions.get(&own.session));
        let frozen = session.is_some_and(|session| session.frozen);
        if frozen { Some(Withheld::Frozen) } else { self.withheld(uuid) }
    }

    /// Ids of the processes that are served.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.members.values().map(|member| member.pid)
    }
}
