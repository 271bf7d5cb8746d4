//! Reads a claim's share of each of the node's GPUs from its allocation. Pure.

use std::collections::BTreeMap;

use dialects::quantity::{QuantityError, whole};
use dialects::{CORES, Share};
use limits::{GpuId, Limits, Policy, Priority};
use serde::Deserialize;
use serde_json::Value;

use super::allocated::{Allocated, Devices};
use super::slice::{CORES_NAME, MEMORY_NAME, UNHEALTHY, device_name};
use super::{API_VERSION, DRIVER};
use crate::amounts::{AmountError, Part, Wish, part};
use crate::identity::Holder;
use crate::pool::{Gpu, Pool};

const MIB: u64 = 1 << 20;
/// The kind of the parameters in a claim's configuration.
const KIND: &str = "GpuConfig";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the claim cannot be read: {0}; expected resource.k8s.io/v1")]
    Form(serde_json::Error),
    #[error("the claim's UID is {found}; expected {wanted}")]
    OtherClaim { found: String, wanted: String },
    #[error("the claim is not allocated; expected devices of {DRIVER} in status.allocation")]
    NotAllocated,
    #[error(
        "device {device:?} of pool {pool:?} is not on this node; expected one of pool {node:?}"
    )]
    NoDevice { pool: String, device: String, node: String },
    #[error("{0} is not offered; expected a toleration of the taint {UNHEALTHY}")]
    Unhealthy(GpuId),
    #[error("consumedCapacity {name}: {source}")]
    Quantity { name: &'static str, source: QuantityError },
    #[error("consumedCapacity {MEMORY_NAME} of {gpu}: {bytes} bytes; expected at least 1 MiB")]
    TooLittle { gpu: GpuId, bytes: u64 },
    #[error(
        "the parameters of the claim's configuration: {0}; expected apiVersion {API_VERSION}, kind {KIND}, \
         policy fixed or balance, priority high or low"
    )]
    Config(String),
    #[error("the claim's devices differ in policy or priority; expected one of each for a claim")]
    Differ,
    #[error(transparent)]
    Amount(#[from] AmountError),
}

#[derive(Deserialize)]
struct Claim {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    allocation: Option<Allocation>,
    #[serde(default)]
    reserved_for: Vec<Consumer>,
}

#[derive(Deserialize)]
struct Consumer {
    resource: String,
    name: String,
    uid: String,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Devices,
}

/// The parameters of a claim's configuration: all that is not an amount.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GpuConfig {
    policy: Option<PolicyName>,
    priority: Option<PriorityName>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum PolicyName {
    Fixed,
    Balance,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum PriorityName {
    High,
    Low,
}

/// A claim's share of this node's GPUs.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) holder: Holder,
    /// The UID of the first pod that uses the claim.
    pub(crate) pod: Option<String>,
    /// One part per GPU.
    pub(crate) parts: Vec<Part>,
    /// The claim's devices of this driver, each with its GPU.
    pub(crate) devices: Vec<(Allocated, GpuId)>,
}

fn quantity(device: &Allocated, name: &'static str) -> Result<Option<u64>, ClaimError> {
    let read = |text: &String| whole(text).map_err(|source| ClaimError::Quantity { name, source });
    device.consumed_capacity.get(name).map(read).transpose()
}

/// A device's share of its GPU. An amount that the API server omits is all of it, as without consumable capacity.
fn share(device: &Allocated, gpu: &Gpu, total: Share) -> Result<Share, ClaimError> {
    let cores = quantity(device, CORES_NAME)?.unwrap_or(CORES);
    if cores == 0 || cores > CORES {
        return Err(AmountError::Cores { asked: cores }.into());
    }
    let memory_mib = match quantity(device, MEMORY_NAME)? {
        Some(bytes) if bytes < MIB => return Err(ClaimError::TooLittle { gpu: gpu.id, bytes }),
        Some(bytes) => bytes / MIB,
        None => total.memory_mib,
    };
    Ok(Share { cores, memory_mib })
}

/// Computes a claim's shares of a node's GPUs. `again`: the claim was prepared before, so its containers may run, and a
/// GPU's fault is ignored.
pub(crate) fn plan(
    claim: Value,
    uid: &str,
    (node, pool): (&str, &Pool),
    again: bool,
) -> Result<Planned, ClaimError> {
    let Claim { metadata, status } = serde_json::from_value(claim).map_err(ClaimError::Form)?;
    if metadata.uid != uid {
        return Err(ClaimError::OtherClaim { found: metadata.uid, wanted: uid.to_owned() });
    }
    let Status { allocation, reserved_for } = status.unwrap_or_default();
    let all = allocation.ok_or(ClaimError::NotAllocated)?.devices;
    let mut shares: BTreeMap<GpuId, Option<Share>> = BTreeMap::new();
    let (mut devices, mut said) = (Vec::new(), None);
    for one in all.results.iter().filter(|one| one.driver == DRIVER) {
        let is_its = |gpu: &&Gpu| one.pool == node && device_name(gpu.id) == one.device;
        let no_device = || ClaimError::NoDevice {
            pool: one.pool.clone(),
            device: one.device.clone(),
            node: node.to_owned(),
        };
        let gpu = pool.gpus().iter().find(is_its).ok_or_else(no_device)?;
        if !pool.is_offered(gpu) && !again && !one.tolerates(UNHEALTHY) {
            return Err(ClaimError::Unhealthy(gpu.id));
        }
        let own = configured(&all, one)?;
        if said.replace(own).is_some_and(|other| other != own) {
            return Err(ClaimError::Differ);
        }
        // A claim with admin access takes no share, and is not limited.
        let share = if one.admin_access { None } else { Some(share(one, gpu, pool.total(gpu))?) };
        let sum = shares.entry(gpu.id).or_default();
        *sum = match (*sum, share) {
            (Some(sum), Some(share)) => Some(Share {
                cores: (sum.cores + share.cores).min(CORES),
                memory_mib: sum.memory_mib.saturating_add(share.memory_mib),
            }),
            (sum, share) => sum.or(share),
        };
        devices.push((one.clone(), gpu.id));
    }
    let GpuConfig { policy, priority } = said.ok_or(ClaimError::NotAllocated)?;
    let policy = match policy {
        Some(PolicyName::Balance) => Policy::Balance,
        Some(PolicyName::Fixed) | None => Policy::Fixed,
    };
    let priority = match priority {
        Some(PriorityName::Low) => Priority::Low,
        Some(PriorityName::High) | None => Priority::High,
    };
    let known = pool.gpus().iter().filter_map(|gpu| Some((gpu, *shares.get(&gpu.id)?)));
    let one = |(gpu, share): (&Gpu, Option<Share>)| match share {
        Some(share) => part(&Wish::Given { share, policy, priority }, gpu, pool),
        None => {
            let (share, total) = (Share::default(), pool.total(gpu));
            Ok(Part { gpu: gpu.id, limits: Limits::NONE, share, total })
        }
    };
    let parts = known.map(one).collect::<Result<_, _>>()?;
    let pod = reserved_for.into_iter().find(|consumer| consumer.resource == "pods");
    let (pod, pod_uid) = pod.map(|pod| (pod.name, pod.uid)).unzip();
    let Metadata { name, namespace, .. } = metadata;
    let holder =
        Holder { namespace, pod: pod.unwrap_or_else(|| "claim".to_owned()), container: name };
    Ok(Planned { holder, pod: pod_uid, parts, devices })
}

fn configured(all: &Devices, device: &Allocated) -> Result<GpuConfig, ClaimError> {
    let mut said = GpuConfig::default();
    for parameters in all.parameters(device) {
        let GpuConfig { policy, priority } = read(parameters.clone())?;
        said = GpuConfig { policy: policy.or(said.policy), priority: priority.or(said.priority) };
    }
    Ok(said)
}

fn read(mut parameters: Value) -> Result<GpuConfig, ClaimError> {
    let wrong = |why: &dyn std::fmt::Display| ClaimError::Config(why.to_string());
    let object = parameters.as_object_mut().ok_or_else(|| wrong(&"they are no object"))?;
    for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = object.remove(name).unwrap_or_default();
        if found != wanted {
            return Err(wrong(&format!("{name} is {found}")));
        }
    }
    serde_json::from_value(parameters).map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::slice::devices;
    use dialects::registers::Hardware;
    use limits::{ComputeLimit, MemoryLimit};
    use serde_json::json;

    const UID: &str = "1-2";

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    /// Two GPUs of 1000 MiB. The second one has a fault.
    fn pool() -> Pool {
        let one = |number| Gpu {
            id: gpu(number),
            memory_mib: Some(1000),
            healthy: number == 1,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let split = 4.try_into().unwrap();
        Pool::new(vec![one(1), one(2)], split, split)
    }

    fn result(number: u8, consumed: Value) -> Value {
        json!({"driver": DRIVER, "pool": "here", "device": device_name(gpu(number)), "request": "gpu/small",
            "consumedCapacity": consumed})
    }

    fn claim(results: Value, config: Value) -> Value {
        json!({"metadata": {"name": "claim", "namespace": "team", "uid": UID}, "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": config}},
                "reservedFor": [{"resource": "pods", "name": "pod", "uid": "3-4"}]}})
    }

    fn planned(results: Value, config: Value) -> Result<Planned, ClaimError> {
        plan(claim(results, config), UID, ("here", &pool()), false)
    }

    fn configured_by(source: &str, requests: Value, words: Value) -> Value {
        let mut parameters = json!({"apiVersion": "gpu.sluice.dev/v1", "kind": "GpuConfig"});
        parameters.as_object_mut().unwrap().extend(words.as_object().unwrap().clone());
        json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
    }

    fn parts(results: Value, config: Value) -> Vec<(Limits, Share)> {
        let planned = planned(results, config).unwrap();
        planned.parts.iter().map(|part| (part.limits, part.share)).collect()
    }

    #[test]
    fn a_claim_has_what_is_consumed_and_without_amounts_the_whole() {
        let consumed = json!({"memory": "1Gi", "cores": "40"});
        let others =
            json!({"driver": "gpu.nvidia.com", "pool": "here", "device": "gpu-0", "request": "x"});
        let mut own = result(1, json!({"memory": "100Mi", "cores": "40"}));
        let all = planned(json!([others, own]), json!([])).unwrap();
        assert_eq!(all.holder.to_string(), "team/pod/claim");
        assert_eq!((all.pod.as_deref(), all.devices.len()), (Some("3-4"), 1));
        assert_eq!(all.devices[0].0.main_request(), "gpu");
        let share = Share { cores: 40, memory_mib: 100 };
        let memory = Some(MemoryLimit::new(100 << 20));
        let limits = Limits { memory, compute: ComputeLimit::fixed(400_000) };
        assert_eq!(parts(json!([own]), json!([])), [(limits, share)]);
        // Two shares of one GPU in one claim.
        let both = parts(json!([own, own]), json!([]))[0];
        assert_eq!(both.1, Share { cores: 80, memory_mib: 200 });
        let whole = (Limits::NONE, Share { cores: 100, memory_mib: 1000 });
        own.as_object_mut().unwrap().remove("consumedCapacity");
        assert_eq!(parts(json!([own]), json!([])), [whole]);
        own["adminAccess"] = true.into();
        assert_eq!(parts(json!([own]), json!([])), [(Limits::NONE, Share::default())]);
        let error = planned(json!([result(1, consumed)]), json!([])).unwrap_err().to_string();
        assert!(error.contains("it has 1000"), "{error}");
    }

    #[test]
    fn a_claims_words_count_before_those_of_its_class_and_hold_for_their_requests() {
        let results = json!([result(1, json!({"memory": "100Mi", "cores": "40"}))]);
        let of = |config| parts(results.clone(), config)[0].0.compute;
        let class =
            configured_by("FromClass", json!([]), json!({"policy": "balance", "priority": "low"}));
        let low = |limit| ComputeLimit { priority: Priority::Low, ..limit };
        let balanced = ComputeLimit::balance(400_000, 40);
        assert_eq!(of(json!([class])), low(balanced));
        let own = configured_by("FromClaim", json!(["gpu"]), json!({"policy": "fixed"}));
        assert_eq!(of(json!([class, own])), low(ComputeLimit::fixed(400_000)));
        let high = configured_by("FromClaim", json!(["gpu/small"]), json!({"priority": "high"}));
        assert_eq!(of(json!([class, high])), balanced);
        let other = configured_by("FromClaim", json!(["other"]), json!({"policy": "fixed"}));
        assert_eq!(of(json!([class, other])), low(balanced));
    }

    #[test]
    fn what_cannot_be_prepared_says_why_and_what_is_expected() {
        let share = || json!({"memory": "100Mi", "cores": "40"});
        let said = |results, config| planned(results, config).unwrap_err().to_string();
        for (results, end) in [
            (json!([]), "expected devices of gpu.sluice.dev in status.allocation"),
            (json!([result(3, share())]), "expected one of pool \"here\""),
            (
                json!([result(2, share())]),
                "expected a toleration of the taint gpu.sluice.dev/unhealthy",
            ),
            (json!([result(1, json!({"cores": "400m"}))]), "such as 1024, 1k or 2Ki"),
            (json!([result(1, json!({"cores": "101"}))]), "expected 1 to 100"),
            (json!([result(1, json!({"memory": "1000"}))]), "1000 bytes; expected at least 1 MiB"),
        ] {
            let error = said(results, json!([]));
            assert!(error.ends_with(end), "{error}");
        }
        // The claim was prepared before, or tolerates the fault.
        let faulty = claim(json!([result(2, share())]), json!([]));
        assert!(plan(faulty, UID, ("here", &pool()), true).is_ok());
        let cordoned = pool().cordoned([gpu(1)].into());
        let own = || claim(json!([result(1, share())]), json!([]));
        assert!(plan(own(), UID, ("here", &cordoned), true).is_ok());
        let new = plan(own(), UID, ("here", &cordoned), false);
        assert!(matches!(new, Err(ClaimError::Unhealthy(_))), "{new:?}");
        let taint = |pool: &Pool| devices(pool, None)[0]["taints"][0]["key"].clone();
        assert_eq!((taint(&pool()), taint(&cordoned)), (Value::Null, json!(UNHEALTHY)));
        let mut tolerated = result(2, share());
        tolerated["tolerations"] = json!([{"key": UNHEALTHY, "operator": "Exists"}]);
        assert!(planned(json!([tolerated]), json!([])).is_ok());
        for words in [json!({"policy": "none"}), json!({"kind": "X"}), json!({"cores": 7})] {
            let config = json!([configured_by("FromClaim", json!([]), words)]);
            let error = said(json!([result(1, share())]), config);
            assert!(
                error.contains("; expected apiVersion gpu.sluice.dev/v1, kind GpuConfig"),
                "{error}"
            );
        }
        let mut second = result(1, share());
        second["request"] = "other".into();
        let config =
            json!([configured_by("FromClaim", json!(["other"]), json!({"policy": "balance"}))]);
        assert!(said(json!([result(1, share()), second]), config).contains("expected one of each"));
        let other = plan(claim(json!([]), json!([])), "5-6", ("here", &pool()), false);
        assert!(other.unwrap_err().to_string().ends_with("expected 5-6"));
        assert!(plan(json!({}), UID, ("here", &pool()), false).is_err());
    }
}
