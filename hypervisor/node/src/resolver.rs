//! Finds out whose allocations are, writes their limits, and removes those that nobody has any more.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dialects::claims::ContainerClaims;
use dialects::{Counts, Dialect, PodClaims, Resource};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use limits::{GpuId, Policy};
use tokio::sync::watch;

use crate::allocations::{Allocations, Decision, Waiting, WriteError};
use crate::amounts::{self, AmountError, Part, Wish};
use crate::chain::chain;
use crate::cluster::Cluster;
use crate::identity::{Containers, Holder, Listed, Mismatch};
use crate::mounted;
use crate::pod_resources::{PodResourcesApi, PodResourcesError};
use crate::pool::Pool;
use crate::proto::pod_resources::ContainerDevices;
use crate::words::{WordsError, is_where_claimed, wish};

/// How often the kubelet is asked while there are allocations.
const ASK: Duration = Duration::from_secs(1);
/// The same while a container waits for its limits.
const ASK_AT_ONCE: Duration = Duration::from_millis(250);
/// How often it is asked what it may give out.
const ASK_ALLOCATABLE: Duration = Duration::from_secs(60);

/// Why a container has no limits yet, or must not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecided {
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    #[error("{holder}: {source}")]
    Amount { holder: String, source: AmountError },
    #[error("{0} is not one of the node's GPUs any more")]
    NoGpu(GpuId),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{holder}: {source}")]
    Words { holder: String, source: WordsError },
    #[error("{holder}: its scheduler has claimed {claimed}, and the kubelet has given out {got}")]
    Elsewhere { holder: String, claimed: String, got: String },
    #[error("{0}")]
    Cluster(String),
    #[error(transparent)]
    Kubelet(#[from] PodResourcesError),
}

/// What became of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its limits are written.
    Decided,
    /// The kubelet lists no container with just these ids.
    Unlisted,
}

/// What is needed for that.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    pub(crate) kubelet: PodResourcesApi,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) resources: Arc<[Resource]>,
    /// Where containers see the daemon's socket.
    pub(crate) daemon: Arc<Path>,
    /// Where pods say what they ask for. `None`: what the kubelet counts is all that is known.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) dialects: Arc<[Dialect]>,
}

/// What containers are to get, by their names.
pub(crate) type Wishes = BTreeMap<Holder, Wished>;

/// What a container is to get.
pub(crate) struct Wished {
    /// Its pod, if it is known.
    pub(crate) pod: Option<Arc<Pod>>,
    wish: Result<Wish, Undecided>,
}

/// A container that has limits now, and its pod, if that is known.
type Decided = (Holder, Option<Arc<Pod>>);

/// Why a container has no limits yet.
struct Late {
    reason: String,
    /// Its pod and its name, where these have nothing to wait for.
    whose: Option<(Arc<Pod>, String)>,
}

impl Resolver {
    /// The containers as the kubelet lists them now, and when it was asked.
    pub(crate) async fn ask(&self) -> Result<(Containers, Instant), PodResourcesError> {
        let asked = Instant::now();
        let pods = self.kubelet.list().await?;
        Ok((Containers::of(&pods, &self.resources), asked))
    }

    /// Writes an allocation's limits, if it is told whose it is. Touches files.
    pub(crate) fn settle(
        &self,
        waiting: &Waiting,
        containers: &Containers,
        wishes: &mut Wishes,
        asked: Instant,
    ) -> Result<Settled, Undecided> {
        let Some(listed) = containers.whose(&waiting.ids)? else { return Ok(Settled::Unlisted) };
        let wished = wishes.remove(&listed.holder);
        let Some(Wished { pod, wish }) = wished else { return Ok(Settled::Unlisted) };
        let wish = wish?;
        self.check_place(listed, &wish, &waiting.gpus)?;
        let parts = self.parts(listed, &wish, &waiting.gpus)?;
        let policy = match &wish {
            Wish::Said { policy, .. } => *policy,
            Wish::Counted(_) => Policy::Fixed,
        };
        let (holder, daemon) = (listed.holder.clone(), self.daemon.to_path_buf());
        let pod = pod.and_then(|pod| pod.metadata.uid.clone());
        let decision = Decision { holder, pod, parts, policy, daemon };
        match self.allocations.decide(&waiting.key, &decision, containers, asked)? {
            true => {
                let (holder, key) = (decision.holder.to_string(), waiting.key.as_str());
                tracing::info!(holder, key, "its limits are written");
                Ok(Settled::Decided)
            }
            false => Ok(Settled::Unlisted),
        }
    }

    fn check_place(&self, listed: &Listed, wish: &Wish, gpus: &[GpuId]) -> Result<(), Undecided> {
        let Wish::Said { claims, .. } = wish else { return Ok(()) };
        if is_where_claimed(wish, gpus) {
            return Ok(());
        }
        let names = |all: &mut dyn Iterator<Item = GpuId>| {
            all.map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(" and ")
        };
        let claimed = names(&mut claims.iter().map(|claim| claim.gpu));
        let got = names(&mut gpus.iter().copied());
        Err(Undecided::Elsewhere { holder: listed.holder.to_string(), claimed, got })
    }

    fn parts(&self, listed: &Listed, wish: &Wish, gpus: &[GpuId]) -> Result<Vec<Part>, Undecided> {
        let pool = self.pool.borrow();
        let one = |id: &GpuId| {
            let gpu = pool.gpus().iter().find(|gpu| gpu.id == *id).ok_or(Undecided::NoGpu(*id))?;
            let holder = listed.holder.to_string();
            amounts::part(wish, gpu, &pool).map_err(|source| Undecided::Amount { holder, source })
        };
        gpus.iter().map(one).collect()
    }

    /// What these containers are to get: as their pods say, or else as the kubelet counts.
    pub(crate) async fn wishes(&self, waiting: &[Waiting], containers: &Containers) -> Wishes {
        let known = waiting.iter().filter_map(|one| containers.whose(&one.ids).ok().flatten());
        let wish = async |listed: &Listed| (listed.holder.clone(), self.wish(listed).await);
        // At once: an API server that is silent keeps them waiting together.
        join_all(known.map(wish)).await.into_iter().collect()
    }

    fn said(&self, pod: &Pod, container: &str, cluster: &Cluster) -> Result<Wish, WordsError> {
        let factor = self.pool.borrow().memory_factor();
        wish(pod, container, &self.dialects, cluster.policy(), factor)
    }

    async fn wish(&self, listed: &Listed) -> Wished {
        let Some(cluster) = &self.cluster else {
            return Wished { pod: None, wish: Ok(Wish::Counted(listed.asked)) };
        };
        let holder = &listed.holder;
        let none = |why| Wished { pod: None, wish: Err(Undecided::Cluster(why)) };
        match cluster.pod(holder).await {
            Ok(Some(pod)) => {
                let said = self.said(&pod, &holder.container, cluster);
                let wish =
                    said.map_err(|source| Undecided::Words { holder: holder.to_string(), source });
                Wished { pod: Some(pod), wish }
            }
            Ok(None) => none(format!("there is no pod of {holder}")),
            Err(error) => none(chain(error)),
        }
    }

    /// Tells a pod's scheduler what all of its containers have got, one of them just now.
    pub(crate) fn tell(&self, pod: &Arc<Pod>, holder: &Holder, containers: &Containers) {
        let Some(cluster) = &self.cluster else { return };
        let (mut dialect, mut all) = (None, Vec::new());
        let held = self.allocations.held();
        for listed in containers.of_pod(holder) {
            let name = &listed.holder.container;
            let Ok(wish) = self.said(pod, name, cluster) else { continue };
            let Wish::Said { need, .. } = &wish else { continue };
            // What it has by now may have been changed.
            let own = held.iter().find(|one| one.holder == listed.holder);
            let gpus: BTreeSet<GpuId> =
                listed.places.iter().filter_map(|id| id.split_once("::")?.0.parse().ok()).collect();
            let gpus: Vec<GpuId> = gpus.into_iter().collect();
            let shares = match own {
                Some(own) => own.shares.clone(),
                None => {
                    let Ok(parts) = self.parts(listed, &wish, &gpus) else { continue };
                    parts.iter().map(|part| (part.gpu, part.share)).collect()
                }
            };
            dialect = Some(need.dialect);
            let pool = self.pool.borrow();
            let claims = shares.into_iter().map(|(gpu, share)| pool.claim(gpu, share)).collect();
            all.push(ContainerClaims { container: name.clone(), claims });
        }
        if let Some(dialect) = dialect {
            cluster.allocated(pod, &holder.container, (dialect, PodClaims(all)));
        }
    }

    /// Tells of those of which an earlier run may not have told before it ended. Returns those whose pods are not known yet.
    async fn tell_again(&self, untold: Vec<Holder>, containers: &Containers) -> Vec<Holder> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let found = join_all(untold.iter().map(|holder| cluster.pod(holder))).await;
        let mut left = Vec::new();
        for (holder, found) in untold.into_iter().zip(found) {
            match found {
                Ok(Some(pod)) => self.tell(&pod, &holder, containers),
                Ok(None) => {}
                Err(_) => left.push(holder),
            }
        }
        left
    }

    /// Looks again and again, for as long as the program runs.
    pub(crate) async fn keep(self) -> Infallible {
        let mut told = None;
        let mut undecided = BTreeMap::new();
        let mut allocatable = Allocatable::default();
        let mut untold: Vec<Holder> =
            self.allocations.held().into_iter().map(|held| held.holder).collect();
        loop {
            tokio::time::sleep(self.pause()).await;
            allocatable.look(&self).await;
            if !self.allocations.any() {
                continue;
            }
            match self.ask().await {
                Ok((containers, asked)) => {
                    told = None;
                    let own = self.clone();
                    let waiting = self.allocations.waiting(asked);
                    let wishes = self.wishes(&waiting, &containers).await;
                    let kept = containers.clone();
                    let work = move || own.act_on(waiting, &containers, wishes, asked);
                    match tokio::task::spawn_blocking(work).await {
                        Ok((now, decided)) => {
                            for (holder, pod) in decided {
                                untold.retain(|one| *one != holder);
                                if let Some(pod) = pod {
                                    self.tell(&pod, &holder, &kept);
                                }
                            }
                            untold = self.tell_again(untold, &kept).await;
                            self.tell_late(&undecided, &now);
                            undecided =
                                now.into_iter().map(|(key, late)| (key, late.reason)).collect();
                        }
                        Err(ended) => tracing::error!(%ended, "looking after allocations"),
                    }
                }
                Err(reason) => {
                    // Once: this may go on for long.
                    if told.as_ref() != Some(&reason) {
                        tracing::warn!(%reason, "new containers wait for their limits, and none is removed");
                    }
                    told = Some(reason);
                }
            }
        }
    }

    /// Each once: this may go on for long.
    fn tell_late(&self, before: &BTreeMap<String, String>, now: &BTreeMap<String, Late>) {
        for (key, Late { reason, whose }) in now {
            if before.get(key) == Some(reason) {
                continue;
            }
            tracing::warn!(key, reason, "a container has no limits");
            if let (Some(cluster), Some((pod, container))) = (&self.cluster, whose) {
                cluster.refused_late(pod, container, reason);
            }
        }
    }

    fn pause(&self) -> Duration {
        if self.allocations.is_urgent() { ASK_AT_ONCE } else { ASK }
    }

    /// Returns which allocations have no limits and why, and who has got some.
    fn act_on(
        &self,
        waiting: Vec<Waiting>,
        containers: &Containers,
        mut wishes: Wishes,
        asked: Instant,
    ) -> (BTreeMap<String, Late>, Vec<Decided>) {
        let (mut undecided, mut decided) = (BTreeMap::new(), Vec::new());
        for waiting in waiting {
            let holder =
                containers.whose(&waiting.ids).ok().flatten().map(|one| one.holder.clone());
            let pod = holder.as_ref().and_then(|holder| wishes.get(holder)?.pod.clone());
            match self.settle(&waiting, containers, &mut wishes, asked) {
                Ok(Settled::Decided) => decided.extend(holder.map(|holder| (holder, pod))),
                Ok(Settled::Unlisted) => {}
                Err(why) => {
                    let whose = pod.zip(holder.map(|holder| holder.container));
                    let late = Late { reason: why.to_string(), whose };
                    undecided.insert(waiting.key.as_str().to_owned(), late);
                }
            }
        }
        let mounted = |keys: &[_]| mounted::among(Path::new("/proc"), keys);
        match self.allocations.remove_ended(containers, asked, mounted) {
            Ok(removed) => {
                for key in removed {
                    tracing::info!(key = key.as_str(), "its container has ended: removed");
                }
            }
            Err(error) => tracing::warn!(%error, "an allocation cannot be removed"),
        }
        (undecided, decided)
    }
}

/// Whether the kubelet has what it was offered.
#[derive(Debug, Default)]
struct Allocatable {
    asked: Option<Instant>,
    /// This version does not tell.
    is_over: bool,
    told: BTreeSet<&'static str>,
}

impl Allocatable {
    async fn look(&mut self, resolver: &Resolver) {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_ALLOCATABLE);
        if self.is_over || !is_due {
            return;
        }
        self.asked = Some(Instant::now());
        let parts = match resolver.kubelet.allocatable().await {
            Ok(parts) => parts,
            Err(PodResourcesError::NotThere) => {
                self.is_over = true;
                return;
            }
            // Whoever asks for pods tells of it.
            Err(_) => return,
        };
        for resource in resolver.resources.iter() {
            let has = has(&parts, resource.name);
            let offered = offered(&resolver.pool.borrow(), resource.counts);
            let resource = resource.name;
            if has == offered {
                self.told.remove(resource);
            } else if self.told.insert(resource) {
                tracing::warn!(resource, offered, has, "the kubelet has not what it was offered");
            }
        }
    }
}

/// How many ids of a resource the kubelet has. It may tell them in several parts.
fn has(parts: &[ContainerDevices], resource: &str) -> usize {
    let own = parts.iter().filter(|part| part.resource_name == resource);
    own.flat_map(|part| &part.device_ids).collect::<BTreeSet<_>>().len()
}

fn offered(pool: &Pool, counts: Counts) -> usize {
    pool.ids(counts).filter(|(_, healthy)| *healthy).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Gpu;
    use dialects::registers::Hardware;

    #[test]
    fn what_the_kubelet_has_is_compared_with_what_is_healthy() {
        let gpu = |byte, healthy| Gpu {
            id: GpuId::from_bytes([byte; 16]),
            memory_mib: None,
            healthy,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let split = 3.try_into().unwrap();
        let pool = Pool::new(vec![gpu(1, true), gpu(2, false)], split, split);
        assert_eq!(offered(&pool, Counts::Places), 3);
        let part = |name: &str, ids: &[&str]| ContainerDevices {
            resource_name: name.to_owned(),
            device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
        };
        let parts = [part("a", &["1", "2"]), part("b", &["9"]), part("a", &["2", "3"])];
        assert_eq!((has(&parts, "a"), has(&parts, "b"), has(&parts, "c")), (3, 1, 0));
    }
}
