//! `hypervisor why` and `hypervisor simulate`: what the extender would decide for a snapshot of the cluster.
//!
//! Reasons of kube-scheduler itself, such as taints and selectors, are not considered.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use dialects::PodClaims;
use dialects::gates::{FeatureGates, Gate};
use dialects::pods::has_ended;
use dialects::{Dialect, ResourceNames, table};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use placement::{Holding, Offer, PodRefusal, Refusal};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::binder::ANSWERS_WITHIN;
use crate::cluster::{Asked, Cluster, PodName, Reading, name_of, pod_name};

/// All nodes and pods at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The pods of all namespaces.
    pub pods: Vec<Pod>,
}

/// The source of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files as `kubectl get -o json` prints them.
    Files {
        /// The nodes.
        nodes: PathBuf,
        /// The pods of all namespaces.
        pods: PathBuf,
    },
    /// The API server of this kubeconfig. `None`: the pod's service account.
    Cluster(Option<PathBuf>),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// A file cannot be read.
    #[error("{}: {reason}; expected the output of kubectl get -o json", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no client for the API server.
    #[error(transparent)]
    Connect(#[from] api_server::ConnectError),
    /// The API server does not answer.
    #[error(transparent)]
    Api(#[from] api_server::CallError),
    /// The pod does not exist.
    #[error("there is no pod {0}; expected [NAMESPACE/]NAME")]
    NoPod(String),
    /// The pod is bound already.
    #[error("the pod {pod} is on node {node}; expected a pod that has no node yet")]
    Bound {
        /// The pod.
        pod: String,
        /// Its node.
        node: String,
    },
    /// The pod requests no GPU.
    #[error("the pod {pod} requests no GPU; expected a resource of {dialects}, such as {}", table::RESOURCES[0].name)]
    NoGpu {
        /// The pod.
        pod: String,
        /// The known dialects.
        dialects: String,
    },
    /// The pod's request is invalid.
    #[error("the pod {pod} fits no node: {source}")]
    Pod {
        /// The pod.
        pod: String,
        /// Why.
        source: PodRefusal,
    },
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, ExplainError> {
    let wrong = |reason: String| ExplainError::File { file: file.to_owned(), reason };
    let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let list: List<T> = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(list.items)
}

/// How pods' requests are read.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The dialects whose resource names pods may use.
    pub dialects: Vec<Dialect>,
    /// The feature gates; `GPUTopology` lets pods request links.
    pub gates: FeatureGates,
    /// The cluster's resource names.
    pub names: ResourceNames,
}

impl Snapshot {
    /// Reads files, or lists the objects of the cluster.
    ///
    /// # Errors
    /// [`ExplainError`]
    pub async fn of(source: &Source) -> Result<Self, ExplainError> {
        match source {
            Source::Files { nodes, pods } => Ok(Self { nodes: read(nodes)?, pods: read(pods)? }),
            Source::Cluster(kubeconfig) => {
                let client = api_server::client(kubeconfig.as_deref()).await?;
                let all = ListParams::default();
                let nodes = Api::<Node>::all(client.clone());
                let nodes = api_server::answered(ANSWERS_WITHIN, nodes.list(&all)).await?.items;
                let pods = Api::<Pod>::all(client);
                let pods = api_server::answered(ANSWERS_WITHIN, pods.list(&all)).await?.items;
                Ok(Self { nodes, pods })
            }
        }
    }

    fn cluster(&self, terms: &Terms) -> Cluster {
        let Terms { dialects, gates, names } = terms;
        let links = gates.is_open(Gate::GpuTopology);
        let reading = Reading { dialects: dialects.clone().into(), links, names: names.clone() };
        let mut cluster = Cluster::new(reading);
        self.nodes.iter().for_each(|node| cluster.apply_node(node));
        self.pods.iter().for_each(|pod| cluster.apply_pod(pod));
        cluster
    }

    fn nodes(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        names.sort_unstable();
        names
    }

    /// Why a pod has no room, for each node that registers GPUs.
    ///
    /// # Errors
    /// [`ExplainError`]
    pub fn why(&self, pod: &str, terms: &Terms) -> Result<Why, ExplainError> {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
        let own = pod_name(namespace, name);
        let found = self.pods.iter().find(|pod| name_of(pod) == own);
        let found = found.ok_or_else(|| ExplainError::NoPod(own.to_string()))?;
        if let Some(node) = found.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
            return Err(ExplainError::Bound { pod: own.to_string(), node });
        }
        let cluster = self.cluster(terms);
        let wrong = |source| ExplainError::Pod { pod: own.to_string(), source };
        let asked = cluster.reading.asked(found).map_err(wrong)?.ok_or_else(|| {
            let known: Vec<&str> = terms.dialects.iter().map(|dialect| dialect.name()).collect();
            ExplainError::NoGpu { pod: own.to_string(), dialects: known.join(", ") }
        })?;
        let mut why = Why { pod: own, nodes: BTreeMap::new(), unregistered: 0, nearest: None };
        for node in self.nodes() {
            let found = match cluster.on(node, &asked) {
                Ok(claims) => Ok(claims),
                Err(unfit) => {
                    let Unfit { refusal, nearest } = *unfit;
                    if matches!(refusal, Refusal::Unregistered(_)) {
                        why.unregistered += 1;
                        continue;
                    }
                    let is_nearer = |(loss, _): &(u64, Offer)| {
                        why.nearest.as_ref().is_none_or(|(least, ..)| loss < least)
                    };
                    if let Some((loss, offer)) = nearest.filter(is_nearer) {
                        why.nearest = Some((loss, node.to_owned(), offer));
                    }
                    Err(refusal)
                }
            };
            why.nodes.insert(node.to_owned(), found);
        }
        Ok(why)
    }

    /// Places the pods without a node one after the other, in kube-scheduler's order: highest priority first, then the
    /// oldest. Of equal nodes, takes the first by name.
    #[must_use]
    pub fn simulate(&self, terms: &Terms, now: Instant) -> Vec<Simulated> {
        let mut cluster = self.cluster(terms);
        let nodes = self.nodes();
        let spec = |pod: &&Pod| pod.spec.clone().unwrap_or_default();
        let waits = |pod: &&Pod| spec(pod).node_name.is_none() && !has_ended(pod);
        let mut waiting: Vec<&Pod> = self.pods.iter().filter(waits).collect();
        waiting.sort_by_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref();
            (core::cmp::Reverse(spec(pod).priority), created.map(|time| time.0.to_string()))
        });
        let mut all = Vec::new();
        for pod in waiting {
            let name = name_of(pod);
            let placed = match cluster.reading.asked(pod) {
                Ok(None) => continue,
                Err(why) => Err(why.to_string()),
                Ok(Some(asked)) => cluster.choose(pod, &asked, &nodes),
            };
            if let Ok(Placed { node, claims }) = &placed {
                cluster.give(pod, (node, claims), now);
            }
            all.push(Simulated { pod: name.to_string(), placed });
        }
        all
    }
}

impl Cluster {
    /// The claims that a pod would get on a node.
    fn on(&self, node: &str, asked: &Asked) -> Result<PodClaims, Box<Unfit>> {
        let request = &asked.request;
        match self.account(node, request.dialect) {
            None => {
                let refusal = Refusal::OtherScheduler(request.dialect.name());
                Err(Box::new(Unfit { refusal, nearest: None }))
            }
            Some(Err(refusal)) => Err(Box::new(Unfit { refusal: refusal.clone(), nearest: None })),
            Some(Ok(account)) => account.place(request).map_err(|refusal| {
                let nearest = account.nearest(request, &refusal, u64::MAX);
                Box::new(Unfit { refusal, nearest })
            }),
        }
    }

    fn choose(&self, pod: &Pod, asked: &Arc<Asked>, nodes: &[&str]) -> Result<Placed, String> {
        let with_room = nodes.iter().filter_map(|node| {
            let claims = self.on(node, asked).ok()?;
            let score: u64 = self.scores(pod, &[*node]).into_iter().sum();
            Some((core::cmp::Reverse(score), *node, claims))
        });
        let best = with_room.min_by_key(|(score, node, _)| (*score, *node));
        match best {
            Some((_, node, claims)) => Ok(Placed { node: node.to_owned(), claims }),
            None => Err(format!("no room on any of {} nodes", nodes.len())),
        }
    }

    fn give(&mut self, pod: &Pod, (node, claims): (&str, &PodClaims), now: Instant) {
        let Ok(Some(asked)) = self.reading.asked(pod) else { return };
        let Some(Ok(account)) = self.account(node, asked.request.dialect) else { return };
        let holding = Holding::claimed(&asked.request, claims, account.factor());
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.assume(&name_of(pod), (uid, &asked), (node, holding), now);
    }
}

/// Why a pod has no room on a node, and the nearest request that has, with its loss.
struct Unfit {
    refusal: Refusal,
    nearest: Option<(u64, Offer)>,
}

/// Why a pod has no room.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pod: PodName,
    nodes: BTreeMap<String, Result<PodClaims, Refusal>>,
    /// Nodes that register no GPUs in the pod's dialect.
    unregistered: usize,
    /// The smallest loss, its node, and the request that would fit.
    nearest: Option<(u64, String, Offer)>,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, nodes, unregistered, nearest } = self;
        let room = nodes.values().filter(|why| why.is_ok()).count();
        writeln!(f, "pod {pod}: room on {room} of {} nodes with GPUs", nodes.len())?;
        for (node, why) in nodes {
            match why {
                Ok(claims) => writeln!(f, "node {node}: room{}", Gpus(claims))?,
                Err(refusal) => writeln!(f, "node {node}: {refusal}")?,
            }
        }
        if *unregistered > 0 {
            let plural = if *unregistered == 1 { "" } else { "s" };
            writeln!(
                f,
                "{unregistered} node{plural} register no GPUs by the names that the pod uses"
            )?;
        }
        match nearest {
            Some((_, node, offer)) if room == 0 => {
                writeln!(f, "nearest request that would fit: {offer}, on node {node}")
            }
            _ => Ok(()),
        }
    }
}

/// Displays a pod's GPUs after a colon.
struct Gpus<'a>(&'a PodClaims);

impl fmt::Display for Gpus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for of in &self.0.0 {
            write!(f, "; container {}", of.container)?;
            for claim in &of.claims {
                let (cores, mib) = (claim.cores, claim.memory_mib);
                write!(f, ", GPU {} with {cores} cores and {mib} MiB", claim.index)?;
            }
        }
        Ok(())
    }
}

/// The result for one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Namespace and name.
    pub pod: String,
    /// The placement, or the reason why there is none.
    pub placed: Result<Placed, String>,
}

/// A placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The node.
    pub node: String,
    /// Its claims there.
    pub claims: PodClaims,
}

impl fmt::Display for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, placed } = self;
        match placed {
            Ok(Placed { node, claims }) => write!(f, "pod {pod}: node {node}{}", Gpus(claims)),
            Err(why) => write!(f, "pod {pod}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, gpus: u32) -> Value {
        let gpu = |index| {
            json!({"id": index, "type": "A100", "uuid": format!("GPU-00552014-5c87-89ac-b1a6-{index:06x}000000"),
                "core": 100, "memory": 8000, "number": 4, "numa": 0, "mig": false, "busId": "", "capability": 8.0,
                "healthy": true})
        };
        let register = Value::from((0..gpus).map(gpu).collect::<Vec<_>>()).to_string();
        let annotations =
            if gpus > 0 { json!({"nvidia.com/node-device-register": register}) } else { json!({}) };
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}})
    }

    fn pod(name: &str, cores: u32, priority: i32) -> Value {
        let limits = json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": cores.to_string(),
            "nvidia.com/vgpu-memory": "1000"});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"priority": priority, "containers": [{"name": "main", "resources": {"limits": limits}}]}})
    }

    fn snapshot(nodes: &[Value], pods: &[Value]) -> Snapshot {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, items: &[Value]| {
            let file = folder.path().join(name);
            std::fs::write(&file, json!({"kind": "List", "items": items}).to_string()).unwrap();
            file
        };
        let files = Source::Files { nodes: write("nodes", nodes), pods: write("pods", pods) };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(Snapshot::of(&files)).unwrap()
    }

    fn terms() -> Terms {
        let (dialects, gates) = (vec![Dialect::VgpuManager], "".parse().unwrap());
        Terms { dialects, gates, names: ResourceNames::default() }
    }

    #[test]
    fn a_pod_that_waits_is_told_each_nodes_reason_and_the_nearest_request() {
        let mut held = pod("held", 70, 0);
        held["spec"]["nodeName"] = "b".into();
        held["metadata"]["annotations"] = json!({"nvidia.com/pre-allocated":
            "main[0_GPU-00552014-5c87-89ac-b1a6-000000000000_70_1000]"});
        let nodes = [node("b", 1), node("cpu", 0)];
        let seen = snapshot(&nodes, &[held.clone(), pod("asks", 40, 0), pod("small", 30, 0)]);
        let why = |pod: &str| seen.why(pod, &terms()).map(|why| why.to_string());
        assert_eq!(
            why("asks").unwrap(),
            "pod default/asks: room on 0 of 1 nodes with GPUs\n\
             node b: container main asks for 1 GPU with 40 cores and 1000 MiB: 0 of 1 GPUs have room \
             (1 with too few cores left, at most 30)\n\
             1 node register no GPUs by the names that the pod uses\n\
             nearest request that would fit: 1 GPU with 30 cores and 1000 MiB, on node b\n"
        );
        let small = why("default/small").unwrap();
        assert!(small.contains("node b: room; container main, GPU 0 with 30 cores"), "{small}");
        let said = |pod| why(pod).unwrap_err().to_string();
        assert!(said("held").contains("is on node b"), "{}", said("held"));
        assert!(said("other/asks").contains("no pod other/asks"), "{}", said("other/asks"));
    }

    #[test]
    fn pods_are_placed_in_turn_and_the_highest_priority_first() {
        let pods = [pod("late", 60, 0), pod("first", 60, 9), pod("second", 60, 5)];
        let seen = snapshot(&[node("b", 1), node("a", 1)], &pods);
        let all = seen.simulate(&terms(), Instant::now());
        let said: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "pod default/first: node a; container main, GPU 0 with 60 cores and 1000 MiB",
                "pod default/second: node b; container main, GPU 0 with 60 cores and 1000 MiB",
                "pod default/late: no room on any of 2 nodes",
            ]
        );
    }
}
