//! Allocations granted by a ResourceClaim or by another scheduler, which no kubelet ids name. They exist until
//! released, because the kubelet does not list them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use session::settings::OwnerSettings;

use super::{Allocations, Decision, Entry, Facts, Held, WriteError};
use crate::identity::Holder;
use crate::pool::AllocationKey;

/// The source of a granted allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grantor {
    /// A ResourceClaim of this DRA driver. The claim's UID owns the allocation.
    Claim,
    /// Another scheduler, whose containers the runtime reports over NRI. The pod's UID owns the allocation.
    Runtime,
    /// A ResourceClaim of NVIDIA's DRA driver. The claim's UID owns the allocation.
    NvidiaClaim,
}

impl Grantor {
    const ALL: [Self; 3] = [Self::Claim, Self::Runtime, Self::NvidiaClaim];

    /// The name stored in place of a resource name.
    const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Runtime => "runtime",
            Self::NvidiaClaim => "nvidia-claim",
        }
    }
}

impl Entry {
    pub(super) fn is_granted(&self) -> bool {
        Grantor::ALL.iter().any(|by| by.name() == self.resource)
    }
}

impl Allocations {
    /// Writes the limits for the containers called `name` of an owner. Idempotent; an allocation that an earlier run
    /// left incomplete is created anew.
    pub(crate) fn grant(
        &self,
        by: Grantor,
        (owner, name): (&str, &str),
        decision: &Decision,
    ) -> Result<AllocationKey, WriteError> {
        let key = AllocationKey::of_lines(&[by.name(), owner, name]);
        let mut table = self.table();
        let is_same = |entry: &&mut Entry| {
            let shares = decision.parts.iter().map(|part| (part.gpu, part.share));
            entry.holder.is_some()
                && entry.shares.iter().copied().eq(shares)
                && OwnerSettings::of(&self.of(&key)).is_ok()
        };
        if let Some(entry) = table.get_mut(&key).filter(is_same) {
            entry.started = Some(Instant::now());
            return Ok(key);
        }
        let others = table.iter().filter(|(other, _)| **other != key);
        let others: Vec<_> = others.flat_map(|(_, entry)| entry.counted()).copied().collect();
        decision.has_room(&others)?;
        let facts = Facts::granted(by.name(), owner, &decision.parts, &self.library);
        self.folder.make(&key, &facts)?;
        self.folder.write_new(&key, decision)?;
        let mut entry = Entry::of(facts);
        entry.take(decision);
        entry.listed = true;
        table.insert(key.clone(), entry);
        drop(table);
        self.has_changed();
        Ok(key)
    }

    /// The granted allocations, each with its owner's UID.
    pub(crate) fn granted(&self, by: Grantor) -> Vec<(String, Held)> {
        let owner_of = |key: &AllocationKey| {
            let table = self.table();
            let entry = table.get(key).filter(|entry| entry.resource == by.name())?;
            entry.ids.first().cloned()
        };
        let held = self.held().into_iter();
        held.filter_map(|held| Some((owner_of(&held.key)?, held))).collect()
    }

    /// Releases the allocations of owners for which `is_over` is true.
    pub(crate) fn take_back(&self, by: Grantor, is_over: impl Fn(&str) -> bool) -> io::Result<()> {
        let is_its = |(_, entry): &(&AllocationKey, &Entry)| {
            entry.resource == by.name() && entry.ids.iter().any(|owner| is_over(owner))
        };
        self.remove_those(is_its)
    }

    /// The allocation granted earlier to this container of the pod with this UID.
    pub(crate) fn granted_before(&self, holder: &Holder, pod: &str) -> Option<AllocationKey> {
        let mut table = self.table();
        // A claim's holder carries the claim's name in place of the container's.
        let is_its = |entry: &Entry| {
            let is_pods = entry.pod.as_deref() == Some(pod) || entry.ids.contains(pod);
            let is_container = entry.resource != Grantor::Claim.name() && entry.is_granted();
            is_container && is_pods && entry.holder.as_ref() == Some(holder)
        };
        let (key, entry) = table.iter_mut().find(|(_, entry)| is_its(entry))?;
        entry.started = Some(Instant::now());
        Some(key.clone())
    }

    /// Releases allocations last granted at least `ago` ago and no longer `mounted`, of one owner if `owner` is given.
    pub(crate) fn release_unused(
        &self,
        by: Grantor,
        ago: Duration,
        owner: Option<&str>,
        mounted: impl FnOnce(&[AllocationKey]) -> BTreeSet<AllocationKey>,
    ) -> io::Result<()> {
        let is_old = |entry: &Entry| {
            entry.resource == by.name()
                && entry.last_touched().elapsed() >= ago
                && owner.is_none_or(|owner| entry.ids.contains(owner))
        };
        let table = self.table();
        let old = table.iter().filter(|(_, entry)| is_old(entry));
        let old: BTreeMap<_, _> =
            old.map(|(key, entry)| (key.clone(), entry.last_touched())).collect();
        drop(table);
        if old.is_empty() {
            return Ok(());
        }
        let mounted = mounted(&old.keys().cloned().collect::<Vec<_>>());
        // It may have been granted again meanwhile.
        self.remove_those(|(key, entry)| {
            !mounted.contains(key) && old.get(key) == Some(&entry.last_touched())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Containers;

    #[test]
    fn what_no_process_sees_any_more_is_given_back_and_what_was_just_granted_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (allocations, _lock) = Allocations::take(folder.path(), folder.path()).unwrap();
        let own = || "x".to_owned();
        let holder = Holder { namespace: own(), pod: own(), container: own() };
        let decision = Decision::in_full(holder, None, Vec::new(), "/run/x.sock".into());
        let grant = |by, owner| allocations.grant(by, (owner, ""), &decision).unwrap();
        let (used, unused) = (grant(Grantor::NvidiaClaim, "1"), grant(Grantor::NvidiaClaim, "2"));
        grant(Grantor::Claim, "1");
        // Containers with grants may load the library of any version.
        let libraries = || allocations.libraries(&Containers::default());
        assert_eq!(libraries(), None);
        let release = |ago| {
            let mounted = |_: &[AllocationKey]| BTreeSet::from([used.clone()]);
            allocations.release_unused(Grantor::NvidiaClaim, ago, None, mounted).unwrap();
            allocations.granted(Grantor::NvidiaClaim).len()
        };
        assert_eq!(release(Duration::from_secs(100)), 2);
        assert_eq!(release(Duration::ZERO), 1);
        assert!(allocations.of(&used).exists() && !allocations.of(&unused).exists());
        assert_eq!(allocations.granted(Grantor::Claim).len(), 1);
        for by in Grantor::ALL {
            allocations.take_back(by, |_| true).unwrap();
        }
        assert_eq!(libraries(), Some(BTreeSet::new()));
    }
}
