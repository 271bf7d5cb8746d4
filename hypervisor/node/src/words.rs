//! Reads a pod's request for a container: resources, policy, and the claims of its scheduler. Pure.

use core::num::NonZeroU32;
use std::collections::BTreeSet;

use dialects::pods::{AnnotationError, annotation, claims, containers, need};
use dialects::table::COMPUTE_POLICY;
use dialects::{Dialect, NeedError};
use k8s_openapi::api::core::v1::Pod;
use limits::{GpuId, Policy};

use crate::amounts::Wish;

/// Why a pod's request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WordsError {
    #[error(transparent)]
    Need(#[from] NeedError),
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    #[error("the annotation {COMPUTE_POLICY}: {0:?}; expected fixed, balance or none")]
    Policy(String),
    #[error("the pod asks for no GPU for the container {0}")]
    NoGpu(String),
}

/// Parses a policy as written in annotations.
pub(crate) fn policy(text: &str) -> Result<Policy, WordsError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "fixed" => Ok(Policy::Fixed),
        "balance" => Ok(Policy::Balance),
        "none" => Ok(Policy::None),
        _ => Err(WordsError::Policy(text.chars().take(40).collect())),
    }
}

/// A container's request. `node`: the policy if the pod names none. `factor`: the node's memory factor.
pub(crate) fn wish(
    pod: &Pod,
    name: &str,
    dialects: &[Dialect],
    node: Policy,
    factor: NonZeroU32,
) -> Result<Wish, WordsError> {
    let no_gpu = || WordsError::NoGpu(name.to_owned());
    let container = containers(pod).find(|container| container.name == name).ok_or_else(no_gpu)?;
    let need = need(pod, container, dialects)?.ok_or_else(no_gpu)?;
    let claims = claims(pod, need.dialect, factor)?.of(name).unwrap_or_default().to_vec();
    let policy = annotation(pod, COMPUTE_POLICY).map_or(Ok(node), policy)?;
    Ok(Wish::Said { need, claims, policy })
}

/// Whether a container is on exactly the GPUs that its scheduler has claimed, or has no claim.
pub(crate) fn is_where_claimed(wish: &Wish, gpus: &[GpuId]) -> bool {
    let Wish::Said { claims, .. } = wish else { return true };
    let claimed: BTreeSet<GpuId> = claims.iter().map(|claim| claim.gpu).collect();
    claimed.is_empty() || claimed == gpus.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GPU: &str = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec";

    fn pod(annotations: &serde_json::Value) -> Pod {
        let limits = json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "10", "nvidia.com/vgpu-memory": "1k"});
        serde_json::from_value(json!({
            "metadata": {"name": "pod", "annotations": annotations},
            "spec": {"containers": [{"name": "other"}, {"name": "main", "resources": {"limits": limits}}]},
        }))
        .unwrap()
    }

    fn said(annotations: &serde_json::Value, container: &str) -> Result<Wish, String> {
        wish(&pod(annotations), container, &Dialect::ALL, Policy::Balance, NonZeroU32::MIN)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pods_policy_comes_before_its_nodes() {
        let of = |annotations| match said(&annotations, "main").unwrap() {
            Wish::Said { need, policy, .. } => (need.cores, policy),
            _ => panic!("the pod says it"),
        };
        assert_eq!(of(json!({})), (10, Policy::Balance));
        assert_eq!(of(json!({"nvidia.com/vgpu-compute-policy": "Fixed"})), (10, Policy::Fixed));
        assert_eq!(of(json!({"nvidia.com/vgpu-compute-policy": "none"})), (10, Policy::None));
        let wrong = said(&json!({"nvidia.com/vgpu-compute-policy": "soft"}), "main").unwrap_err();
        assert!(wrong.ends_with("\"soft\"; expected fixed, balance or none"), "{wrong}");
        assert!(said(&json!({}), "other").unwrap_err().contains("no GPU for the container other"));
    }

    #[test]
    fn a_claim_is_followed_or_the_container_is_elsewhere() {
        let text = format!("main[0_{GPU}_20_512]");
        let wish = said(&json!({"nvidia.com/pre-allocated": text}), "main").unwrap();
        let gpu: GpuId = GPU.parse().unwrap();
        assert!(is_where_claimed(&wish, &[gpu]));
        let other = GpuId::from_bytes([1; 16]);
        assert!(!is_where_claimed(&wish, &[other]) && !is_where_claimed(&wish, &[gpu, other]));
        assert!(is_where_claimed(&said(&json!({}), "main").unwrap(), &[other]));
        let wrong = said(&json!({"nvidia.com/pre-allocated": "x"}), "main").unwrap_err();
        assert!(wrong.starts_with("the annotation nvidia.com/pre-allocated: "), "{wrong}");
    }
}
