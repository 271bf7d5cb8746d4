//! Reads which share of which GPUs a ResourceClaim of NVIDIA's DRA driver has. That driver allocates amounts but does
//! not enforce them: they are consumed capacity, or limits of MPS clients. Pure.

use std::collections::BTreeMap;

use dialects::quantity::{QuantityError, whole};
use dialects::{CORES, Share};
use limits::{GpuId, Policy, Priority};
use serde::Deserialize;
use serde_json::Value;

use crate::amounts::{AmountError, Part, Wish, part};
use crate::dra::{Allocated, Devices};
use crate::pool::Pool;

/// The driver's name in claims.
pub(crate) const DRIVER: &str = "gpu.nvidia.com";
const MIB: u64 = 1 << 20;

/// Why a claim is refused. The container does not start.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum NvidiaError {
    #[error("{0}; expected resource.k8s.io/v1, and parameters of resource.nvidia.com")]
    Form(String),
    #[error(
        "device {0:?} is in no ResourceSlice of {DRIVER} on this node; expected one with a UUID"
    )]
    NoDevice(String),
    #[error("{0} is not one of the node's GPUs; expected one of those that Sluice sees")]
    NoGpu(GpuId),
    #[error("{name} {text}: {source}")]
    Quantity { name: &'static str, text: String, source: QuantityError },
    #[error(transparent)]
    Amount(#[from] AmountError),
}

/// The limits of MPS clients. Each may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mps {
    default_active_thread_percentage: Option<u64>,
    default_pinned_device_memory_limit: Option<String>,
    #[serde(default)]
    default_per_device_pinned_memory_limit: BTreeMap<String, String>,
}

/// The limits of a claim.
#[derive(Debug, PartialEq)]
pub(crate) enum Has {
    /// Whole GPUs, or a claim without amounts.
    NoLimits,
    /// Parts that belong to the claim, shared by all containers that use it.
    Consumed(Vec<Part>),
    /// Limits of each container, like those of each MPS client; nothing is reserved for them.
    Each(Vec<Part>),
}

fn quantity(name: &'static str, text: &str) -> Result<u64, NvidiaError> {
    whole(text).map_err(|source| NvidiaError::Quantity { name, text: text.to_owned(), source })
}

/// Reads a claim. `devices`: the UUIDs of NVIDIA's devices on this node, by device name.
pub(crate) fn of(
    claim: &Value,
    devices: &BTreeMap<String, GpuId>,
    pool: &Pool,
) -> Result<Has, NvidiaError> {
    let form = |error: serde_json::Error| NvidiaError::Form(error.to_string());
    let all = claim["status"]["allocation"]["devices"].clone();
    if all.is_null() {
        return Ok(Has::NoLimits);
    }
    let all: Devices = serde_json::from_value(all).map_err(form)?;
    let (mut shares, mut is_each) = (BTreeMap::<GpuId, Share>::new(), false);
    let own = all.results.iter().filter(|one| one.driver == DRIVER && !one.admin_access);
    for (index, one) in own.enumerate() {
        let mps = mps(&all, one).map_err(form)?;
        let consumed = one.consumed_capacity.get("memory");
        if consumed.is_none() && mps.is_none() {
            continue;
        }
        let id = *devices.get(&one.device).ok_or(NvidiaError::NoDevice(one.device.clone()))?;
        let gpu = pool.gpus().iter().find(|gpu| gpu.id == id).ok_or(NvidiaError::NoGpu(id))?;
        let total = pool.total(gpu).memory_mib;
        let mps = mps.unwrap_or_default();
        let pinned = &mps.default_per_device_pinned_memory_limit;
        let pinned = pinned.get(&id.to_string()).or_else(|| pinned.get(&index.to_string()));
        let pinned = pinned.or(mps.default_pinned_device_memory_limit.as_ref());
        let memory_mib = match (consumed, pinned) {
            (Some(text), _) => quantity("consumedCapacity memory", text)? / MIB,
            (None, Some(text)) => quantity("pinned memory limit", text)? / MIB,
            (None, None) => 0,
        };
        // Without an amount of compute: the same part as of memory, if the memory is reserved.
        let cores = match (mps.default_active_thread_percentage, consumed) {
            (Some(percent), _) => percent,
            (None, Some(_)) if total > 0 => (CORES * memory_mib / total).clamp(1, CORES),
            (None, _) => 0,
        };
        is_each |= consumed.is_none();
        let sum = shares.entry(id).or_default();
        sum.cores = (sum.cores + cores).min(CORES);
        sum.memory_mib = sum.memory_mib.saturating_add(memory_mib);
    }
    let known = pool.gpus().iter().filter_map(|gpu| Some((gpu, *shares.get(&gpu.id)?)));
    let (policy, priority) = (Policy::Fixed, Priority::High);
    let one = |(gpu, share)| part(&Wish::Given { share, policy, priority }, gpu, pool);
    let parts: Vec<Part> = known.map(one).collect::<Result<_, _>>()?;
    Ok(match (parts.is_empty(), is_each) {
        (true, _) => Has::NoLimits,
        (false, false) => Has::Consumed(parts),
        (false, true) => Has::Each(
            parts.into_iter().map(|part| Part { share: Share::default(), ..part }).collect(),
        ),
    })
}

fn mps(all: &Devices, device: &Allocated) -> Result<Option<Mps>, serde_json::Error> {
    let mut said = all.parameters(device).rev().map(|parameters| &parameters["sharing"]);
    let Some(sharing) = said.find(|sharing| !sharing.is_null()) else { return Ok(None) };
    match (&sharing["strategy"], &sharing["mpsConfig"]) {
        (strategy, config) if strategy == "MPS" && !config.is_null() => {
            Mps::deserialize(config).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Gpu;
    use dialects::registers::Hardware;
    use limits::{ComputeLimit, Limits, MemoryLimit};
    use serde_json::json;

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    fn has(results: Value, parameters: Value) -> Result<Has, NvidiaError> {
        let one = |number| Gpu {
            id: gpu(number),
            memory_mib: Some(1000),
            healthy: true,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let split = 4.try_into().unwrap();
        let pool = Pool::new(vec![one(1), one(2)], split, split);
        let devices = [("gpu-0", 1), ("gpu-1", 2), ("gpu-7", 7)];
        let devices = devices.map(|(name, number)| (name.to_owned(), gpu(number))).into();
        let opaque = |parameters| json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}});
        let other =
            json!({"opaque": {"driver": "other", "parameters": {"sharing": {"strategy": "MPS"}}}});
        let config = json!([
            opaque(json!({"sharing": {"strategy": "TimeSlicing"}})),
            other,
            opaque(parameters)
        ]);
        let devices_of = json!({"results": results, "config": config});
        of(&json!({"status": {"allocation": {"devices": devices_of}}}), &devices, &pool)
    }

    fn result(device: &str, memory: Option<&str>) -> Value {
        let consumed = memory.map(|memory| json!({"memory": memory})).unwrap_or_else(|| json!({}));
        json!({"driver": DRIVER, "device": device, "request": "gpu", "pool": "here", "consumedCapacity": consumed})
    }

    fn limits(mib: u64, percent: u32) -> Limits {
        let compute =
            if percent == 0 { ComputeLimit::NONE } else { ComputeLimit::fixed(percent * 10_000) };
        Limits { memory: Some(MemoryLimit::new(mib << 20)), compute }
    }

    #[test]
    fn what_is_consumed_is_the_claims_part_of_memory_and_of_time() {
        let results = json!([result("gpu-0", Some("400Mi")), result("gpu-1", Some("1Mi"))]);
        let Ok(Has::Consumed(parts)) = has(results, json!({})) else { panic!() };
        assert_eq!((parts[0].limits, parts[1].limits), (limits(400, 40), limits(1, 1)));
        assert_eq!(parts[0].share, Share { cores: 40, memory_mib: 400 });
        // The same GPU twice, and whole GPUs beside it.
        let results = json!([
            result("gpu-0", Some("300Mi")),
            result("gpu-0", Some("300Mi")),
            result("gpu-1", None)
        ]);
        let Ok(Has::Consumed(parts)) = has(results, json!({})) else { panic!() };
        assert_eq!((parts.len(), parts[0].limits), (1, limits(600, 60)));
    }

    #[test]
    fn limits_of_mps_are_of_each_container_and_reserve_nothing() {
        let mps = |config: Value| json!({"sharing": {"strategy": "MPS", "mpsConfig": config}});
        let both = json!([result("gpu-0", None), result("gpu-1", None)]);
        let config = mps(
            json!({"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "500Mi",
            "defaultPerDevicePinnedMemoryLimit": {"1": "100Mi"}}),
        );
        let Ok(Has::Each(parts)) = has(both.clone(), config) else { panic!() };
        assert_eq!((parts[0].limits, parts[1].limits), (limits(500, 50), limits(100, 50)));
        assert_eq!(parts[0].share, Share::default());
        let Ok(Has::Each(parts)) =
            has(both.clone(), mps(json!({"defaultPinnedDeviceMemoryLimit": "500Mi"})))
        else {
            panic!()
        };
        assert_eq!(parts[0].limits, limits(500, 0));
        for none in [
            json!({}),
            json!({"sharing": {"strategy": "MPS"}}),
            json!({"sharing": {"strategy": "TimeSlicing"}}),
        ] {
            assert_eq!(has(both.clone(), none), Ok(Has::NoLimits));
        }
        assert_eq!(
            of(
                &json!({}),
                &BTreeMap::new(),
                &Pool::new(vec![], 1.try_into().unwrap(), 1.try_into().unwrap())
            ),
            Ok(Has::NoLimits)
        );
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_what_is_expected() {
        let said = |results, parameters| has(results, parameters).unwrap_err().to_string();
        assert!(
            said(json!([result("gpu-5", Some("1Mi"))]), json!({}))
                .ends_with("expected one with a UUID")
        );
        assert!(
            said(json!([result("gpu-7", Some("1Mi"))]), json!({}))
                .contains("expected one of those that Sluice sees")
        );
        assert!(
            said(json!([result("gpu-0", Some("x"))]), json!({}))
                .contains("expected a whole number")
        );
        assert!(said(json!([result("gpu-0", Some("2000Mi"))]), json!({})).contains("it has 1000"));
        assert!(said(json!([{"device": 1}]), json!({})).contains("; expected resource.k8s.io/v1"));
    }
}
