//! Binds pods: writes node and claims in one call. kube-scheduler triggers it through the extender's `bind`.
//!
//! GPUs are chosen by the cluster as the watches show it, and the pod counts there at once. So two bindings of this
//! extender never get the same part of a GPU, and nothing has to be listed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api_server::{CallError, answered, is_conflict, segment};
use dialects::Dialect;
use dialects::pods::{claims_text, lasting};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use placement::{Holding, PodRefusal, Refusal};
use serde_json::{Value, json};

use crate::cluster::{Asked, Cluster, PodName, pod_name};
use crate::lease::{Leadership, LeaseError};
use crate::quota::QuotaRefusal;
use crate::shared::Shared;
use crate::wire::BindArguments;

/// Timeout of the API server's answer.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long a pod waits for the previous pod on its node. kube-scheduler's timeout is 30 s.
const TURN_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("it has not heard of all nodes, pods and quotas yet")]
    NotReady,
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Api(#[from] CallError),
    #[error("the pod {0} has gone")]
    Gone(String),
    #[error("the pod {pod} is on the node {node} already")]
    Elsewhere { pod: String, node: String },
    #[error("node {node}: {source}")]
    Refused { node: String, source: Refusal },
    #[error("node {0}: the node is not known yet")]
    Unknown(String),
    #[error(transparent)]
    Pod(#[from] PodRefusal),
    #[error(transparent)]
    Quota(#[from] QuotaRefusal),
    #[error("node {node}: the pod {pod} is still being given its GPUs there")]
    Busy { node: String, pod: PodName },
}

#[derive(Clone)]
pub(crate) struct Binder {
    pub(crate) client: Client,
    pub(crate) cluster: Shared,
    pub(crate) leadership: Option<Leadership>,
    /// Whether a pod waits until the previous pod on its node has its GPUs.
    pub(crate) serial: bool,
}

async fn asked<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    answered(ANSWERS_WITHIN, call).await
}

/// Whether the pod is bound already.
enum Found {
    Bound,
    Unbound(Option<Arc<Asked>>),
}

impl Binder {
    pub(crate) async fn bind(&self, wanted: &BindArguments) -> Result<(), BindError> {
        self.lead().await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &segment(&wanted.pod_namespace));
        let name = pod_name(&wanted.pod_namespace, &wanted.pod_name);
        let found = match self.known(wanted, &name) {
            Some(found) => found?,
            None => self.looked_up(&pods, wanted, &name).await?,
        };
        let Found::Unbound(asked) = found else { return Ok(()) };
        let result = match asked {
            None => self.write(&pods, wanted, &BTreeMap::new()).await.map_err(BindError::Api),
            Some(asked) => self.assign(&pods, wanted, (&name, &asked)).await,
        };
        match result {
            // An earlier binding without an answer has succeeded meanwhile, or the pod was replaced.
            Err(BindError::Api(CallError::Failed(error))) if is_conflict(&error) => {
                match self.looked_up(&pods, wanted, &name).await? {
                    Found::Bound => Ok(()),
                    Found::Unbound(_) => Err(BindError::Api(CallError::Failed(error))),
                }
            }
            result => result,
        }
    }

    /// Takes the lease, if one is configured.
    async fn lead(&self) -> Result<(), LeaseError> {
        match &self.leadership {
            Some(leadership) => leadership.take().await,
            None => Ok(()),
        }
    }

    /// The pod's state as the watch shows it. `None`: the watch does not have the pod yet.
    fn known(&self, wanted: &BindArguments, name: &PodName) -> Option<Result<Found, BindError>> {
        let cluster = self.cluster.lock();
        let pod = cluster.pod(name).filter(|pod| pod.uid == wanted.pod_uid)?;
        let asked = pod.asked.clone();
        Some(match pod.node() {
            None => Ok(Found::Unbound(Some(asked?))),
            Some(node) => placed(wanted, name, node),
        })
    }

    async fn looked_up(
        &self,
        pods: &Api<Pod>,
        wanted: &BindArguments,
        name: &PodName,
    ) -> Result<Found, BindError> {
        let gone = || BindError::Gone(name.to_string());
        let pod = asked(pods.get_opt(&segment(&wanted.pod_name))).await?.ok_or_else(gone)?;
        if pod.metadata.uid.as_deref() != Some(&wanted.pod_uid) {
            return Err(gone());
        }
        match pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            Some(node) => placed(wanted, name, node),
            None => Ok(Found::Unbound(self.cluster.lock().reading.asked(&pod)?)),
        }
    }

    /// Chooses the pod's GPUs, and binds it.
    async fn assign(
        &self,
        pods: &Api<Pod>,
        wanted: &BindArguments,
        (name, asked): (&PodName, &Arc<Asked>),
    ) -> Result<(), BindError> {
        let dialect = asked.request.dialect;
        let claims = self.assume(wanted, (name, asked)).await?;
        // The lease may have been lost while waiting for a turn.
        if let Err(error) = self.lead().await {
            self.cluster.change(|cluster| cluster.unassume(name));
            return Err(error.into());
        }
        let annotations = annotations(&wanted.node, dialect, &claims);
        let phase = dialect.annotations().phase.filter(|phase| phase.is_label);
        let written = async {
            if let Some(phase) = phase {
                // API servers accept annotations in a binding, but no labels.
                let metadata =
                    json!({"uid": wanted.pod_uid, "labels": {phase.name: phase.allocating}});
                let patch = Patch::Merge(json!({"metadata": metadata}));
                let (name, how) = (segment(&wanted.pod_name), PatchParams::default());
                self::asked(pods.patch_metadata(&name, &how, &patch)).await?;
            }
            self.write(pods, wanted, &annotations).await
        };
        match written.await {
            Ok(()) => {
                self.cluster.lock().is_confirmed(name, Instant::now());
                tracing::info!(pod = &**name, node = wanted.node, claims, "bound");
            }
            Err(error) => {
                // The binding may still succeed, or an earlier one has.
                let is_open = !error.is_final()
                    || matches!(&error, CallError::Failed(error) if is_conflict(error));
                self.cluster.change(|cluster| match is_open {
                    true => cluster.is_unanswered(name),
                    false => cluster.unassume(name),
                });
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Chooses the pod's claims, which count at once. With the gate `SerialBindNode`, first waits until no other pod of
    /// the node waits for its GPUs.
    async fn assume(
        &self,
        wanted: &BindArguments,
        (name, asked): (&PodName, &Arc<Asked>),
    ) -> Result<String, BindError> {
        let node = &wanted.node;
        let until = tokio::time::Instant::now() + TURN_WITHIN;
        let mut changes = self.cluster.changes();
        loop {
            let busy = {
                let mut cluster = self.cluster.lock();
                if !cluster.is_ready() {
                    return Err(BindError::NotReady);
                }
                let busy = cluster.busy(node, name, now()).filter(|_| self.serial);
                match busy {
                    Some(pod) => pod,
                    None => return assume(&mut cluster, wanted, (name, asked)),
                }
            };
            // A stuck pod stops counting after a while without any event, so this also polls.
            let changed = tokio::time::timeout(Duration::from_secs(1), changes.changed());
            _ = tokio::time::timeout_at(until, changed).await;
            if tokio::time::Instant::now() >= until {
                return Err(BindError::Busy { node: node.clone(), pod: busy });
            }
        }
    }

    /// Writes node and claims in one call.
    async fn write(
        &self,
        pods: &Api<Pod>,
        wanted: &BindArguments,
        annotations: &BTreeMap<&'static str, String>,
    ) -> Result<(), CallError> {
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

fn placed(wanted: &BindArguments, name: &PodName, node: &str) -> Result<Found, BindError> {
    // The scheduler did not receive the answer and calls again.
    if *node == *wanted.node {
        return Ok(Found::Bound);
    }
    Err(BindError::Elsewhere { pod: name.to_string(), node: node.to_owned() })
}

fn assume(
    cluster: &mut Cluster,
    wanted: &BindArguments,
    (name, asked): (&PodName, &Arc<Asked>),
) -> Result<String, BindError> {
    let node = || wanted.node.clone();
    let request = &asked.request;
    let account = cluster.account(&wanted.node, request.dialect);
    let refused = |source| BindError::Refused { node: node(), source };
    let account = account.ok_or_else(|| BindError::Unknown(node()))?;
    let account = account.map_err(|source| refused(source.clone()))?;
    let account = cluster.beside((&wanted.node, account), cluster.counted(name));
    let factor = account.factor();
    let claims = account.place(request).map_err(refused)?;
    let holding = Holding::claimed(request, &claims, factor);
    cluster.within_quota(name, request.dialect, holding.usage(request.dialect, factor))?;
    let (pod, place) = ((&*wanted.pod_uid, asked), (&*wanted.node, holding));
    cluster.assume(name, pod, place, Instant::now());
    let slots: Vec<&str> = asked.slots.iter().map(String::as_str).collect();
    Ok(claims_text(claims, &slots, request.dialect, factor))
}

/// The annotations of a binding. `claims`: in the dialect's format.
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

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
