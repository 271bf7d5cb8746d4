//! Predicts which container the kubelet is about to give GPUs, and which GPUs are best for it. Pure.
//!
//! `GetPreferredAllocation` names no pod. But the kubelet admits one pod after the other, and lists each before it
//! allocates devices to its containers. If the guess is wrong, the container keeps the GPU that it got, and its claim
//! is corrected.

use core::num::NonZeroU32;
use std::sync::Arc;

use dialects::pods::{claims, containers, has_ended, is_allocating};
use dialects::{Choice, Resource};
use k8s_openapi::api::core::v1::{Container, Pod};
use limits::GpuId;
use placement::{PodRefusal, Recipient};

use crate::amounts::{Wish, part};
use crate::identity::{Containers, Holder};
use crate::pool::{Gpu, Pool};
use crate::resolver::Shares;
use crate::starting::{self, Places};

/// The kubelet's request.
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

/// The name of a pod's container.
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

/// The container for which the kubelet asks: among those that request this number of places and have none, preferably
/// one that the kubelet lists, else one whose scheduler has claimed GPUs. `is_given`: whether an init container has
/// GPUs; the kubelet lists the pods of init containers, but not the init containers.
pub(crate) fn next<'a>(
    pods: &'a [Arc<Pod>],
    listed: &Containers,
    request: Request<'_>,
    is_given: impl Fn(&Pod, &str) -> bool,
) -> Option<(&'a Arc<Pod>, &'a Container)> {
    let mut pods: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !has_ended(pod)).collect();
    // The kubelet's order, to the second.
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let all = pods.into_iter().flat_map(|pod| containers(pod).map(move |one| (pod, one)));
    let asking = all.filter(|(pod, container)| starting::asks(pod, container, request.places()));
    let ranked = asking.filter_map(|(pod, container)| {
        let holder = holder(pod, &container.name);
        let is_init = starting::is_init(pod, &container.name);
        if listed.have(&holder) || is_init && is_given(pod, &container.name) {
            return None;
        }
        let is_listed = match is_init {
            true => listed.bare().iter().any(|bare| is_of(pod, bare)),
            false => listed.bare().contains(&holder),
        };
        let is_claimed = is_claimed(pod, container, request);
        (is_listed || is_claimed).then_some(((!is_listed, !is_claimed), (pod, container)))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, next)| next)
}

fn is_claimed(pod: &Pod, container: &Container, request: Request<'_>) -> bool {
    let dialect = request.resource.dialect;
    let claims = claims(pod, dialect, NonZeroU32::MIN).unwrap_or_default();
    let is_its = claims.of(&container.name).is_some_and(|own| !own.is_empty());
    is_its && is_allocating(pod, dialect)
}

/// The container, as `placement` is told of it. `promised`: what containers have. `awaited`: what schedulers have claimed
/// for others that have no GPU yet.
///
/// # Errors
/// [`PodRefusal`]: no scheduler has chosen its GPUs, and its pod wants what does not exist.
pub(crate) fn recipient(
    pod: &Pod,
    wish: &Wish,
    pool: &Pool,
    (promised, awaited): (Shares, Shares),
) -> Result<Recipient, PodRefusal> {
    let Wish::Said { need, claims, .. } = wish else { return Ok(Recipient::default()) };
    let claimed: Vec<GpuId> = claims.iter().map(|claim| claim.gpu).collect();
    // Claims of the others cannot follow.
    if need.dialect.annotations().real.is_none() {
        return Ok(Recipient { claimed, ..Recipient::default() });
    }
    let share = |gpu: &Gpu| Some((gpu.id, part(wish, gpu, pool).ok()?.share));
    let policy = match placement::policy(pod, need.dialect, pool.links().is_some()) {
        Err(why) if claimed.is_empty() => return Err(why),
        policy => policy.unwrap_or_default(),
    };
    let shares = Some(pool.gpus().iter().filter_map(share).collect());
    let choice = Choice::of(pod, need.dialect);
    Ok(Recipient { shares, claimed, promised, awaited, choice, policy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pod_resources::{ContainerDevices, ContainerResources, PodResources};
    use dialects::table::RESOURCES;
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
        // The kubelet lists none: takes one with a claim and without a GPU.
        assert_eq!(found(&[]).as_deref(), Some("a"));
        assert_eq!(found(&[("a", &["x"])]).as_deref(), Some("b"));
        assert_eq!(found(&[("a", &["x"]), ("b", &["y"]), ("c", &[])]), None);
        assert_eq!(next_of(&pods, &[("b", &[])], 2), None);
    }
}
