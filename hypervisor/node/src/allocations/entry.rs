//! One allocation, as far as it is known.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dialects::Share;
use limits::GpuId;

use super::decision::Decision;
use super::folder::Facts;
use crate::hidden::Taken;
use crate::identity::{Containers, Holder};
use crate::pool::{AllocationKey, UnitId};

/// How long after its container was listed no more an allocation is removed.
const ENDED: Duration = Duration::from_secs(1);
/// The same for one whose container was never listed: the kubelet lists it as soon as all its resources are there, but
/// for an init container, which it never lists.
const NEVER_LISTED: Duration = Duration::from_secs(10);
/// An allocation, as far as it is known.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// By whose name.
    pub(super) resource: String,
    pub(super) ids: BTreeSet<String>,
    /// Those of them that are places of this node.
    places: BTreeSet<UnitId>,
    pub(super) gpus: Vec<GpuId>,
    /// The directory from which its container loads the limiter. `None`: only the kubelet knows.
    pub(super) library: Option<PathBuf>,
    /// What it has, when that is known.
    pub(super) shares: Vec<(GpuId, Share)>,
    /// What is promised because of it.
    pub(super) promised: Vec<(GpuId, Share)>,
    /// Whether its container is an init container, which kubelets do not list.
    pub(super) is_init: bool,
    /// When it was allocated, or found by this run.
    pub(super) made: Instant,
    /// When a container with it was last about to start.
    pub(super) started: Option<Instant>,
    /// Whose limits are written.
    pub(super) holder: Option<Holder>,
    /// The UID of its pod. `None`: not known, as of what an earlier run left.
    pub(super) pod: Option<String>,
    /// The annotation by which its limits were last changed, or were to be.
    pub(super) followed: Option<String>,
    /// Whether its ids have been listed.
    pub(super) listed: bool,
    /// Since when they are not.
    pub(super) missing: Option<Instant>,
}

/// An allocation that waits for its limits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) key: AllocationKey,
    pub(crate) resource: String,
    pub(crate) ids: BTreeSet<String>,
    pub(crate) gpus: Vec<GpuId>,
    /// Whether a container with it has begun to start.
    pub(crate) starts: bool,
}

/// An allocation whose limits are written.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: AllocationKey,
    pub(crate) holder: Holder,
    pub(crate) pod: Option<String>,
    pub(crate) gpus: Vec<GpuId>,
    pub(crate) shares: Vec<(GpuId, Share)>,
    pub(crate) promised: Vec<(GpuId, Share)>,
    pub(crate) followed: Option<String>,
}

impl Entry {
    /// One that was just made.
    pub(super) fn of(facts: Facts) -> Self {
        let Facts { resource, ids, gpus, library, .. } = facts;
        Self {
            resource,
            places: ids.iter().filter_map(|id| UnitId::read(id)).collect(),
            ids,
            gpus,
            library,
            shares: Vec::new(),
            promised: Vec::new(),
            is_init: false,
            made: Instant::now(),
            started: None,
            holder: None,
            pod: None,
            followed: None,
            listed: false,
            missing: None,
        }
    }

    /// What holds by now.
    pub(super) fn take(&mut self, decision: &Decision) {
        self.holder = Some(decision.holder.clone());
        self.pod.clone_from(&decision.pod);
        self.shares = decision.shares();
        self.promised.clone_from(&decision.promised);
        self.is_init = decision.is_init;
    }

    /// If its limits are written.
    pub(super) fn held((key, entry): (&AllocationKey, &Self)) -> Option<Held> {
        Some(Held {
            key: key.clone(),
            holder: entry.holder.clone().filter(|_| entry.counts())?,
            pod: entry.pod.clone(),
            gpus: entry.gpus.clone(),
            shares: entry.shares.clone(),
            promised: entry.promised.clone(),
            followed: entry.followed.clone(),
        })
    }

    pub(super) fn waiting((key, entry): (&AllocationKey, &Self)) -> Waiting {
        Waiting {
            key: key.clone(),
            resource: entry.resource.clone(),
            ids: entry.ids.clone(),
            gpus: entry.gpus.clone(),
            starts: entry.started.is_some(),
        }
    }

    /// Whether what the kubelet was asked at that time is about the present container.
    pub(super) fn counts_at(&self, asked: Instant) -> bool {
        self.last_touched() <= asked
    }

    /// Whether its container has it, as far as kubelets tell.
    fn counts(&self) -> bool {
        self.missing.is_none() || self.is_init
    }

    /// Whether somebody has it, as the kubelet lists it, or as it does not list: init containers, and what was granted.
    pub(super) fn is_there(&self, listed: &Containers) -> bool {
        self.is_init || self.is_granted() || listed.have_any(&self.ids)
    }

    pub(super) fn taken(&self) -> Taken {
        let (places, shares) = (self.places.clone(), self.counted().to_vec());
        Taken { resource: self.resource.clone(), places, shares }
    }

    /// What is promised because of it. The kubelet may have freed the ids of what it lists no more: these are not counted
    /// against it twice.
    pub(super) fn counted(&self) -> &[(GpuId, Share)] {
        if self.counts() { &self.promised } else { &[] }
    }

    pub(super) fn last_touched(&self) -> Instant {
        self.started.map_or(self.made, |started| started.max(self.made))
    }

    /// It is not listed: whether that has been so for long enough.
    pub(super) fn is_over(&mut self, asked: Instant) -> bool {
        if self.last_touched() >= asked {
            return false;
        }
        let since = *self.missing.get_or_insert(asked);
        let (from, patience) =
            if self.listed { (since, ENDED) } else { (self.last_touched(), NEVER_LISTED) };
        asked.saturating_duration_since(from) >= patience
    }
}
