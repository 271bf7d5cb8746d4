//! Reads a pod's placement policy from its annotations.

use k8s_openapi::api::core::v1::Pod;

use crate::pods::annotation;
use crate::{Dialect, NeedError};

/// Names of the annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyNames {
    /// Order of nodes.
    pub node: &'static str,
    /// Order of a node's GPUs.
    pub device: &'static str,
    /// Connection of a container's GPUs.
    pub topology: TopologyNames,
}

/// The annotation for the connection of a pod's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyNames {
    /// VGPU-Manager: one of several modes.
    Mode(&'static str),
    /// HAMi: `true` for GPUs of one NUMA node.
    NumaBind(&'static str),
}

/// The preferred node or GPU among those with room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The fullest.
    Binpack,
    /// The emptiest.
    Spread,
}

/// How a container's GPUs should be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The kind of connection.
    pub by: Connection,
    /// Whether the pod waits for such GPUs rather than take others.
    pub strict: bool,
}

/// A connection between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// The same NUMA node.
    Numa,
    /// The fastest links.
    Link,
}

/// A pod's placement policy. By default: any node, and its fullest GPUs with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Order of nodes.
    pub node: Option<Order>,
    /// Order of a node's GPUs.
    pub device: Option<Order>,
    /// How they should be connected.
    pub topology: Option<Topology>,
}

impl Policy {
    /// Reads the annotations of a pod of this dialect.
    ///
    /// # Errors
    /// [`NeedError::Name`]
    pub fn of(pod: &Pod, dialect: Dialect) -> Result<Self, NeedError> {
        let Some(names) = dialect.annotations().policy else { return Ok(Self::default()) };
        let order = |name| match lower(pod, name).as_str() {
            "" | "none" => Ok(None),
            "binpack" => Ok(Some(Order::Binpack)),
            "spread" => Ok(Some(Order::Spread)),
            text => Err(wrong(name, text, "binpack, spread or none")),
        };
        let topology = match names.topology {
            TopologyNames::Mode(name) => mode(name, &lower(pod, name))?,
            TopologyNames::NumaBind(name) => match lower(pod, name).as_str() {
                "" | "false" => None,
                "true" => Some(Topology { by: Connection::Numa, strict: true }),
                text => return Err(wrong(name, text, "true or false")),
            },
        };
        let node = order(names.node)?;
        if dialect == Dialect::Hami && lower(pod, names.device) == "topology-aware" {
            let linked = Topology { by: Connection::Link, strict: false };
            return Ok(Self { node, device: None, topology: topology.or(Some(linked)) });
        }
        Ok(Self { node, device: order(names.device)?, topology })
    }
}

fn mode(name: &'static str, text: &str) -> Result<Option<Topology>, NeedError> {
    let (by, strict) = match text {
        "" | "none" => return Ok(None),
        "numa" => (Connection::Numa, false),
        "numa-strict" => (Connection::Numa, true),
        "link" => (Connection::Link, false),
        "link-strict" => (Connection::Link, true),
        _ => return Err(wrong(name, text, "numa, numa-strict, link, link-strict or none")),
    };
    Ok(Some(Topology { by, strict }))
}

fn lower(pod: &Pod, name: &str) -> String {
    annotation(pod, name).unwrap_or_default().trim().to_lowercase()
}

fn wrong(name: &'static str, text: &str, expected: &'static str) -> NeedError {
    NeedError::Name { name, text: text.chars().take(40).collect(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(dialect: Dialect, annotations: &Value) -> Result<Policy, NeedError> {
        let pod = json!({"metadata": {"annotations": annotations}});
        Policy::of(&serde_json::from_value(pod).unwrap(), dialect)
    }

    #[test]
    fn a_pod_chooses_nodes_devices_and_their_connection() {
        let seeds = json!({
            "nvidia.com/node-scheduler-policy": "spread",
            "nvidia.com/device-scheduler-policy": "Binpack",
            "nvidia.com/device-topology-mode": "link-strict",
        });
        let read = of(Dialect::VgpuManager, &seeds).unwrap();
        assert_eq!((read.node, read.device), (Some(Order::Spread), Some(Order::Binpack)));
        assert_eq!(read.topology, Some(Topology { by: Connection::Link, strict: true }));
        let hami =
            json!({"hami.io/gpu-scheduler-policy": "spread", "nvidia.com/numa-bind": "true"});
        let read = of(Dialect::Hami, &hami).unwrap();
        assert_eq!((read.node, read.device), (None, Some(Order::Spread)));
        assert_eq!(read.topology, Some(Topology { by: Connection::Numa, strict: true }));
        let aware = json!({"hami.io/gpu-scheduler-policy": "topology-aware"});
        let read = of(Dialect::Hami, &aware).unwrap();
        assert_eq!(read.topology, Some(Topology { by: Connection::Link, strict: false }));
        for dialect in [Dialect::Volcano, Dialect::VgpuRs] {
            assert_eq!(of(dialect, &seeds), Ok(Policy::default()));
        }
        assert_eq!(of(Dialect::VgpuManager, &json!({})), Ok(Policy::default()));
        let none = json!({"nvidia.com/device-topology-mode": "none"});
        assert_eq!(of(Dialect::VgpuManager, &none), Ok(Policy::default()));
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_known_ones() {
        let said = |name: &str, text: &str| {
            of(Dialect::VgpuManager, &json!({name: text})).unwrap_err().to_string()
        };
        assert_eq!(
            said("nvidia.com/node-scheduler-policy", "binpak"),
            "the annotation nvidia.com/node-scheduler-policy: \"binpak\"; expected binpack, spread or none"
        );
        let said = said("nvidia.com/device-topology-mode", "nvlink");
        assert!(said.ends_with("; expected numa, numa-strict, link, link-strict or none"));
    }
}
