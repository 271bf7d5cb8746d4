//! Which container the kubelet is about to give GPUs, and which GPUs it had better get. Pure.
//!
//! `GetPreferredAllocation` names no pod. But kubelets admit one pod after the other and list each before they give its
//! containers anything. A container that is taken for another one keeps the GPU that it got, and its claim follows.

use core::num::NonZeroU32;
use std::sync::Arc;

use dialects::pods::{claims, containers, has_ended, is_allocating};
use dialects::{Resource, Share};
use k8s_openapi::api::core::v1::{Container, Pod};
use limits::GpuId;

use crate::allocations::has_room;
use crate::amounts::{Wish, part};
use crate::identity::{Containers, Holder};
use crate::pool::Pool;
use crate::starting::{self, Places};

/// What the kubelet is about to give out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) count: usize,
}

impl<'a> Request<'a> {
    fn places(&self) -> Places<'a> {
        let Resource { name, dialect, .. } = *self.resource;
        Places { resource: name, dialect, count: self.count }
    }
}

/// A container, as the kubelet names it.
pub(crate) fn holder(pod: &Pod, container: &str) -> Holder {
    Holder {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone().unwrap_or_default(),
        container: container.to_owned(),
    }
}

pub(crate) fn is_of(pod: &Pod, other: &Holder) -> bool {
    let part = |part: &Option<String>, of: &str| part.as_deref().unwrap_or_default() == of;
    part(&pod.metadata.name, &other.pod) && part(&pod.metadata.namespace, &other.namespace)
}

/// The container that gets them: of those that ask for so many and have none, one that the kubelet lists. Where it lists
/// none, one of a pod whose scheduler has claimed GPUs for it. `is_given`: whether an init container has some. Kubelets list
/// the pods of init containers, and not these.
pub(crate) fn next<'a>(
    pods: &'a [Arc<Pod>],
    listed: &Containers,
    request: Request<'_>,
    is_given: impl Fn(&Pod, &str) -> bool,
) -> Option<(&'a Arc<Pod>, &'a Container)> {
    let mut pods: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !has_ended(pod)).collect();
    // A kubelet's own order, to the second.
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let all = pods.into_iter().flat_map(|pod| containers(pod).map(move |one| (pod, one)));
    let asking = all.filter(|(pod, container)| starting::asks(pod, container, request.places()));
    let ranked = asking.filter_map(|(pod, container)| {
        let holder = holder(pod, &container.name);
        let is_init = starting::is_init(pod, &container.name);
        let is_listed = match is_init {
            true => listed.bare().iter().any(|bare| is_of(pod, bare)),
            false => listed.bare().contains(&holder),
        };
        let is_claimed = is_claimed(pod, container, request);
        let has_some = listed.have(&holder) || is_init && is_given(pod, &container.name);
        let is_next = (is_listed || is_claimed) && !has_some;
        is_next.then_some(((!is_listed, !is_claimed), (pod, container)))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, next)| next)
}

fn is_claimed(pod: &Pod, container: &Container, request: Request<'_>) -> bool {
    let dialect = request.resource.dialect;
    let claims = claims(pod, dialect, NonZeroU32::MIN).unwrap_or_default();
    let is_its = claims.of(&container.name).is_some_and(|own| !own.is_empty());
    is_its && is_allocating(pod, dialect)
}

/// What is known of a node's GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub(crate) pool: &'a Pool,
    /// What containers have.
    pub(crate) promised: &'a [(GpuId, Share)],
    /// What schedulers have claimed for others that have no GPU yet.
    pub(crate) claimed: &'a [(GpuId, Share)],
}

/// The GPUs for a container: those that its scheduler has claimed, and in the place of one without room another one, best
/// one that nobody else has claimed. Those that were claimed, where too few have room. Without a claim all that have room.
pub(crate) fn gpus(wish: &Wish, count: usize, known: Known<'_>) -> Vec<GpuId> {
    let Wish::Said { need, claims, .. } = wish else { return Vec::new() };
    let own: Vec<GpuId> = claims.iter().map(|claim| claim.gpu).collect();
    // Claims of the others cannot follow.
    if need.dialect.annotations().real.is_none() {
        return own;
    }
    let all: Vec<(GpuId, Share)> = known.promised.iter().chain(known.claimed).copied().collect();
    let mut fitting = Vec::new();
    for gpu in known.pool.gpus().iter().filter(|gpu| known.pool.is_offered(gpu)) {
        let Ok(part) = part(wish, gpu, known.pool) else { continue };
        if has_room(&part, known.promised).is_err() {
            continue;
        }
        let on_it = all.iter().filter(|(id, _)| *id == gpu.id);
        let taken: u64 = on_it.map(|(_, share)| share.cores).sum();
        fitting.push((!own.contains(&gpu.id), has_room(&part, &all).is_err(), taken, gpu.id));
    }
    if fitting.len() < count {
        return own;
    }
    fitting.sort_by_key(|(elsewhere, crowded, taken, _)| (*elsewhere, *crowded, *taken));
    let most = if own.is_empty() { fitting.len() } else { count };
    fitting.into_iter().take(most).map(|(.., gpu)| gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Gpu;
    use crate::proto::pod_resources::{ContainerDevices, ContainerResources, PodResources};
    use dialects::registers::Hardware;
    use dialects::table::RESOURCES;
    use dialects::{Claim, Dialect, MemoryNeed, Need};
    use limits::{Policy, Priority};
    use serde_json::json;

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    fn pod(name: &str, claimed: Option<u8>) -> Arc<Pod> {
        let claim = claimed.map(|on| format!("main[0_{}_10_100]", gpu(on)));
        let phase = if claimed.is_some() { "allocating" } else { "none" };
        let container =
            |name| json!({"name": name, "resources": {"limits": {"nvidia.com/vgpu-number": "1"}}});
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"nvidia.com/assigned-phase": phase},
                "annotations": {"nvidia.com/pre-allocated": claim.unwrap_or_default()}},
            "spec": {"containers": [container("main")]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn listed(pods: &[(&str, &[&str])]) -> Containers {
        let one = |(name, ids): &(&str, &[&str])| {
            let device_ids = ids.iter().map(|&id| id.to_owned()).collect();
            let devices =
                vec![ContainerDevices { resource_name: RESOURCES[0].name.to_owned(), device_ids }];
            let containers = vec![ContainerResources { name: "main".to_owned(), devices }];
            PodResources { name: (*name).to_owned(), namespace: "default".to_owned(), containers }
        };
        Containers::of(&pods.iter().map(one).collect::<Vec<_>>(), &RESOURCES)
    }

    fn next_of(pods: &[Arc<Pod>], kubelets: &[(&str, &[&str])], count: usize) -> Option<String> {
        let request = Request { resource: &RESOURCES[0], count };
        let (pod, _) = next(pods, &listed(kubelets), request, |_, _| false)?;
        pod.metadata.name.clone()
    }

    #[test]
    fn the_pod_that_a_kubelet_lists_without_a_gpu_is_next() {
        let pods = [pod("a", Some(1)), pod("b", Some(2)), pod("free", None)];
        let found = |kubelets: &[_]| next_of(&pods, kubelets, 1);
        assert_eq!(found(&[("b", &[])]).as_deref(), Some("b"));
        assert_eq!(found(&[("a", &["x"]), ("free", &[])]).as_deref(), Some("free"));
        assert_eq!(found(&[("free", &[]), ("b", &[])]).as_deref(), Some("b"));
        // It tells of none: one that has a claim, and no GPU.
        assert_eq!(found(&[]).as_deref(), Some("a"));
        assert_eq!(found(&[("a", &["x"])]).as_deref(), Some("b"));
        assert_eq!(found(&[("a", &["x"]), ("b", &["y"]), ("c", &[])]), None);
        assert_eq!(next_of(&pods, &[("b", &[])], 2), None);
    }

    #[test]
    fn a_claim_is_followed_where_there_is_room_and_else_one_that_nobody_has_claimed() {
        let one = |number| Gpu {
            id: gpu(number),
            memory_mib: Some(1000),
            healthy: number != 4,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let number = |number: u32| number.try_into().unwrap();
        let pool = Pool::new((0..5).map(one).collect(), number(4), number(1));
        let wish = |dialect, claimed: &[u8]| {
            let claim = |&on: &u8| Claim { index: 0, gpu: gpu(on), cores: 40, memory_mib: 100 };
            let need = Need {
                dialect,
                resource: RESOURCES[0].name,
                places: 1,
                cores: 40,
                memory: MemoryNeed::Units(100),
                priority: Priority::High,
                milli_tflops: 0,
            };
            Wish::Said { need, claims: claimed.iter().map(claim).collect(), policy: Policy::Fixed }
        };
        let share = |on, cores| (gpu(on), Share { cores, memory_mib: 10 });
        let of = |wish: &Wish, count, promised: &[_], claimed: &[_]| {
            gpus(wish, count, Known { pool: &pool, promised, claimed })
        };
        let ours = |claimed: &[u8]| wish(Dialect::VgpuManager, claimed);
        // Claims of others do not count on a GPU that was claimed for it.
        assert_eq!(of(&ours(&[1]), 1, &[share(1, 60)], &[share(1, 40)]), [gpu(1)]);
        let full = [share(1, 61), share(0, 20)];
        assert_eq!(of(&ours(&[1]), 1, &full, &[share(2, 70)]), [gpu(3)]);
        assert_eq!(of(&ours(&[1, 2]), 2, &full, &[]), [gpu(2), gpu(3)]);
        // Nothing has room, or its claim cannot follow.
        let all: Vec<_> = (0..4).map(|on| share(on, 70)).collect();
        assert_eq!(of(&ours(&[1]), 1, &all, &[]), [gpu(1)]);
        assert_eq!(of(&wish(Dialect::VgpuRs, &[1]), 1, &full, &[]), [gpu(1)]);
        // Without a claim the kubelet's ids decide between those that have room.
        assert_eq!(of(&ours(&[]), 1, &full, &[]), [gpu(2), gpu(3), gpu(0)]);
    }
}
