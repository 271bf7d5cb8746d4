//! An allocation as the table of [`Allocations`](super::Allocations) keeps it in memory.

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

/// An allocation is removed this long after the kubelet stopped listing its container.
const ENDED: Duration = Duration::from_secs(1);
/// The same for a container that was never listed. The kubelet lists a container as soon as all its resources are
/// allocated, except init containers, which it never lists.
const NEVER_LISTED: Duration = Duration::from_secs(10);
/// An allocation. `None` stands for what is not known (yet).
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The resource name, or the grantor's name.
    pub(super) resource: String,
    pub(super) ids: BTreeSet<String>,
    /// Those of them that are places of this node.
    places: BTreeSet<UnitId>,
    pub(super) gpus: Vec<GpuId>,
    /// The directory from which its container loads the limiter. `None`: only the kubelet knows.
    pub(super) library: Option<PathBuf>,
    /// The container's shares, once known.
    pub(super) shares: Vec<(GpuId, Share)>,
    /// The shares withheld from other containers.
    pub(super) promised: Vec<(GpuId, Share)>,
    /// Whether its container is an init container, which the kubelet does not list.
    pub(super) is_init: bool,
    /// When it was allocated, or read from disk by this run.
    pub(super) made: Instant,
    /// When a container with this allocation was last about to start.
    pub(super) started: Option<Instant>,
    /// The container whose limits are written.
    pub(super) holder: Option<Holder>,
    /// The UID of its pod. `None`: unknown, for instance for allocations of an earlier run.
    pub(super) pod: Option<String>,
    /// The annotation text by which its limits were last changed, or failed to change.
    pub(super) followed: Option<String>,
    /// Whether the kubelet has ever listed its ids.
    pub(super) listed: bool,
    /// Since when the kubelet does not list its ids.
    pub(super) missing: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) key: AllocationKey,
    pub(crate) resource: String,
    pub(crate) ids: BTreeSet<String>,
    pub(crate) gpus: Vec<GpuId>,
    /// Whether a container with this allocation has begun to start.
    pub(crate) starts: bool,
}

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
    /// A new allocation without limits.
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

    /// Stores a decision whose files have been written.
    pub(super) fn take(&mut self, decision: &Decision) {
        self.holder = Some(decision.holder.clone());
        self.pod.clone_from(&decision.pod);
        self.shares = decision.shares();
        self.promised.clone_from(&decision.promised);
        self.is_init = decision.is_init;
    }

    /// `None` unless its limits are written and its container is present.
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

    /// Whether the kubelet's answer of that time is about the present container.
    pub(super) fn counts_at(&self, asked: Instant) -> bool {
        self.last_touched() <= asked
    }

    /// Whether its container is present, as far as the kubelet's list tells.
    fn counts(&self) -> bool {
        self.missing.is_none() || self.is_init
    }

    /// Whether it is in use: listed by the kubelet, or of a kind that the kubelet never lists (init containers,
    /// grants).
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

    /// For an allocation that is not listed: whether it has been missing for long enough to be removed.
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
