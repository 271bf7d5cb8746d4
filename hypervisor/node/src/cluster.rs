//! The connection to the API server: watches this node's pods and writes events, annotations and outcomes for people
//! and schedulers.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api_server::{
    CallError, ConnectError, answered, insisted, is_conflict, on_node, segment, watched,
};
use dialects::pods::{self, has_ended};
use dialects::{Dialect, PodClaims, ResourceNames};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use limits::{GpuId, Policy};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cordon::{self, CORDONED};
use crate::events::{Events, Kind, Told};
use crate::identity::Holder;
use crate::outcomes::{Outcomes, Word};
use crate::words;

/// Timeout of one answer of the API server.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// Timeout of a list while the kubelet waits for `Allocate`.
const LISTS_WITHIN: Duration = Duration::from_secs(2);
/// How long to retry writing what a scheduler or a controller waits for.
const INSISTS: Duration = Duration::from_secs(300);

/// How to reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The name of this node.
    pub node: String,
    /// Path of the kubeconfig. `None`: the service account mounted into the pod.
    pub kubeconfig: Option<PathBuf>,
}

/// How requests of the cluster's pods are read.
pub(crate) struct Meaning {
    pub(crate) dialects: Arc<[Dialect]>,
    /// The resource names that the cluster uses.
    pub(crate) names: ResourceNames,
    /// The node's memory factor: MiB per memory unit.
    pub(crate) factor: NonZeroU32,
}

/// A handle to the API server for this node.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    node: Arc<str>,
    pods: Store<Pod>,
    /// Notified whenever a pod event arrives.
    heard: watch::Sender<()>,
    events: Events,
    reschedule: bool,
    policy: Arc<Mutex<Policy>>,
    cordoned: watch::Sender<BTreeSet<GpuId>>,
    factor: NonZeroU32,
    names: Arc<ResourceNames>,
    outcomes: Arc<Mutex<Outcomes>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The future that keeps [`Cluster`] up to date.
pub(crate) type Keep = std::pin::Pin<Box<dyn Future<Output = Infallible> + Send>>;

impl Cluster {
    /// Connects and begins to watch this node's pods; the watch runs while the returned future is polled.
    pub(crate) async fn of(
        options: &ClusterOptions,
        meaning: Meaning,
        reschedule: bool,
        cordoned: watch::Sender<BTreeSet<GpuId>>,
    ) -> Result<(Self, Keep), ConnectError> {
        let client = api_server::client(options.kubeconfig.as_deref()).await?;
        let Meaning { dialects, names, factor } = meaning;
        let (pods, mut writer) = store();
        let node: Arc<str> = options.node.as_str().into();
        let cluster = Self {
            client: client.clone(),
            node: Arc::clone(&node),
            pods,
            heard: watch::Sender::new(()),
            events: Events::new(client.clone(), node),
            reschedule,
            policy: Arc::default(),
            cordoned,
            factor,
            names: names.into(),
            outcomes: Arc::default(),
        };
        let own = watcher::Config::default().fields(&on_node(&options.node));
        let events = watched(Api::<Pod>::all(client), "pods", own);
        let keep = cluster.clone();
        let keep = async move {
            keep.watch(events, &dialects, |event| writer.apply_watcher_event(event)).await
        };
        Ok((cluster, Box::pin(keep)))
    }

    async fn watch(
        self,
        events: impl Stream<Item = watcher::Event<Pod>>,
        dialects: &[Dialect],
        mut apply: impl FnMut(&watcher::Event<Pod>),
    ) -> Infallible {
        // Pods are stored with the original resource names.
        let names = Arc::clone(&self.names);
        let read = |event| match event {
            watcher::Event::Apply(pod) => watcher::Event::Apply(names.pod(&pod).into_owned()),
            watcher::Event::InitApply(pod) => {
                watcher::Event::InitApply(names.pod(&pod).into_owned())
            }
            other => other,
        };
        let mut events = std::pin::pin!(events.map(read));
        while let Some(event) = events.next().await {
            apply(&event);
            self.heard.send_replace(());
            match event {
                watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                    self.look_at(pod, dialects);
                }
                watcher::Event::Delete(pod) => self.forget(&pod),
                watcher::Event::InitDone => self.forget_others(),
                watcher::Event::Init => {}
            }
        }
        // The watch has no end.
        std::future::pending().await
    }

    /// Reschedules a pod whose `Allocate` failed. The kubelet marks such a pod as failed without naming the device
    /// plugin.
    fn look_at(&self, pod: Pod, dialects: &[Dialect]) {
        let status = pod.status.as_ref();
        let failed = status.is_some_and(|status| {
            status.phase.as_deref() == Some("Failed")
                && status.reason.as_deref() == Some("UnexpectedAdmissionError")
        });
        let is_ours = || {
            pods::containers(&pod).any(|one| matches!(pods::need(&pod, one, dialects), Ok(Some(_))))
        };
        if self.reschedule && failed && pod.metadata.deletion_timestamp.is_none() && is_ours() {
            let cluster = self.clone();
            tokio::spawn(async move { cluster.reschedule(&pod).await });
        }
    }

    fn forget(&self, pod: &Pod) {
        self.outcomes().forget(uid(pod));
    }

    /// Forgets pods that were deleted while the watch was interrupted: no event tells of them.
    fn forget_others(&self) {
        let present: BTreeSet<String> =
            self.pods.state().iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        self.outcomes().keep(&present);
    }

    fn outcomes(&self) -> std::sync::MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn name(&self) -> &str {
        &self.node
    }

    /// The policy for pods that name none.
    pub(crate) fn policy(&self) -> Policy {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads this pod from the API server: the watched pod may be gone and its name reused.
    pub(crate) async fn pod(&self, holder: &Holder) -> Result<Option<Arc<Pod>>, CallError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &segment(&holder.namespace));
        let found = answered(ANSWERS_WITHIN, pods.get_opt(&segment(&holder.pod))).await?;
        Ok(found.map(|pod| Arc::new(self.names.pod(&pod).into_owned())))
    }

    /// The watched pods of this node.
    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.state()
    }

    /// Notified of every later pod event.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.heard.subscribe()
    }

    /// Lists this node's pods at the API server: the kubelet may know a pod before the watch does.
    pub(crate) async fn list(&self) -> Result<Vec<Arc<Pod>>, CallError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let own = ListParams::default().fields(&on_node(&self.node));
        let listed = answered(LISTS_WITHIN, pods.list(&own)).await?;
        let read = |pod: &Pod| Arc::new(self.names.pod(pod).into_owned());
        Ok(listed.items.iter().map(read).collect())
    }

    /// Records that a container has its GPUs. If all of the pod's containers have theirs (`is_all`), tells the
    /// scheduler.
    pub(crate) fn allocated(
        &self,
        pod: &Arc<Pod>,
        container: &str,
        real: (Dialect, PodClaims),
        is_all: bool,
    ) {
        let number = self.outcomes().started(uid(pod), container, real);
        if is_all {
            self.write(pod, number);
        }
    }

    /// Records that a running container's share of its GPUs has changed.
    pub(crate) fn changed(&self, pod: &Arc<Pod>, real: (Dialect, PodClaims)) {
        let number = self.outcomes().changed(uid(pod), real);
        self.write(pod, number);
    }

    fn write(&self, pod: &Arc<Pod>, number: u64) {
        let (cluster, pod) = (self.clone(), Arc::clone(pod));
        tokio::spawn(async move { cluster.write_outcome(&pod, number).await });
    }

    /// Tells a pod's scheduler the outcome of its containers, unless a newer outcome exists.
    async fn write_outcome(&self, pod: &Pod, number: u64) {
        let pods = self.pods_beside(pod);
        let (name, how) = (&segment(name(pod)), PatchParams::default());
        let write = || async {
            loop {
                let now = pods.get_opt(name).await?.filter(|now| uid(now) == uid(pod));
                let Some(now) = now else { return Ok(None) };
                let word = self
                    .outcomes()
                    .latest(uid(pod), number)
                    .map(|last| last.word(&now, self.factor));
                let Some(Word { metadata, lock }) = word else { return Ok(None) };
                if metadata.is_null() {
                    return Ok(lock);
                }
                let patch = Patch::Merge(json!({"metadata": metadata}));
                match pods.patch_metadata(name, &how, &patch).await {
                    Ok(_) => return Ok(lock),
                    // The pod has changed meanwhile: reads it again.
                    Err(error) if is_conflict(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        if let Ok(Some((lock, is_its_without_name))) = insist(name, write).await {
            self.release(lock, pod, is_its_without_name).await;
        }
    }

    /// Releases the node lock that the scheduler of some dialects holds until its pod has its devices.
    async fn release(&self, lock: &str, pod: &Pod, is_its_without_name: bool) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let own = segment(&self.node);
        let Ok(node) = insist("the node's lock", || nodes.get(&own)).await else { return };
        let held = node.metadata.annotations.as_ref().and_then(|all| all.get(lock));
        // The lock's value is TIME, or TIME,NAMESPACE,POD.
        let named = format!(",{}", name(pod));
        let is_its = |text: &String| {
            if text.contains(',') { text.ends_with(&named) } else { is_its_without_name }
        };
        if held.is_some_and(is_its) {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {lock: Value::Null}}}));
            let how = PatchParams::default();
            let free = || nodes.patch_metadata(&own, &how, &patch);
            // `insist` logs failures.
            _ = insist("the node's lock", free).await;
        }
    }

    /// Reports that a container cannot start: an event for people, the outcome for its scheduler.
    pub(crate) fn refused(&self, pod: &Arc<Pod>, container: &str, reason: &str) {
        let Some(number) = self.outcomes().refused(uid(pod), container, reason) else { return };
        let reason = self.names.in_words(reason.to_owned());
        let (cluster, pod) = (self.clone(), Arc::clone(pod));
        tokio::spawn(async move {
            cluster.tell(&pod, Kind::Warning, "GPURefused", &reason).await;
            cluster.write_outcome(&pod, number).await;
            if cluster.reschedule {
                cluster.reschedule(&pod).await;
            }
        });
    }

    /// Like [`Self::refused`], for a container that has started and waits for its limits. Reports only the first
    /// refusal.
    pub(crate) fn refused_late(&self, pod: &Arc<Pod>, container: &str, reason: &str) {
        let is_known = self.outcomes().is_refused(uid(pod), container);
        if !is_known {
            self.refused(pod, container, reason);
        }
    }

    async fn tell(&self, pod: &Pod, kind: Kind, reason: &'static str, text: &str) {
        let told = Told::once(kind, reason, "Allocate", text.to_owned());
        self.events.tell(&pod.object_ref(&()), told).await;
    }

    pub(crate) fn events(&self) -> Events {
        self.events.clone()
    }

    /// A reference to this node for events. The kubelet and kubectl use its name as the UID.
    pub(crate) fn node(&self) -> ObjectReference {
        let name = Some(self.node.to_string());
        let (kind, api_version) = (Some("Node".to_owned()), Some("v1".to_owned()));
        ObjectReference { api_version, kind, uid: name.clone(), name, ..ObjectReference::default() }
    }

    /// This node's pods that have not ended, by namespace and name.
    pub(crate) fn present(&self) -> BTreeMap<(String, String), Arc<Pod>> {
        let pods = self.pods.state().into_iter();
        let pods = pods.filter(|pod| !has_ended(pod) && pod.metadata.deletion_timestamp.is_none());
        let named = |pod: Arc<Pod>| {
            let (namespace, name) = (pod.metadata.namespace.clone()?, pod.metadata.name.clone()?);
            Some(((namespace, name), pod))
        };
        pods.filter_map(named).collect()
    }

    /// Deletes a pod that a controller will recreate.
    async fn reschedule(&self, pod: &Pod) {
        let meta = &pod.metadata;
        let name = name(pod);
        let owners = meta.owner_references.iter().flatten();
        if !owners.into_iter().any(|owner| owner.controller == Some(true)) {
            let text = "it is not deleted: no controller would make it anew";
            self.tell(pod, Kind::Warning, "NotRescheduled", text).await;
            return;
        }
        let text = "it is deleted, so that its controller makes a new one";
        self.tell(pod, Kind::Normal, "Rescheduled", text).await;
        let (pods, segment) = (self.pods_beside(pod), segment(name));
        let preconditions = Some(Preconditions { uid: meta.uid.clone(), resource_version: None });
        let how = DeleteParams { preconditions, ..DeleteParams::default() };
        if insist(name, || pods.delete(&segment, &how)).await.is_ok() {
            tracing::info!(pod = name, "deleted, so that its controller makes a new one");
        }
    }

    fn pods_beside(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        Api::namespaced(self.client.clone(), &segment(namespace))
    }

    /// Writes those of the node's annotations that differ. Leaves others untouched.
    pub(crate) async fn annotate_node(
        &self,
        wanted: &[(&'static str, String)],
    ) -> Result<(), CallError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let own = segment(&self.node);
        let written = async {
            let node = answered(ANSWERS_WITHIN, nodes.get(&own)).await?;
            let present = node.metadata.annotations.unwrap_or_default();
            self.take_policy(present.get(dialects::table::COMPUTE_POLICY).map(String::as_str));
            self.take_cordoned(present.get(CORDONED).map_or("", String::as_str)).await;
            let differ = wanted.iter().filter(|(name, value)| present.get(*name) != Some(value));
            let patch: serde_json::Map<String, Value> =
                differ.map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
            if patch.is_empty() {
                return Ok(());
            }
            let patch = Patch::Merge(json!({"metadata": {"annotations": patch}}));
            let how = PatchParams::default();
            let patched = nodes.patch_metadata(&own, &how, &patch);
            answered(ANSWERS_WITHIN, patched).await.map(drop)
        };
        written.await.inspect_err(|error: &CallError| {
            tracing::warn!(%error, "the node's annotations are not written");
        })
    }

    /// Applies the cordon annotation. An invalid one leaves the cordoned GPUs as they were.
    async fn take_cordoned(&self, text: &str) {
        let told = match cordon::cordoned(text) {
            Ok(gpus) if *self.cordoned.borrow() == gpus => return,
            Ok(gpus) => {
                let note = cordon::told(&gpus);
                tracing::info!(note, "cordoned GPUs have changed");
                self.cordoned.send_replace(gpus);
                Told::once(Kind::Normal, "GPUsCordoned", "Cordon", note)
            }
            Err(error) => {
                let note = error.to_string();
                tracing::warn!(note, "cordoned GPUs stay as they were");
                Told::once(Kind::Warning, "GPUCordonRefused", "Cordon", note)
            }
        };
        self.events.tell(&self.node(), told).await;
    }

    fn take_policy(&self, text: Option<&str>) {
        let policy = match text.map(words::policy).transpose() {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "of this node: fixed holds");
                Policy::Fixed
            }
        };
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}

/// Retries a write that a scheduler or a controller waits for, even while the API server is unreachable.
async fn insist<T, F>(what: &str, call: impl Fn() -> F) -> Result<T, CallError>
where
    F: Future<Output = kube::Result<T>>,
{
    let told = |error: &CallError| tracing::warn!(%error, what, "is not written yet");
    let written = insisted(ANSWERS_WITHIN, INSISTS, call, told).await;
    written.inspect_err(|error| tracing::warn!(%error, what, "is not written"))
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
