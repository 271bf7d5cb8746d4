//! Asks the API server which claims of NVIDIA's DRA driver a container has. The runtime waits meanwhile, but goes on
//! without a plugin that takes longer than 2 s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_server::{CallError, answered, segment};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams};
use limits::GpuId;

use super::Plugin;
use super::nvidia::{self, DRIVER, Has, NvidiaError};
use crate::chain::chain;
use crate::cluster::Cluster;
use crate::dra::kind;
use crate::identity::Holder;
use crate::proto::nri::{Container, PodSandbox};

/// Timeout of each of the three calls to the API server.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// Timeout of all of them: the runtime ignores a plugin that has not answered within 2 s.
const IN_ALL: Duration = Duration::from_millis(1_500);

/// HTTP status of a missing object.
const NOT_FOUND: u16 = 404;

/// Why a container's claims are unknown. The container does not start, and the kubelet retries.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimedError {
    #[error("its claims: {0}; expected the API server to say what they have")]
    ApiServer(String),
    #[error("it uses the claims {0} and {1} of {DRIVER}, both with limits; expected one")]
    Two(String, String),
    #[error("claim {0}: {1}")]
    Claim(String, NvidiaError),
}

impl From<CallError> for ClaimedError {
    fn from(error: CallError) -> Self {
        Self::ApiServer(match error {
            CallError::Silent(time) => {
                format!("the API server: no answer within {} ms", time.as_millis())
            }
            error @ CallError::Failed(_) => chain(error),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) has: Has,
}

fn names(pod: &Pod, container: &str) -> Vec<String> {
    let (Some(spec), statuses) =
        (&pod.spec, pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref()))
    else {
        return Vec::new();
    };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let own = all.filter(|one| one.name == container).filter_map(|one| one.resources.as_ref());
    let used: Vec<&str> =
        own.flat_map(|one| one.claims.iter().flatten()).map(|claim| &*claim.name).collect();
    let claims = spec.resource_claims.iter().flatten().filter(|one| used.contains(&&*one.name));
    let generated = |name: &str| {
        let found = statuses.into_iter().flatten().find(|status| status.name == name);
        found.and_then(|status| status.resource_claim_name.clone())
    };
    claims
        .filter_map(|one| one.resource_claim_name.clone().or_else(|| generated(&one.name)))
        .collect()
}

impl Plugin {
    /// The claim that limits a container, if any.
    pub(super) async fn claimed(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Option<Claimed>, ClaimedError> {
        // NVIDIA's driver sets this variable by CDI in each container with a claim. A pod can change but not remove it.
        if super::visible(&container.env).is_none() {
            return Ok(None);
        }
        let source = pod.annotations.get("kubernetes.io/config.source");
        if source.is_some_and(|source| source != "api") {
            return Ok(None);
        }
        let found = tokio::time::timeout(IN_ALL, self.find_claimed(pod, &container.name)).await;
        found.unwrap_or(Err(CallError::Silent(IN_ALL).into()))
    }

    async fn find_claimed(
        &self,
        pod: &PodSandbox,
        container: &str,
    ) -> Result<Option<Claimed>, ClaimedError> {
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let known = cluster.pods();
        let is_it = |one: &&Arc<Pod>| one.metadata.uid.as_deref() == Some(&*pod.uid);
        let names = match known.iter().find(is_it) {
            Some(pod) => names(pod, container),
            // The watch does not have the pod yet.
            None => {
                let holder = Holder {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.to_owned(),
                };
                let found = tokio::time::timeout(ANSWERS_WITHIN, cluster.pod(&holder)).await;
                let found = found.unwrap_or(Err(CallError::Silent(ANSWERS_WITHIN)))?;
                found.map(|pod| names(&pod, container)).unwrap_or_default()
            }
        };
        let claims: Api<DynamicObject> = Api::namespaced_with(
            cluster.client(),
            &segment(&pod.namespace),
            &kind("ResourceClaim", "resourceclaims"),
        );
        let mut limited: Option<Claimed> = None;
        for name in names {
            let found = answered(ANSWERS_WITHIN, claims.get(&segment(&name))).await;
            let claim = match found {
                Ok(claim) => claim,
                // The claim is gone, or the API server is too old for claims with amounts.
                Err(CallError::Failed(kube::Error::Api(said))) if said.code == NOT_FOUND => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            let results = claim.data["status"]["allocation"]["devices"]["results"].as_array();
            if !results.is_some_and(|all| all.iter().any(|one| one["driver"] == DRIVER)) {
                continue;
            }
            let (devices, pool) = (devices(cluster).await?, Arc::clone(&self.pool.borrow()));
            let has = nvidia::of(&claim.data, &devices, &pool);
            let has = has.map_err(|error| ClaimedError::Claim(name.clone(), error))?;
            if has == Has::NoLimits {
                continue;
            }
            if let Some(before) = limited.replace(Claimed { uid, name: name.clone(), has }) {
                return Err(ClaimedError::Two(before.name, name));
            }
        }
        Ok(limited)
    }
}

/// The UUIDs of NVIDIA's devices on this node, by device name.
async fn devices(cluster: &Cluster) -> Result<BTreeMap<String, GpuId>, CallError> {
    let slices: Api<DynamicObject> =
        Api::all_with(cluster.client(), &kind("ResourceSlice", "resourceslices"));
    let own = format!("spec.nodeName={},spec.driver={DRIVER}", cluster.name());
    let own = ListParams::default().fields(&own);
    let listed = answered(ANSWERS_WITHIN, slices.list(&own)).await?;
    let devices = listed.items.iter().filter_map(|slice| slice.data["spec"]["devices"].as_array());
    let one = |device: &serde_json::Value| {
        let uuid = device["attributes"]["uuid"]["string"].as_str()?.parse().ok()?;
        Some((device["name"].as_str()?.to_owned(), uuid))
    };
    Ok(devices.flatten().filter_map(one).collect())
}
