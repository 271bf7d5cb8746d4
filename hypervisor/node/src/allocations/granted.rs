//! Allocations that no ids of a kubelet name, because a claim or another scheduler has granted them. They stay until
//! they are released: no list of a kubelet says when.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use limits::{GpuId, Limits};
use session::allocation;
use session::settings::OwnerSettings;

use super::{Allocations, Decision, Entry, Facts, Held, WriteError};
use crate::pool::AllocationKey;

/// Who grants allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grantor {
    /// A ResourceClaim of the DRA driver. Its UID owns the allocation.
    Claim,
    /// A scheduler whose containers the runtime shows by NRI. The pod's UID owns the allocation.
    Runtime,
}

impl Grantor {
    /// In an allocation's facts, in the place of a resource.
    const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Runtime => "runtime",
        }
    }
}

impl Entry {
    pub(super) fn is_granted(&self) -> bool {
        [Grantor::Claim, Grantor::Runtime].iter().any(|by| by.name() == self.resource)
    }
}

impl Allocations {
    /// Writes what holds for an owner's containers of that name. The same twice changes nothing, and what an earlier run
    /// did not finish is made anew.
    pub(crate) fn grant(
        &self,
        by: Grantor,
        (owner, name): (&str, &str),
        decision: &Decision,
    ) -> Result<AllocationKey, WriteError> {
        let key = AllocationKey::of_lines(&[by.name(), owner, name]);
        let gpus: Vec<GpuId> = decision.parts.iter().map(|part| part.gpu).collect();
        let mut table = self.table();
        let is_same = |entry: &Entry| {
            let shares = decision.parts.iter().map(|part| (part.gpu, part.share));
            entry.holder.is_some()
                && entry.shares.iter().copied().eq(shares)
                && OwnerSettings::of(&self.of(&key)).is_ok()
        };
        if table.get(&key).is_some_and(is_same) {
            return Ok(key);
        }
        let others = table.iter().filter(|(other, _)| **other != key);
        let others: Vec<_> = others.flat_map(|(_, entry)| entry.taken().shares).collect();
        decision.has_room(&others)?;
        let facts = Facts {
            version: 1,
            resource: by.name().to_owned(),
            ids: vec![owner.to_owned()],
            gpus: gpus.iter().map(ToString::to_string).collect(),
            library: Some(self.library.clone()),
        };
        self.make(&key, &facts)?;
        let limits: Vec<(GpuId, Limits)> =
            decision.parts.iter().map(|part| (part.gpu, part.limits)).collect();
        allocation::make_pages(&self.session_of(&key), &limits)?;
        let shares = self.write_down(&key, decision)?;
        let entry = Entry {
            resource: facts.resource,
            ids: BTreeSet::from([owner.to_owned()]),
            gpus,
            library: facts.library,
            promised: shares.clone(),
            shares,
            is_init: false,
            made: Instant::now(),
            started: None,
            holder: Some(decision.holder.clone()),
            pod: decision.pod.clone(),
            followed: None,
            listed: true,
            missing: None,
        };
        table.insert(key.clone(), entry);
        drop(table);
        self.has_changed();
        Ok(key)
    }

    /// What has been granted, with its owners.
    pub(crate) fn granted(&self, by: Grantor) -> Vec<(String, Held)> {
        let owner_of = |key: &AllocationKey| {
            let table = self.table();
            let entry = table.get(key).filter(|entry| entry.resource == by.name())?;
            entry.ids.first().cloned()
        };
        let held = self.held().into_iter();
        held.filter_map(|held| Some((owner_of(&held.key)?, held))).collect()
    }

    /// Removes what has been granted to owners of which `is_over` holds.
    pub(crate) fn take_back(&self, by: Grantor, is_over: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut table = self.table();
        let is_its = |(_, entry): &(&AllocationKey, &Entry)| {
            entry.resource == by.name() && entry.ids.iter().any(|owner| is_over(owner))
        };
        let keys: Vec<_> = table.iter().filter(is_its).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.remove(&self.of(key))?;
            table.remove(key);
        }
        drop(table);
        if !keys.is_empty() {
            self.has_changed();
        }
        Ok(())
    }
}
