//! Shares of a GPU that add up to more than it has: then no session gets all of its share.

use std::collections::BTreeMap;

use limits::units::PPM_ONE;
use limits::{GpuId, Policy};
use protocol::sessions::OvercommittedGpu;
use session::SessionSummary;

use crate::Error;
use crate::node::Node;
use crate::node::gpus::{Gpus, is_simulated};
use crate::status::Percent;

/// The shares that sessions have of each GPU, added up.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<GpuId, (u64, Option<u32>)>);

impl Shares {
    /// Those of the sessions that can be seen, and what the daemon says of the others.
    pub(crate) fn of(node: &Node, gpus: &Gpus) -> Self {
        let mut shares = Self::default();
        for found in &node.sessions {
            let summary = SessionSummary::of(found);
            // Simulated nodes have the same GPUs: only a daemon knows whose sessions share one.
            let is_elsewhere = is_simulated(found) && node.known(found).is_none();
            if is_elsewhere || !found.owned && !summary.is_in_use() {
                continue;
            }
            for (uuid, device) in &summary.devices {
                let limit = device.limits.compute;
                if limit.policy != Policy::None {
                    shares.add(*uuid, limit.share_ppm.into(), || gpus.index(Some(found), *uuid));
                }
            }
        }
        for device in node.elsewhere(false).flat_map(|session| &session.devices) {
            let limited = Policy::from(device.policy) != Policy::None;
            if let (Ok(uuid), true) = (device.uuid.parse(), limited) {
                shares.add(uuid, device.share_ppm.into(), || gpus.index(None, uuid));
            }
        }
        let told = node.daemon.iter().filter_map(|daemon| daemon.devices());
        for device in told.flat_map(|list| list.devices) {
            if let (Ok(uuid), hidden @ 1..) = (device.uuid.parse(), device.others.share_ppm) {
                shares.add(uuid, hidden, || gpus.index(None, uuid));
            }
        }
        shares
    }

    /// Those of a node that has just been read; none if that failed.
    pub(crate) fn now(node: Result<Node, Error>) -> Self {
        node.map_or_else(|_| Self::default(), |node| Self::of(&node, &Gpus::default()))
    }

    /// Adds a session's share of a GPU.
    pub(crate) fn add(&mut self, uuid: GpuId, ppm: u64, index: impl FnOnce() -> Option<u32>) {
        let (sum, known) = self.0.entry(uuid).or_default();
        *sum = sum.saturating_add(ppm);
        if known.is_none() {
            *known = index();
        }
    }

    /// A GPU whose shares are more than it has.
    pub(crate) fn overcommitted(&self, uuid: GpuId) -> Option<OvercommittedGpu> {
        let &(shares_ppm, index) = self.0.get(&uuid).filter(|(sum, _)| *sum > PPM_ONE.into())?;
        let name = index.map_or_else(|| uuid.to_string(), |index| format!("GPU {index}"));
        let sum = Percent(u32::try_from(shares_ppm).unwrap_or(u32::MAX));
        let notice = format!("shares on {name} add up to {sum}");
        Some(OvercommittedGpu { uuid, shares_ppm, notice })
    }

    /// Says so, and what follows from it.
    pub(crate) fn line(&self, uuid: GpuId) -> Option<String> {
        let notice = self.overcommitted(uuid)?.notice;
        Some(format!("{notice}: while all of these sessions use it, each gets less than its share"))
    }

    /// A line for each GPU of which too much is promised.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.keys().filter_map(|uuid| self.line(*uuid))
    }

    /// All of these GPUs.
    pub(crate) fn all_overcommitted(&self) -> Vec<OvercommittedGpu> {
        self.0.keys().filter_map(|uuid| self.overcommitted(*uuid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_a_gpu_is_said() {
        let [one, other] = [1, 2].map(|number| GpuId::from_bytes([number; 16]));
        let mut shares = Shares::default();
        for _ in 0..2 {
            shares.add(one, 500_000, || Some(0));
            shares.add(other, 500_001, || None);
        }
        assert_eq!(shares.overcommitted(one), None);
        shares.add(one, 500_000, || unreachable!());
        let found = shares.overcommitted(one).unwrap();
        assert_eq!((found.shares_ppm, found.uuid), (1_500_000, one));
        assert_eq!(found.notice, "shares on GPU 0 add up to 150.0 %");
        assert!(shares.overcommitted(other).unwrap().notice.contains(&other.to_string()));
        assert_eq!(shares.lines().count(), 2);
    }
}
