//! kube-scheduler's extender messages, v1. Go writes the fields' names as they are in its source.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Which of these nodes has room, or how well do they suit?
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterArguments {
    pub(crate) pod: Pod,
    /// In full, where the scheduler takes the extender for one without memory.
    #[serde(default)]
    pub(crate) nodes: Option<NodeList>,
    /// By name, where `nodeCacheCapable` is set.
    #[serde(default)]
    pub(crate) node_names: Option<Vec<String>>,
}

/// Nodes as they came: of a large cluster they are many.
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
    /// The nodes' names.
    pub(crate) fn names(&self) -> Vec<Cow<'_, str>> {
        match (&self.node_names, &self.nodes) {
            (Some(names), _) => names.iter().map(|name| Cow::Borrowed(name.as_str())).collect(),
            (None, Some(nodes)) => nodes.items.iter().map(|node| name_of(node).into()).collect(),
            (None, None) => Vec::new(),
        }
    }
}

/// The name of a node. Empty: it has none.
pub(crate) fn name_of(node: &RawValue) -> String {
    let named = serde_json::from_str(node.get());
    named.map(|Named { metadata }| metadata.name).unwrap_or_default()
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FilterResult {
    pub(crate) nodes: Option<NodeList>,
    pub(crate) node_names: Option<Vec<String>>,
    pub(crate) failed_nodes: BTreeMap<String, String>,
    pub(crate) error: String,
}

/// How well a node suits a pod: up to 10.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority {
    pub(crate) host: String,
    pub(crate) score: u64,
}

/// Put this pod there.
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
