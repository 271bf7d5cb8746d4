//! Builds the ResourceSlice: each GPU is a device whose memory and compute can be consumed in parts. Pure.

use dialects::CORES;
use limits::GpuId;
use serde_json::{Map, Value, json};

use super::DRIVER;
use crate::pool::{Gpu, Pool};

/// The capacity for a GPU's memory, in bytes.
pub(crate) const MEMORY_NAME: &str = "memory";
/// The capacity for a GPU's compute, in percent.
pub(crate) const CORES_NAME: &str = "cores";
/// The taint of a GPU with a fault, or one that the driver does not show any more.
pub(crate) const UNHEALTHY: &str = "gpu.sluice.dev/unhealthy";
/// The longest string in a device attribute.
const MOST_TEXT: usize = 64;

/// A GPU's device name: a DNS label.
pub(crate) fn device_name(gpu: GpuId) -> String {
    gpu.to_string().to_ascii_lowercase()
}

/// The devices of all GPUs. `driver`: the version of NVIDIA's driver, as the driver writes it.
pub(crate) fn devices(pool: &Pool, driver: Option<&str>) -> Value {
    pool.gpus().iter().map(|gpu| device(gpu, pool, driver)).collect()
}

fn device(gpu: &Gpu, pool: &Pool, driver: Option<&str>) -> Value {
    let text = |value: &str| json!({"string": value.chars().take(MOST_TEXT).collect::<String>()});
    let (major, minor) = gpu.hardware.capability;
    let mut attributes = Map::new();
    let mut add = |name: &str, value| _ = attributes.insert(name.to_owned(), value);
    add("type", text("gpu"));
    add("uuid", text(&gpu.id.to_string()));
    add("productName", text(&gpu.product));
    if major > 0 {
        add("cudaComputeCapability", json!({"version": format!("{major}.{minor}.0")}));
    }
    if let Some(version) = driver.and_then(semantic) {
        add("driverVersion", json!({"version": version}));
    }
    if let Some(node) = gpu.hardware.numa {
        add("numaNode", json!({"int": node}));
    }
    if !gpu.hardware.bus_id.is_empty() {
        add("resource.kubernetes.io/pciBusID", text(&gpu.hardware.bus_id));
    }
    let total = pool.total(gpu);
    // A request without an amount gets the whole GPU, so nothing is promised twice by mistake.
    let capacity = |value: String, most: String, step: &str| {
        let range = json!({"min": step, "max": most, "step": step});
        json!({"value": value, "requestPolicy": {"default": most, "validRange": range}})
    };
    let mut all = Map::new();
    let (cores, most) = (total.cores.to_string(), CORES.min(total.cores).to_string());
    all.insert(CORES_NAME.to_owned(), capacity(cores, most, "1"));
    if total.memory_mib > 0 {
        let memory = format!("{}Mi", total.memory_mib);
        all.insert(MEMORY_NAME.to_owned(), capacity(memory.clone(), memory, "1Mi"));
    }
    let mut device = json!({
        "name": device_name(gpu.id),
        "attributes": attributes,
        "capacity": all,
        "allowMultipleAllocations": true,
    });
    if !pool.is_offered(gpu) {
        // Running containers are not evicted: a fault ends its program anyway, and a cordon concerns new pods only.
        device["taints"] = json!([{"key": UNHEALTHY, "effect": "NoSchedule"}]);
    }
    device
}

/// A driver version as semantic version: NVIDIA's have leading zeros.
fn semantic(version: &str) -> Option<String> {
    let mut parts = version.trim().split('.').map(|part| part.parse::<u32>().ok());
    let mut next = |default| parts.next().unwrap_or(default);
    let (major, minor, patch) = (next(None)?, next(Some(0))?, next(Some(0))?);
    Some(format!("{major}.{minor}.{patch}"))
}

/// The node's ResourceSlice, deleted with the node. `generation`: counts the changes of the devices.
pub(crate) fn slice((node, uid): (&str, &str), devices: &Value, generation: u64) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": slice_name(node),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    })
}

/// The slice's name.
pub(crate) fn slice_name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_versions_are_written_as_kubernetes_takes_them() {
        for (own, semantic_one) in
            [("580.65.06\n", Some("580.65.6")), ("580", Some("580.0.0")), ("x", None), ("", None)]
        {
            assert_eq!(semantic(own).as_deref(), semantic_one, "{own}");
        }
    }
}
