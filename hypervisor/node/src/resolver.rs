//! The main loop behind allocations: finds each allocation's container, writes its limits, and removes allocations
//! whose container has ended. Also answers the plugins' questions about containers.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dialects::claims::ContainerClaims;
use dialects::{Counts, Dialect, PodClaims, Resource, Share, pods};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use limits::GpuId;
use placement::{PodRefusal, Recipient};
use tokio::sync::watch;

use crate::allocations::{Allocations, Decision, Waiting, WriteError};
use crate::amounts::{self, AmountError, Part, Wish};
use crate::cluster::Cluster;
use crate::identity::{Containers, Holder, Listed, Mismatch};
use crate::mounted;
use crate::owner::{Owned, Owner};
use crate::placing::{self, Request, is_of};
use crate::pod_resources::{PodResourcesApi, PodResourcesError};
use crate::pool::{AllocationKey, Pool};
use crate::proto::pod_resources::ContainerDevices;
use crate::starting::{self, Inits};
use crate::words::{WordsError, is_where_claimed, wish};

/// How often to list pods while there are allocations.
const ASK: Duration = Duration::from_secs(1);
/// How often to list pods while a container waits for its limits.
const ASK_AT_ONCE: Duration = Duration::from_millis(250);
/// How long after `Allocate` the kubelet lists the container.
const LISTED_AFTER: Duration = Duration::from_millis(20);
/// Timeout of the kubelet's list while it waits for preferred GPUs.
const LISTS_WITHIN: Duration = Duration::from_secs(1);
/// How long the pod watch may lag behind the kubelet before all pods are listed.
const HEARD_WITHIN: Duration = Duration::from_millis(50);
/// How often to compare the kubelet's allocatable devices.
const ASK_ALLOCATABLE: Duration = Duration::from_secs(60);

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

/// The state of an allocation after an attempt to write its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its limits are written.
    Decided,
    /// The kubelet lists no container with exactly these ids.
    Unlisted,
    /// A container starts with these ids, and the API server does not show yet which one.
    Unclear,
}

/// The state that the loop and the plugins share.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    pub(crate) kubelet: PodResourcesApi,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) resources: Arc<[Resource]>,
    /// The daemon's socket inside containers.
    pub(crate) daemon: Arc<Path>,
    /// The API server, for pods' requests. `None`: only the kubelet's counts are known.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) dialects: Arc<[Dialect]>,
    pub(crate) inits: Arc<Mutex<Inits>>,
}

/// Parts of GPUs.
pub(crate) type Shares = Vec<(GpuId, Share)>;

/// The result for an allocation, and its container if known.
pub(crate) struct Outcome {
    key: AllocationKey,
    pub(crate) holder: Option<Holder>,
    pub(crate) pod: Option<Arc<Pod>>,
    pub(crate) settled: Result<Settled, Undecided>,
}

impl Resolver {
    /// Lists the containers at the kubelet. Also returns when it was asked.
    pub(crate) async fn ask(&self) -> Result<(Containers, Instant), PodResourcesError> {
        let asked = Instant::now();
        let pods = self.kubelet.list().await?;
        Ok((Containers::of(&pods, &self.resources), asked))
    }

    /// Writes the limits of allocations whose container is known, and tells the schedulers of their pods.
    pub(crate) async fn settle(
        &self,
        waiting: Vec<Waiting>,
        containers: &Arc<Containers>,
        asked: Instant,
    ) -> Vec<Outcome> {
        // Concurrently, so that a silent API server costs one timeout, not one each.
        let owned = join_all(waiting.iter().map(|one| self.owner(one, containers))).await;
        let (own, listed) = (self.clone(), Arc::clone(containers));
        let work = move || {
            let one = |(waiting, owned): (Waiting, Result<Owned, Undecided>)| {
                let owner = match owned {
                    Ok(Owned::By(owner)) => owner,
                    other => {
                        let settled = other.map(|owned| match owned {
                            Owned::Unclear => Settled::Unclear,
                            _ => Settled::Unlisted,
                        });
                        return Outcome { key: waiting.key, holder: None, pod: None, settled };
                    }
                };
                let settled = own.settle_one(&waiting, &listed, &owner, asked);
                let Owner { holder, pod, .. } = owner;
                Outcome { key: waiting.key, holder: Some(holder), pod, settled }
            };
            waiting.into_iter().zip(owned).map(one).collect::<Vec<_>>()
        };
        let outcomes = tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| {
            tracing::error!(%ended, "writing limits");
            Vec::new()
        });
        for Outcome { holder, pod, settled, .. } in &outcomes {
            if let (Some(holder), Some(pod), Ok(Settled::Decided)) = (holder, pod, settled) {
                self.tell(pod, holder, containers);
            }
        }
        outcomes
    }

    /// Does the file work of [`Self::settle`] for one allocation; blocks.
    fn settle_one(
        &self,
        waiting: &Waiting,
        containers: &Containers,
        owner: &Owner,
        asked: Instant,
    ) -> Result<Settled, Undecided> {
        let Owner { holder, listed, pod } = owner;
        if let (Some(pod), Some(listed)) = (pod, listed)
            && !self.is_whole(pod, listed)
        {
            return Ok(Settled::Unlisted);
        }
        let wish = self.wish(owner)?;
        Self::check_place(holder, &wish, &waiting.gpus)?;
        let parts = self.parts(holder, &wish, &waiting.gpus)?;
        let promised = self.promised(owner, (&parts, waiting), containers);
        let (holder, daemon) = (holder.clone(), self.daemon.to_path_buf());
        let (uid, is_init) =
            (pod.as_ref().and_then(|pod| pod.metadata.uid.clone()), listed.is_none());
        let decision = Decision { holder, pod: uid, parts, promised, is_init, claim: None, daemon };
        match self.allocations.decide(&waiting.key, &decision, containers, asked)? {
            true => {
                if let (Some(pod), true) = (pod, waiting.starts) {
                    self.starts(waiting, pod, &decision.holder)?;
                }
                let (holder, key) = (decision.holder.to_string(), waiting.key.as_str());
                tracing::info!(holder, key, "its limits are written");
                Ok(Settled::Decided)
            }
            false => Ok(Settled::Unlisted),
        }
    }

    /// Whether the kubelet has allocated all counted resources of a container; it allocates one resource after the
    /// other. An earlier promise would be subtracted twice and hide ids that the kubelet still needs.
    fn is_whole(&self, pod: &Pod, listed: &Listed) -> bool {
        let mut containers = pods::containers(pod);
        let container = containers.find(|one| one.name == listed.holder.container);
        let Some(resources) = container.and_then(|one| one.resources.as_ref()) else { return true };
        let asks = |name: &str| {
            let asked = [&resources.limits, &resources.requests].into_iter().flatten();
            asked.filter_map(|all| all.get(name)).any(|quantity| quantity.0 != "0")
        };
        let has = |counts| match counts {
            Counts::Cores => listed.asked.cores > 0,
            Counts::Memory => listed.asked.memory > 0,
            Counts::Places | Counts::Index | Counts::IndexPart(_) => true,
        };
        self.resources.iter().all(|row| has(row.counts) || !asks(row.name))
    }

    /// Records that a container starts with an allocation: the init containers before it have ended.
    pub(crate) fn starts(
        &self,
        waiting: &Waiting,
        pod: &Pod,
        holder: &Holder,
    ) -> Result<(), WriteError> {
        if starting::is_init(pod, &holder.container) {
            self.inits().begin(pod, &holder.container, &waiting.key);
        }
        Ok(self.allocations.release(&Self::ended_before(pod, holder), &waiting.key)?)
    }

    /// Checks that a container got the GPUs that its scheduler claimed, for dialects in which a claim cannot be
    /// corrected afterwards.
    fn check_place(holder: &Holder, wish: &Wish, gpus: &[GpuId]) -> Result<(), Undecided> {
        let Wish::Said { need, claims, .. } = wish else { return Ok(()) };
        if need.dialect.annotations().real.is_some() || is_where_claimed(wish, gpus) {
            return Ok(());
        }
        let names = |all: &mut dyn Iterator<Item = GpuId>| {
            all.map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(" and ")
        };
        let claimed = names(&mut claims.iter().map(|claim| claim.gpu));
        let got = names(&mut gpus.iter().copied());
        Err(Undecided::Elsewhere { holder: holder.to_string(), claimed, got })
    }

    /// The shares that a pod's container will have of these GPUs, by default of the claimed ones. Empty if that is
    /// unknown.
    fn planned(&self, pod: &Pod, holder: &Holder, gpus: Option<&[GpuId]>) -> Shares {
        let planned = || {
            let wish = self.said(pod, &holder.container, self.cluster.as_ref()?).ok()?;
            let Wish::Said { claims, .. } = &wish else { return None };
            let claimed: Vec<GpuId> = claims.iter().map(|claim| claim.gpu).collect();
            self.parts(holder, &wish, gpus.unwrap_or(&claimed)).ok()
        };
        let parts = planned().into_iter().flatten();
        parts.map(|part| (part.gpu, part.share)).collect()
    }

    pub(crate) fn parts(
        &self,
        holder: &Holder,
        wish: &Wish,
        gpus: &[GpuId],
    ) -> Result<Vec<Part>, Undecided> {
        let pool = self.pool.borrow();
        let one = |id: &GpuId| {
            let gpu = pool.gpus().iter().find(|gpu| gpu.id == *id).ok_or(Undecided::NoGpu(*id))?;
            let holder = holder.to_string();
            amounts::part(wish, gpu, &pool).map_err(|source| Undecided::Amount { holder, source })
        };
        gpus.iter().map(one).collect()
    }

    pub(crate) fn said(
        &self,
        pod: &Pod,
        container: &str,
        cluster: &Cluster,
    ) -> Result<Wish, WordsError> {
        let factor = self.pool.borrow().memory_factor();
        wish(pod, container, &self.dialects, cluster.policy(), factor)
    }

    /// The source of a container's amounts: its pod, or else the kubelet's counts.
    fn wish(&self, owner: &Owner) -> Result<Wish, Undecided> {
        let Owner { holder, listed, pod } = owner;
        let said = |source| Undecided::Words { holder: holder.to_string(), source };
        match (&self.cluster, pod) {
            (Some(cluster), Some(pod)) => self.said(pod, &holder.container, cluster).map_err(said),
            (Some(_), None) => Err(Undecided::Cluster(format!("there is no pod of {holder}"))),
            (None, _) => {
                Ok(Wish::Counted(listed.as_ref().map(|listed| listed.asked).unwrap_or_default()))
            }
        }
    }

    /// The GPUs that the kubelet should give to the container that is next to get this number of them. Empty if
    /// unknown.
    pub(crate) async fn recipient(&self, request: Request<'_>) -> Result<Recipient, PodRefusal> {
        let unknown = || Ok(Recipient::default());
        let Some(cluster) = &self.cluster else { return unknown() };
        // The kubelet waits for this answer.
        let listed = tokio::time::timeout(LISTS_WITHIN, self.ask()).await;
        let listed = listed.ok().and_then(Result::ok).map(|(listed, _)| listed);
        let listed = listed.unwrap_or_default();
        let is_given = |pod: &Pod, container: &str| self.inits().has_gpus(pod, container);
        let next = |pods: &[Arc<Pod>]| {
            let (pod, container) = placing::next(pods, &listed, request, is_given)?;
            Some((Arc::clone(pod), container.name.clone()))
        };
        let is_heard_of = |pods: &[Arc<Pod>]| {
            listed.bare().iter().all(|holder| pods.iter().any(|pod| is_of(pod, holder)))
        };
        let (mut news, mut pods) = (cluster.news(), cluster.pods());
        let late = tokio::time::sleep(HEARD_WITHIN);
        tokio::pin!(late);
        let found = loop {
            let found = if is_heard_of(&pods) { next(&pods) } else { None };
            if found.is_some() {
                break found;
            }
            tokio::select! {
                _ = news.changed() => pods = cluster.pods(),
                () = &mut late => {
                    pods = cluster.list().await.unwrap_or(pods);
                    break next(&pods);
                }
            }
        };
        let Some((pod, container)) = found else { return unknown() };
        let Ok(wish) = self.said(&pod, &container, cluster) else { return unknown() };
        let pool = Arc::clone(&self.pool.borrow());
        if starting::is_init(&pod, &container) {
            self.inits().ask_for(&pod, &container);
        }
        let shares = self.shares(&pods, &listed, &placing::holder(&pod, &container));
        placing::recipient(&pod, &wish, &pool, shares)
    }

    /// The shares that containers have, and those that schedulers have claimed for containers without GPUs, except
    /// `but`.
    fn shares(&self, pods: &[Arc<Pod>], listed: &Containers, but: &Holder) -> (Shares, Shares) {
        let (mut promised, waiting) = self.allocations.promised(listed);
        let mut claimed = Shares::new();
        for waiting in waiting {
            let Ok(Some(one)) = listed.whose(&waiting.ids) else { continue };
            if let Some(pod) = pods.iter().find(|pod| is_of(pod, &one.holder)) {
                promised.extend(self.planned(pod, &one.holder, Some(&waiting.gpus)));
            }
        }
        for pod in pods.iter().filter(|pod| !pods::has_ended(pod)) {
            for container in pods::containers(pod) {
                let holder = placing::holder(pod, &container.name);
                if holder != *but && !listed.have(&holder) {
                    claimed.extend(self.planned(pod, &holder, None));
                }
            }
        }
        (promised, claimed)
    }

    /// Tells a pod's scheduler the shares of all of its containers, after `holder` got its own.
    fn tell(&self, pod: &Arc<Pod>, holder: &Holder, containers: &Containers) {
        let Some(cluster) = &self.cluster else { return };
        let (mut dialect, mut all) = (None, Vec::new());
        let held = self.allocations.held();
        for listed in containers.of_pod(holder) {
            let name = &listed.holder.container;
            let Ok(wish) = self.said(pod, name, cluster) else { continue };
            let Wish::Said { need, .. } = &wish else { continue };
            let shares = self.shares_of(listed, &wish, &held);
            if shares.is_empty() {
                continue;
            }
            dialect = Some(need.dialect);
            all.push(self.claims(name, &shares));
        }
        // For a pod whose only containers with GPUs are init containers.
        let own = held.iter().find(|one| all.is_empty() && one.holder == *holder);
        if let (Some(own), Ok(Wish::Said { need, .. })) =
            (own, self.said(pod, &holder.container, cluster))
        {
            dialect = Some(need.dialect);
            all.push(self.claims(&holder.container, &own.shares));
        }
        let Some(dialect) = dialect else { return };
        let real = PodClaims(all);
        let own = pod.spec.iter().flat_map(|spec| &spec.containers);
        // The kubelet does not list init containers, so they are not waited for.
        let is_all = own
            .into_iter()
            .all(|one| real.of(&one.name).is_some() || self.said(pod, &one.name, cluster).is_err());
        cluster.allocated(pod, &holder.container, (dialect, real), is_all);
    }

    fn claims(&self, container: &str, shares: &[(GpuId, Share)]) -> ContainerClaims {
        let pool = self.pool.borrow();
        let claims = shares.iter().map(|(gpu, share)| pool.claim(*gpu, *share)).collect();
        ContainerClaims { container: container.to_owned(), claims }
    }

    /// Repeats outcomes that an earlier run may not have written. Returns the containers whose pods could not be read.
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

    /// Works periodically, and soon after each `Allocate`. Never returns.
    pub(crate) async fn keep(self) -> Infallible {
        let mut told = None;
        let mut undecided = BTreeMap::new();
        let mut allocatable = Allocatable::default();
        let mut untold: Vec<Holder> =
            self.allocations.held().into_iter().map(|held| held.holder).collect();
        let mut looked = Instant::now();
        loop {
            let is_new = tokio::select! {
                () = tokio::time::sleep(self.pause()) => false,
                () = self.allocations.given() => {
                    tokio::time::sleep(LISTED_AFTER).await;
                    true
                }
            };
            allocatable.look(&self).await;
            // If the image was present, the container has already started and requested its limits itself.
            let is_settled = is_new && looked.elapsed() < ASK && !self.is_urgent();
            if !self.allocations.any() || is_settled {
                continue;
            }
            looked = Instant::now();
            match self.ask().await {
                Ok((containers, asked)) => {
                    told = None;
                    let containers = Arc::new(containers);
                    let waiting = self.allocations.waiting(asked, self.cluster.is_none());
                    let outcomes = self.settle(waiting, &containers, asked).await;
                    let is_decided = |holder: &Holder| {
                        outcomes.iter().any(|one| {
                            one.holder.as_ref() == Some(holder)
                                && matches!(one.settled, Ok(Settled::Decided))
                        })
                    };
                    untold.retain(|holder| !is_decided(holder));
                    untold = self.tell_again(untold, &containers).await;
                    undecided = self.tell_late(&undecided, outcomes);
                    self.remove_ended(containers, asked).await;
                    if let Some(cluster) = &self.cluster {
                        self.inits().keep(&cluster.pods());
                    }
                }
                Err(reason) => {
                    // Logs each reason once: this may last.
                    if told.as_ref() != Some(&reason) {
                        tracing::warn!(%reason, "new containers wait for their limits, and none is removed");
                    }
                    told = Some(reason);
                }
            }
        }
    }

    /// Reports containers without limits, each reason once. Returns them with their reasons.
    fn tell_late(
        &self,
        before: &BTreeMap<String, String>,
        outcomes: Vec<Outcome>,
    ) -> BTreeMap<String, String> {
        let mut now = BTreeMap::new();
        for Outcome { key, holder, pod, settled } in outcomes {
            let Err(why) = settled else { continue };
            let (key, reason) = (key.as_str().to_owned(), why.to_string());
            if before.get(&key) != Some(&reason) {
                tracing::warn!(key, reason, "a container has no limits");
                if let (Some(cluster), Some(pod), Some(holder)) = (&self.cluster, pod, holder) {
                    cluster.refused_late(&pod, &holder.container, &reason);
                }
            }
            now.insert(key, reason);
        }
        now
    }

    fn is_urgent(&self) -> bool {
        self.allocations.is_urgent(self.cluster.is_none())
    }

    fn pause(&self) -> Duration {
        if self.is_urgent() { ASK_AT_ONCE } else { ASK }
    }

    async fn remove_ended(&self, containers: Arc<Containers>, asked: Instant) {
        let allocations = Arc::clone(&self.allocations);
        let work = move || {
            let mounted = |keys: &[_]| mounted::among(Path::new("/proc"), keys);
            allocations.remove_ended(&containers, asked, mounted)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(removed)) => {
                for key in removed {
                    tracing::info!(key = key.as_str(), "its container has ended: removed");
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "an allocation cannot be removed"),
            Err(ended) => tracing::error!(%ended, "looking after allocations"),
        }
    }
}

/// Compares what the kubelet may allocate with what it was offered.
#[derive(Debug, Default)]
struct Allocatable {
    asked: Option<Instant>,
    /// Whether this kubelet has no such call.
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
            // Other calls report this error.
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

/// The number of ids of a resource that the kubelet has. It may report a resource in several parts.
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
