//! Pods that were refused on every node, and which of them to wake when a GPU has room again, or a quota. No I/O and no
//! clock.
//!
//! kube-scheduler tries a refused pod again when its own watch tells of a change. If it calls before the extender's watch
//! has told the same, the pod is refused once more, and nothing follows for minutes. So the extender changes an annotation
//! of the pod as soon as there is room: an update of an unscheduled pod queues it again in every version.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use placement::{Account, Holding, Usage};

use crate::cluster::{Asked, Cluster, PodName, name_of, namespace_of};

/// kube-scheduler has retried each waiting pod after this time, so pods that were not retried are gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1800);

/// How many pods that have gone are remembered.
const MOST_GONE: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pods: BTreeMap<PodName, Refused>,
    /// Those that got no answer, with their UIDs, because not everything was heard of. kube-scheduler may leave them for minutes.
    unanswered: BTreeMap<PodName, String>,
    /// Another extender held the lease when they came.
    is_withheld: bool,
    /// UIDs of pods that have gone. kube-scheduler may retry one, which would then wait in front of others.
    gone: VecDeque<String>,
    /// Nodes that may have more room than before.
    roomier: BTreeSet<Arc<str>>,
    /// Namespaces whose quotas may leave more than before.
    freer: BTreeSet<String>,
}

#[derive(Debug)]
struct Refused {
    uid: String,
    asked: Arc<Asked>,
    /// By their numbers, in order: kube-scheduler has nothing against these nodes. None: a quota refuses the pod.
    nodes: Vec<u32>,
    /// kube-scheduler's order: higher priority first, then the older pod.
    rank: (core::cmp::Reverse<i32>, String),
    at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) name: PodName,
    pub(crate) uid: String,
}

impl Waiting {
    /// A pod fits none of these nodes, which are named by their numbers, or, without nodes, exceeds a quota.
    pub(crate) fn refuse(
        &mut self,
        name: PodName,
        (pod, asked): (&Pod, Arc<Asked>),
        mut nodes: Vec<u32>,
        at: Instant,
    ) {
        nodes.sort_unstable();
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref();
        // Times in one format, so that text order is time order.
        let created = created.map(|time| time.0.to_string()).unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.gone.contains(&uid) {
            return;
        }
        let rank = (core::cmp::Reverse(priority), created);
        self.forget(&name);
        self.pods.insert(name, Refused { uid, asked, nodes, rank, at });
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.pods.remove(name);
        self.unanswered.remove(name);
    }

    /// Records a pod that was neither refused nor given a node.
    pub(crate) fn put_off(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.unanswered.insert(name_of(pod), uid);
    }

    /// Like [`Self::put_off`], because another extender holds the lease.
    pub(crate) fn withhold(&mut self, pod: &Pod) {
        self.is_withheld = true;
        self.put_off(pod);
    }

    /// Whether pods wait for the lease.
    pub(crate) fn wants_lease(&self) -> bool {
        self.is_withheld && !self.unanswered.is_empty()
    }

    /// Records that this extender holds the lease.
    pub(crate) fn has_lease(&mut self) {
        self.is_withheld = false;
    }

    pub(crate) fn has_gone(&mut self, uid: String) {
        self.gone.truncate(MOST_GONE - 1);
        self.gone.push_front(uid);
    }

    /// Records that a node may have more room than before.
    pub(crate) fn has_room(&mut self, node: &Arc<str>) {
        if !self.pods.is_empty() {
            self.roomier.insert(Arc::clone(node));
        }
    }

    /// The quotas of a namespace may leave more than before.
    pub(crate) fn has_quota(&mut self, namespace: &str) {
        if !self.pods.is_empty() {
            self.freer.insert(namespace.to_owned());
        }
    }

    pub(crate) fn quotas_have_changed(&mut self) {
        self.freer.extend(self.pods.keys().map(|name| namespace_of(name).to_owned()));
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.pods.retain(|_, pod| now.saturating_duration_since(pod.at) < FORGOTTEN_AFTER);
    }
}

impl Cluster {
    /// Those that have room now, all at once: each is refused again before it is told a second time.
    pub(crate) fn wake(&mut self) -> Vec<Wake> {
        let unanswered = match self.is_ready() && !self.waiting.is_withheld {
            true => core::mem::take(&mut self.waiting.unanswered),
            false => BTreeMap::new(),
        };
        let mut woken = self.with_room();
        woken.extend(self.within_quotas());
        woken.iter().for_each(|wake| self.waiting.forget(&wake.name));
        woken.extend(unanswered.into_iter().map(|(name, uid)| Wake { name, uid }));
        woken
    }

    /// Those that a quota refused, and no quota does now.
    fn within_quotas(&mut self) -> Vec<Wake> {
        let freer = core::mem::take(&mut self.waiting.freer);
        if freer.is_empty() {
            return Vec::new();
        }
        let is_freer = |(name, pod): &(&PodName, &Refused)| {
            pod.nodes.is_empty() && freer.contains(namespace_of(name))
        };
        let mut order: Vec<(&PodName, &Refused)> =
            self.waiting.pods.iter().filter(is_freer).collect();
        order.sort_by_key(|(_, pod)| &pod.rank);
        let mut left: BTreeMap<(&str, dialects::Dialect), Usage> = BTreeMap::new();
        let mut woken = Vec::new();
        for (name, Refused { uid, asked, .. }) in order {
            let dialect = asked.request.dialect;
            let before = left.entry((namespace_of(name), dialect)).or_default();
            let with = *before + asked.usage();
            if self.within_quota(name, dialect, with).is_ok() {
                *before = with;
                woken.push(Wake { name: Arc::clone(name), uid: uid.clone() });
            }
        }
        woken
    }

    fn with_room(&mut self) -> Vec<Wake> {
        let roomier = core::mem::take(&mut self.waiting.roomier);
        if roomier.is_empty() || self.waiting.pods.is_empty() {
            return Vec::new();
        }
        let mut order: Vec<&PodName> = self.waiting.pods.keys().collect();
        order.sort_by_key(|name| &self.waiting.pods[*name].rank);
        let mut left: BTreeMap<(&str, dialects::Dialect), Account> = BTreeMap::new();
        let mut woken = Vec::new();
        for name in order {
            let Refused { uid, asked, nodes, .. } = &self.waiting.pods[name];
            let request = &asked.request;
            let is_possible = |node: &&Arc<str>| {
                self.node(node).is_some_and(|known| nodes.binary_search(&known.number).is_ok())
            };
            for node in roomier.iter().filter(is_possible) {
                let account = match left.get_mut(&(&**node, request.dialect)) {
                    Some(account) => account,
                    None => match self.account(node, request.dialect) {
                        Some(Ok(account)) => {
                            left.entry((node, request.dialect)).or_insert_with(|| account.clone())
                        }
                        _ => continue,
                    },
                };
                if let Ok(claims) = account.place(request) {
                    account.take(&Holding::claimed(request, &claims, account.factor()));
                    woken.push(Wake { name: Arc::clone(name), uid: uid.clone() });
                    break;
                }
            }
        }
        woken
    }
}
