//! kube-scheduler's extender messages, v1. Fields have their Go names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The request of `filter` and `prioritize`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterArguments {
    pub(crate) pod: Pod,
    /// Complete objects, unless `nodeCacheCapable` is set.
    #[serde(default)]
    pub(crate) nodes: Option<NodeList>,
    /// Names, if `nodeCacheCapable` is set.
    #[serde(default)]
    pub(crate) node_names: Option<Vec<String>>,
}

/// Node objects, unparsed because a large cluster has many.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct NodeList {
    pub(crate) items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Named {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

impl FilterArguments {
    /// Takes the nodes' names.
    pub(crate) fn take_names(&mut self) -> Vec<String> {
        let in_full = self.nodes.iter().flat_map(|nodes| &nodes.items);
        self.node_names.take().unwrap_or_else(|| in_full.map(|node| name_of(node)).collect())
    }
}

/// A node's name; empty if missing.
fn name_of(node: &RawValue) -> String {
    let named = serde_json::from_str(node.get());
    named.map(|Named { metadata }| metadata.name).unwrap_or_default()
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterResult {
    pub(crate) nodes: Option<NodeList>,
    pub(crate) node_names: Option<Vec<String>>,
    /// By name, with the reason.
    #[serde(serialize_with = "as_map")]
    pub(crate) failed_nodes: Vec<(String, String)>,
    pub(crate) error: String,
}

fn as_map<S: Serializer>(pairs: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, why)| (name, why)))
}

/// How well a node suits a pod: up to 10.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority {
    pub(crate) host: String,
    pub(crate) score: u64,
}

/// The request of `preempt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PreemptionArguments {
    pub(crate) pod: Pod,
    /// Complete objects, unless `nodeCacheCapable` is set.
    #[serde(default)]
    pub(crate) node_name_to_victims: Option<BTreeMap<String, Victims>>,
    /// UIDs, if `nodeCacheCapable` is set.
    #[serde(default)]
    pub(crate) node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Victims {
    #[serde(default)]
    pods: Option<Vec<Pod>>,
    #[serde(rename = "NumPDBViolations", default)]
    pub(crate) violations: i64,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MetaVictims {
    #[serde(default, deserialize_with = "or_none")]
    pub(crate) pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations", default)]
    pub(crate) violations: i64,
}

#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct MetaPod {
    #[serde(rename = "UID")]
    pub(crate) uid: String,
}

/// Go writes an empty list as null.
fn or_none<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<MetaPod>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl PreemptionArguments {
    pub(crate) fn proposed(self) -> (Pod, BTreeMap<String, MetaVictims>) {
        let uid = |pod: Pod| MetaPod { uid: pod.metadata.uid.unwrap_or_default() };
        let by_uid = |Victims { pods, violations }| MetaVictims {
            pods: pods.into_iter().flatten().map(uid).collect(),
            violations,
        };
        let in_full = self.node_name_to_victims.into_iter().flatten();
        let in_full = in_full.map(|(node, victims)| (node, by_uid(victims)));
        let proposed = in_full.chain(self.node_name_to_meta_victims.into_iter().flatten());
        (self.pod, proposed.collect())
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PreemptionResult {
    pub(crate) node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// The request of `bind`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BindArguments {
    pub(crate) pod_name: String,
    pub(crate) pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub(crate) pod_uid: String,
    pub(crate) node: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BindResult {
    pub(crate) error: String,
}
