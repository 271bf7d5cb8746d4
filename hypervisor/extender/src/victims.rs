//! Chooses the pods that must end so that one of higher priority fits. No I/O and no clock.
//!
//! kube-scheduler proposes victims by counting places per node. For the free capacity of single GPUs, they may not be
//! enough.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use placement::Holding;

use crate::cluster::{Cluster, name_of};
use crate::wire::{MetaPod, MetaVictims};

impl Cluster {
    /// The nodes on which the pod fits once these victims have ended, with more victims where needed.
    pub(crate) fn preempt(
        &self,
        pod: &Pod,
        proposed: BTreeMap<String, MetaVictims>,
    ) -> BTreeMap<String, MetaVictims> {
        // If a quota is used up, the pod is refused again whatever ends.
        if let Ok(Some(asked)) = self.reading.asked(pod)
            && self.would_keep_quota(&name_of(pod), &asked).is_err()
        {
            return BTreeMap::new();
        }
        let enough = |(node, victims): (String, MetaVictims)| {
            let uids = victims.pods.into_iter().map(|pod| pod.uid).collect();
            let pods = self.victims(pod, &node, uids)?.into_iter();
            let pods = pods.map(|uid| MetaPod { uid }).collect();
            Some((node, MetaVictims { pods, ..victims }))
        };
        proposed.into_iter().filter_map(enough).collect()
    }

    /// `None`: the pod does not fit, whatever ends.
    fn victims(
        &self,
        pod: &Pod,
        node: &str,
        mut victims: BTreeSet<String>,
    ) -> Option<BTreeSet<String>> {
        // Victims for a pod without GPUs are left as proposed.
        let Some(asked) = self.reading.asked(pod).ok()? else { return Some(victims) };
        let own = name_of(pod);
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
        let account = self.account(node, asked.request.dialect)?.ok()?;
        let others = self.holders(node).filter(|(name, _)| **name != own);
        let others: Vec<(&str, i32, &Holding)> = others
            .filter_map(|(_, pod)| Some((pod.uid.as_str(), pod.priority, pod.holding()?)))
            .collect();
        let fits = |victims: &BTreeSet<String>| {
            let mut account = account.clone();
            account.reset();
            let stay = others.iter().filter(|(uid, ..)| !victims.contains(*uid));
            stay.for_each(|(.., holding)| account.take(holding));
            account.place(&asked.request).is_ok()
        };
        let mut more: Vec<(i32, &str)> = others
            .iter()
            .filter(|(uid, of, _)| *of < priority && !victims.contains(*uid))
            .map(|(uid, of, _)| (*of, *uid))
            .collect();
        more.sort_unstable();
        let mut added = Vec::new();
        while !fits(&victims) {
            let (_, uid) = *more.get(added.len())?;
            victims.insert(uid.to_owned());
            added.push(uid);
        }
        // Removes victims that need not end, highest priority first.
        for uid in added.into_iter().rev() {
            victims.remove(uid);
            if !fits(&victims) {
                victims.insert(uid.to_owned());
            }
        }
        Some(victims)
    }
}
