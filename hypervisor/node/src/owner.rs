//! Finds the owner of an allocation: the container that the kubelet lists with its ids, or an init container that
//! starts with them.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use dialects::{Share, pods};
use k8s_openapi::api::core::v1::Pod;
use limits::GpuId;

use crate::allocations::{Held, Waiting};
use crate::amounts::{Part, Wish};
use crate::chain::chain;
use crate::cluster::Cluster;
use crate::identity::{Containers, Holder, Listed};
use crate::mounted;
use crate::placing;
use crate::resolver::{Resolver, Undecided};
use crate::starting::{self, Inits, Places, Starts};
use crate::words::is_where_claimed;

/// The container that owns an allocation.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) holder: Holder,
    /// Its entry in the kubelet's list. `None`: an init container.
    pub(crate) listed: Option<Listed>,
    /// Its pod, if known.
    pub(crate) pod: Option<Arc<Pod>>,
}

/// The result of looking for an owner.
pub(crate) enum Owned {
    By(Owner),
    /// A container starts with the ids, but which one is not known yet.
    Unclear,
    Nobody,
}

impl Resolver {
    pub(crate) async fn owner(
        &self,
        waiting: &Waiting,
        containers: &Containers,
    ) -> Result<Owned, Undecided> {
        let listed = containers.whose(&waiting.ids)?;
        let of_listed = |pod| match listed {
            Some(one) => {
                Owned::By(Owner { holder: one.holder.clone(), listed: Some(one.clone()), pod })
            }
            None => Owned::Nobody,
        };
        let Some(cluster) = &self.cluster else { return Ok(of_listed(None)) };
        let Some(places) = self.places(waiting) else { return Ok(Owned::Nobody) };
        let holder = match containers.with_any(&waiting.ids) {
            Some(one) => one.holder.clone(),
            None if !waiting.starts => return Ok(Owned::Nobody),
            None => match &self.initializing(cluster, waiting, places).await[..] {
                [] => return Ok(Owned::Nobody),
                [one] => one.clone(),
                _ => return Ok(Owned::Unclear),
            },
        };
        let pod = match cluster.pod(&holder).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return Err(Undecided::Cluster(format!("there is no pod of {holder}"))),
            Err(error) => return Err(Undecided::Cluster(chain(error))),
        };
        if !waiting.starts {
            return Ok(of_listed(Some(pod)));
        }
        let name = listed.map(|one| one.holder.container.as_str());
        let starts = self.inits().starting(&pod, name, (&waiting.key, places));
        Ok(match starts {
            Starts::Behind => Owned::Unclear,
            Starts::Listed => of_listed(Some(Arc::clone(&pod))),
            Starts::Init(name) => {
                let holder = placing::holder(&pod, name);
                Owned::By(Owner { holder, listed: None, pod: Some(Arc::clone(&pod)) })
            }
        })
    }

    pub(crate) fn inits(&self) -> std::sync::MutexGuard<'_, Inits> {
        self.inits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self, waiting: &Waiting) -> Option<Places<'_>> {
        let row = self.resources.iter().find(|row| row.name == waiting.resource)?;
        Some(Places { resource: row.name, dialect: row.dialect, count: waiting.ids.len() })
    }

    /// The init containers that may start with ids that no listed container has. If several may and one already runs,
    /// only the one that sees the allocation.
    async fn initializing(
        &self,
        cluster: &Cluster,
        waiting: &Waiting,
        places: Places<'_>,
    ) -> Vec<Holder> {
        let pods = cluster.pods();
        let is_there = |pod: &Arc<Pod>, name: &str| {
            let wish = self.said(pod, name, cluster);
            let is_claimed = wish.is_ok_and(|wish| is_where_claimed(&wish, &waiting.gpus));
            is_claimed && !self.inits().is_elsewhere(pod, name, &waiting.key)
        };
        let due = pods.iter().filter(|pod| !pods::has_ended(pod)).filter_map(|pod| {
            let init = starting::due(pod, places).find(|init| is_there(pod, &init.name))?;
            Some((placing::holder(pod, &init.name), pod.metadata.uid.clone().unwrap_or_default()))
        });
        let (mut due, uids): (Vec<Holder>, Vec<String>) = due.unzip();
        if due.len() > 1 {
            let key = waiting.key.clone();
            let look = move || mounted::by_pod(Path::new("/proc"), &key, &uids);
            if let Ok(Some(at)) = tokio::task::spawn_blocking(look).await {
                due = vec![due.swap_remove(at)];
            }
        }
        due
    }

    /// The pod of the container whose limits are written.
    pub(crate) async fn pod_of(&self, decided: &Holder) -> Option<Arc<Pod>> {
        let cluster = self.cluster.as_ref()?;
        match cluster.pods().into_iter().find(|pod| placing::is_of(pod, decided)) {
            Some(pod) => Some(pod),
            None => cluster.pod(decided).await.ok().flatten(),
        }
    }

    /// Whether a container other than the one whose limits are written may start with this allocation.
    pub(crate) fn may_be_another(&self, waiting: &Waiting, pod: &Pod, decided: &Holder) -> bool {
        let is_due = |places| starting::due(pod, places).next().is_some();
        starting::is_init(pod, &decided.container) || self.places(waiting).is_some_and(is_due)
    }

    /// The init containers of a pod that have ended when this container starts, without sidecars.
    pub(crate) fn ended_before(pod: &Pod, holder: &Holder) -> Vec<Holder> {
        let ended = starting::before(pod, Some(&holder.container));
        ended.map(|one| placing::holder(pod, &one.name)).collect()
    }

    /// The shares to promise for an owner with these parts.
    pub(crate) fn promised(
        &self,
        owner: &Owner,
        (parts, waiting): (&[Part], &Waiting),
        containers: &Containers,
    ) -> Vec<(GpuId, Share)> {
        let whole = || parts.iter().map(|part| (part.gpu, part.share));
        let (None, Some(pod)) = (&owner.listed, &owner.pod) else { return whole().collect() };
        let held = self.allocations.held();
        let mut later = Vec::new();
        let mut same = Vec::new();
        for listed in containers.of_pod(&owner.holder) {
            let name = &listed.holder.container;
            let mut before = starting::before(pod, Some(name));
            if !before.any(|init| init.name == owner.holder.container) {
                continue;
            }
            let Some(cluster) = &self.cluster else { continue };
            let Ok(wish) = self.said(pod, name, cluster) else { continue };
            let shares = self.shares_of(listed, &wish, &held);
            if listed.places == waiting.ids {
                same.extend(shares.iter().copied());
            }
            later.extend(shares);
        }
        let beyond = whole().map(|(gpu, share)| (gpu, starting::beyond((gpu, share), &later)));
        let sum = |(gpu, share): (GpuId, Share)| {
            let own = same.iter().filter(|(one, _)| *one == gpu);
            let add = |sum: Share, (_, one): &(GpuId, Share)| Share {
                cores: sum.cores.saturating_add(one.cores),
                memory_mib: sum.memory_mib.saturating_add(one.memory_mib),
            };
            (gpu, own.fold(share, add))
        };
        beyond.map(sum).collect()
    }

    /// A listed container's shares: the written ones, or else what its pod requests.
    pub(crate) fn shares_of(
        &self,
        listed: &Listed,
        wish: &Wish,
        held: &[Held],
    ) -> Vec<(GpuId, Share)> {
        // The written shares may have been changed by annotation.
        if let Some(own) = held.iter().find(|one| one.holder == listed.holder) {
            return own.shares.clone();
        }
        let parts = self.parts(&listed.holder, wish, &listed.gpus());
        let parts = parts.into_iter().flatten();
        parts.map(|part| (part.gpu, part.share)).collect()
    }
}
