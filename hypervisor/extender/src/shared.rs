//! The cluster, shared by watches and calls.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api_server::CallError;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::binder::ANSWERS_WITHIN;
use crate::cluster::{Cluster, Reading};
use crate::waiting::Wake;

/// How often unanswered bindings are checked.
const EXPIRES_EVERY: Duration = Duration::from_secs(5);
/// How long to retry waking a pod. kube-scheduler retries each pod after 5 minutes by itself.
const WAKES_WITHIN: Duration = Duration::from_secs(300);
/// The pod annotation whose change wakes a pod. Its value is a time.
const ROOM: &str = "sluice.dev/room";

#[derive(Clone)]
pub(crate) struct Shared {
    cluster: Arc<Mutex<Cluster>>,
    /// Notified of every change.
    news: watch::Sender<()>,
    anew: watch::Sender<u64>,
    wakes: mpsc::UnboundedSender<Vec<Wake>>,
}

impl Shared {
    /// An empty cluster, and the stream of pods to wake.
    pub(crate) fn new(reading: Reading) -> (Self, mpsc::UnboundedReceiver<Vec<Wake>>) {
        let (wakes, woken) = mpsc::unbounded_channel();
        let cluster = Arc::new(Mutex::new(Cluster::new(reading)));
        let (news, anew) = (watch::Sender::new(()), watch::Sender::new(0));
        (Self { cluster, news, anew, wakes }, woken)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the cluster and notifies those who wait for changes.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = self.lock();
        change(&mut cluster);
        let wake = cluster.wake();
        drop(cluster);
        self.news.send_replace(());
        if !wake.is_empty() {
            // Fails only while the program ends.
            _ = self.wakes.send(wake);
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// The lease is this extender's still: pods that were put off are to be woken.
    pub(crate) fn has_lease(&self) {
        self.change(|cluster| cluster.waiting.has_lease());
    }

    /// Requests new lists of nodes and pods.
    pub(crate) fn start_anew(&self) {
        let generation = self.lock().is_behind();
        self.anew.send_replace(generation);
    }

    /// Watches objects of a kind. Never returns.
    async fn keep<K>(
        &self,
        client: Client,
        kind: &'static str,
        apply: impl Fn(&mut Cluster, Event<K>, u64),
    ) where
        K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let mut anew = self.anew.subscribe();
        loop {
            let generation = *anew.borrow_and_update();
            let all = watcher::Config::default();
            let events = api_server::watched(Api::<K>::all(client.clone()), kind, all);
            let told = events.for_each(|event| {
                self.change(|cluster| apply(cluster, event, generation));
                std::future::ready(())
            });
            tokio::select! {
                biased;
                _ = anew.changed() => {}
                () = told => {}
            }
        }
    }

    pub(crate) async fn keep_nodes(&self, client: Client) {
        let apply = |cluster: &mut Cluster, event: Event<Node>, generation| match event {
            Event::Init => cluster.nodes_are_told_anew(),
            Event::InitApply(node) | Event::Apply(node) => cluster.apply_node(&node),
            Event::InitDone => cluster.all_nodes_are_told(generation),
            Event::Delete(node) => cluster.delete_node(&node),
        };
        self.keep(client, "nodes", apply).await;
    }

    pub(crate) async fn keep_pods(&self, client: Client) {
        let apply = |cluster: &mut Cluster, event: Event<Pod>, generation| match event {
            Event::Init => cluster.pods_are_told_anew(),
            Event::InitApply(pod) | Event::Apply(pod) => cluster.apply_pod(&pod),
            Event::InitDone => cluster.all_pods_are_told(generation),
            Event::Delete(pod) => cluster.delete_pod(&pod),
        };
        self.keep(client, "pods", apply).await;
    }

    pub(crate) async fn keep_quotas(&self, client: Client) {
        let apply = |cluster: &mut Cluster, event: Event<ResourceQuota>, _| match event {
            Event::Init => cluster.quotas.are_told_anew(),
            Event::InitApply(quota) | Event::Apply(quota) => cluster.apply_quota(&quota),
            Event::InitDone => cluster.all_quotas_are_told(),
            Event::Delete(quota) => cluster.delete_quota(&quota),
        };
        self.keep(client, "resourcequotas", apply).await;
    }

    /// Drops outdated bindings periodically. Never returns.
    pub(crate) async fn keep_time(&self) {
        loop {
            tokio::time::sleep(EXPIRES_EVERY).await;
            self.change(|cluster| cluster.expire(Instant::now()));
        }
    }
}

/// Wakes pods. Never returns.
pub(crate) async fn wake(client: Client, mut woken: mpsc::UnboundedReceiver<Vec<Wake>>) {
    while let Some(wakes) = woken.recv().await {
        for wake in wakes {
            tokio::spawn(wake_one(client.clone(), wake));
        }
    }
}

async fn wake_one(client: Client, Wake { name, uid }: Wake) {
    let Some((namespace, pod)) = name.split_once('/') else { return };
    let pods: Api<Pod> = Api::namespaced(client, &api_server::segment(namespace));
    let now = Timestamp::now().to_string();
    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {ROOM: now}}}));
    let (pod, how) = (api_server::segment(pod), PatchParams::default());
    let call = || pods.patch_metadata(&pod, &how, &patch);
    let failed = |error: &CallError| tracing::warn!(pod = &*name, %error, "has room: not told yet");
    match api_server::insisted(ANSWERS_WITHIN, WAKES_WITHIN, call, failed).await {
        Ok(_) => tracing::info!(pod = &*name, "has room: kube-scheduler is told"),
        // It has gone, or kube-scheduler finds it by itself after some minutes.
        Err(error) => tracing::warn!(pod = &*name, %error, "has room: not told"),
    }
}
