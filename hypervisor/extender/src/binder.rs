//! Binds pods: by what the API server says at that moment, one after the other on each node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api_server::{CallError, answered, is_conflict, on_node, segment};
use dialects::Dialect;
use dialects::pods::{annotation, claims_text, has_ended, is_allocating, lasting};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::account::Refusal;
use crate::view::{self, PodRefusal};
use crate::wire::BindArguments;

/// How long the API server has for one answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long a pod waits for the one before it on its node. The scheduler has 30 s.
const TURN_WITHIN: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// After so long without an end nobody waits for a pod's allocation any more.
const STUCK: Duration = Duration::from_secs(60);

/// Why a pod is not bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error(transparent)]
    Api(#[from] CallError),
    #[error("the pod {0} has gone")]
    Gone(String),
    #[error("the pod {pod} is on the node {node} already")]
    Elsewhere { pod: String, node: String },
    #[error("node {node}: {source}")]
    Refused { node: String, source: Refusal },
    #[error(transparent)]
    Pod(#[from] PodRefusal),
    #[error("node {node}: the pod {pod} is still being given its GPUs there")]
    Busy { node: String, pod: String },
    #[error("node {0}: other pods are still being bound there")]
    Queue(String),
}

/// By node.
type Turns = Arc<Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>>;

#[derive(Clone)]
pub(crate) struct Binder {
    pub(crate) client: Client,
    pub(crate) dialects: Arc<[Dialect]>,
    /// Whether a pod waits until the one before it on its node has its GPUs.
    pub(crate) serial: bool,
    pub(crate) turns: Turns,
}

async fn asked<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    answered(ANSWERS_WITHIN, call).await
}

impl Binder {
    pub(crate) async fn bind(&self, wanted: &BindArguments) -> Result<(), BindError> {
        let begun = Instant::now();
        let turn = self.turn_of(&wanted.node);
        let queue = || BindError::Queue(wanted.node.clone());
        let _turn = tokio::time::timeout(TURN_WITHIN, turn.lock()).await.map_err(|_| queue())?;
        match self.try_to_bind(wanted, begun).await {
            // An earlier binding, which was left without an answer, has been made meanwhile.
            Err(BindError::Api(CallError::Failed(error))) if is_conflict(&error) => {
                self.try_to_bind(wanted, begun).await
            }
            answer => answer,
        }
    }

    async fn try_to_bind(&self, wanted: &BindArguments, begun: Instant) -> Result<(), BindError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &segment(&wanted.pod_namespace));
        let own = segment(&wanted.pod_name);
        let name = format!("{}/{}", wanted.pod_namespace, wanted.pod_name);
        let gone = || BindError::Gone(name.clone());
        let pod = asked(pods.get_opt(&own)).await?.ok_or_else(gone)?;
        if pod.metadata.uid.as_deref() != Some(&wanted.pod_uid) {
            return Err(gone());
        }
        match pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            // The scheduler has not heard the answer and asks again.
            Some(node) if *node == wanted.node => return Ok(()),
            Some(node) => return Err(BindError::Elsewhere { pod: name, node: node.clone() }),
            None => {}
        }
        let Some(needs) = view::needs(&pod, &self.dialects)? else {
            return self.write(&pods, wanted, &BTreeMap::new()).await;
        };
        let others = self.others_when_ready(&wanted.node, begun).await?;
        let node: Node = asked(Api::all(self.client.clone()).get(&segment(&wanted.node))).await?;
        let refused = |source| BindError::Refused { node: wanted.node.clone(), source };
        let account = view::account(&node, needs.dialect, &others).map_err(refused)?;
        let claims = account.place(&needs).map_err(refused)?;
        let claims = claims_text(claims, &pod, needs.dialect, account.factor());
        let annotations = annotations(&wanted.node, needs.dialect, &claims);
        let phase = needs.dialect.annotations().phase;
        if let Some(phase) = phase.filter(|phase| phase.is_label) {
            // API servers take annotations with a binding, and no labels.
            let metadata = json!({"uid": wanted.pod_uid, "labels": {phase.name: phase.allocating}});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            let how = PatchParams::default();
            asked(pods.patch_metadata(&own, &how, &patch)).await?;
        }
        self.write(&pods, wanted, &annotations).await?;
        tracing::info!(pod = name, node = wanted.node, claims, "bound");
        Ok(())
    }

    fn turn_of(&self, node: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(node.to_owned()).or_default())
    }

    /// The other pods of a node. With the gate open: when none of them is being given its GPUs.
    async fn others_when_ready(&self, node: &str, begun: Instant) -> Result<Vec<Pod>, BindError> {
        let own = ListParams::default().fields(&on_node(node));
        let pods: Api<Pod> = Api::all(self.client.clone());
        loop {
            let others = asked(pods.list(&own)).await?.items;
            let busy = others.iter().find(|pod| self.serial && is_being_allocated(pod, now()));
            let Some(pod) = busy else { return Ok(others) };
            if begun.elapsed() >= TURN_WITHIN {
                let pod = pod.metadata.name.clone().unwrap_or_default();
                return Err(BindError::Busy { node: node.to_owned(), pod });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Node and claims in one step.
    async fn write(
        &self,
        pods: &Api<Pod>,
        wanted: &BindArguments,
        annotations: &BTreeMap<&'static str, String>,
    ) -> Result<(), BindError> {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": wanted.pod_name,
                "namespace": wanted.pod_namespace,
                "uid": wanted.pod_uid,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": wanted.node},
        });
        let how = PostParams::default();
        let name = segment(&wanted.pod_name);
        let call = pods.create_subresource("binding", &name, &how, &binding);
        let _: Value = asked(call).await?;
        Ok(())
    }
}

/// What a pod is told with its binding. `claims`: as its dialect writes them.
fn annotations(node: &str, dialect: Dialect, claims: &str) -> BTreeMap<&'static str, String> {
    let names = dialect.annotations();
    let mut all =
        BTreeMap::from([(names.claimed, claims.to_owned()), (lasting(dialect), claims.to_owned())]);
    all.extend(names.node.map(|name| (name, node.to_owned())));
    all.extend(names.time.map(|name| (name, now().to_string())));
    let phase = names.phase.filter(|phase| !phase.is_label);
    all.extend(phase.map(|phase| (phase.name, phase.allocating.to_owned())));
    all
}

/// In seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn is_being_allocated(pod: &Pod, now: u64) -> bool {
    let since = |dialect: Dialect| {
        let said = annotation(pod, dialect.annotations().time?);
        said.and_then(|text| text.parse().ok())
    };
    let in_time = |dialect: Dialect| {
        let since = since(dialect);
        since.is_some_and(|since: u64| now.saturating_sub(since) < STUCK.as_secs())
    };
    let is_it = |dialect| is_allocating(pod, dialect) && in_time(dialect);
    !has_ended(pod) && Dialect::ALL.into_iter().any(is_it)
}
