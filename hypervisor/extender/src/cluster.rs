//! The cluster as the watches show it, indexed by node. No I/O and no clock.
//!
//! Each node's account is updated pod by pod. A pod that is being bound counts on its node until the watch shows it.

use core::num::NonZeroU32;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dialects::pods::{annotation, has_ended, is_allocating, slots};
use dialects::table::NODE_CONFIG;
use dialects::topology::NODE_TOPOLOGY;
use dialects::{Dialect, PodClaims, ResourceNames};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use placement::{Account, Holding, PodRefusal, Refusal, Request, Usage};

use crate::quota::{QuotaRefusal, Quotas};
use crate::waiting::Waiting;

/// How long an unanswered binding counts that the watch does not show.
const ASSUMED_FOR: Duration = Duration::from_secs(60);
/// How long a confirmed binding counts that the watch does not show: the watch may lag.
const CONFIRMED_FOR: Duration = Duration::from_secs(600);
/// Seconds after which nobody waits any more for a pod's device allocation.
const STUCK_AFTER: u64 = 60;

/// Namespace and name of a pod.
pub(crate) type PodName = Arc<str>;

/// Joins namespace and name.
pub(crate) fn pod_name(namespace: &str, name: &str) -> PodName {
    format!("{namespace}/{name}").into()
}

pub(crate) fn namespace_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}

pub(crate) fn name_of(pod: &Pod) -> PodName {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    pod_name(&part(&pod.metadata.namespace), &part(&pod.metadata.name))
}

/// A pod's request, and the containers that its claims name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) slots: Vec<String>,
}

impl Asked {
    /// What it takes of a quota. Memory that is requested as a part of a GPU counts once the GPU is known.
    pub(crate) fn usage(&self) -> Usage {
        let units = NonZeroU32::MIN;
        let claims = PodClaims::default();
        Holding::claimed(&self.request, &claims, units).usage(self.request.dialect, units)
    }
}

/// How pods are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// The dialects whose resource names pods may use.
    pub(crate) dialects: Arc<[Dialect]>,
    /// Whether links between GPUs are considered.
    pub(crate) links: bool,
    /// The cluster's resource names.
    pub(crate) names: ResourceNames,
}

impl Reading {
    /// A pod's request. `None`: it requests no GPU.
    pub(crate) fn asked(&self, pod: &Pod) -> Result<Option<Arc<Asked>>, PodRefusal> {
        self.read(&self.names.pod(pod))
    }

    /// Like [`Self::asked`], for a pod with the original resource names.
    fn read(&self, pod: &Pod) -> Result<Option<Arc<Asked>>, PodRefusal> {
        let request = Request::of(pod, &self.dialects, self.links)?;
        Ok(request.map(|request| {
            let slots = slots(pod, request.dialect).into_iter().map(ToOwned::to_owned).collect();
            Arc::new(Asked { request, slots })
        }))
    }
}

/// A pod that requests or holds GPUs.
#[derive(Debug)]
pub(crate) struct KnownPod {
    pub(crate) uid: String,
    pub(crate) priority: i32,
    /// `None`: the pod is on a node.
    pub(crate) asked: Option<Arc<Asked>>,
    /// Its node as the watch shows it.
    node: Option<Arc<str>>,
    holding: Option<Holding>,
    /// Since when its node allocates its GPUs, in seconds since 1970.
    allocating_since: Option<u64>,
    assumed: Option<Assumed>,
}

/// The node to which a pod is being bound.
#[derive(Debug)]
struct Assumed {
    node: Arc<str>,
    holding: Holding,
    until: Instant,
    stage: Stage,
}

/// The progress of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    /// No answer: it may still succeed.
    Unanswered,
    Confirmed,
}

impl KnownPod {
    /// The pod's node, from the watch or from the answer to its binding.
    pub(crate) fn node(&self) -> Option<&str> {
        let confirmed = self.assumed.as_ref().filter(|one| one.stage == Stage::Confirmed);
        self.node.as_deref().or(confirmed.map(|one| &*one.node))
    }

    pub(crate) fn holding(&self) -> Option<&Holding> {
        self.counts()?.1
    }

    /// The node on which the pod counts, and what it holds there.
    fn counts(&self) -> Option<(&Arc<str>, Option<&Holding>)> {
        let assumed = self.assumed.as_ref().map(|one| (&one.node, Some(&one.holding)));
        self.node.as_ref().map(|node| (node, self.holding.as_ref())).or(assumed)
    }
}

#[derive(Debug)]
pub(crate) struct KnownNode {
    /// Identifies the node in compact lists.
    pub(crate) number: u32,
    /// Its registration, by annotation name.
    texts: BTreeMap<&'static str, String>,
    accounts: Vec<(Dialect, Result<Account, Refusal>)>,
}

impl KnownNode {
    /// What it has left for pods of a dialect.
    pub(crate) fn account(&self, dialect: Dialect) -> Option<Result<&Account, &Refusal>> {
        let own = self.accounts.iter().find(|(of, _)| *of == dialect)?;
        Some(own.1.as_ref())
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) reading: Reading,
    nodes: HashMap<Arc<str>, KnownNode>,
    numbers: u32,
    pods: HashMap<PodName, KnownPod>,
    /// The pods that count on each node.
    on: HashMap<Arc<str>, BTreeSet<PodName>>,
    pub(crate) waiting: Waiting,
    pub(crate) quotas: Quotas,
    /// During a new list: the objects listed so far.
    told_nodes: Option<HashSet<Arc<str>>>,
    told_pods: Option<HashSet<PodName>>,
    has_nodes: bool,
    has_pods: bool,
    has_quotas: bool,
    /// How often a new list was requested.
    generation: u64,
}

impl Cluster {
    pub(crate) fn new(reading: Reading) -> Self {
        Self {
            reading,
            nodes: HashMap::new(),
            numbers: 0,
            pods: HashMap::new(),
            on: HashMap::new(),
            waiting: Waiting::default(),
            quotas: Quotas::default(),
            told_nodes: None,
            told_pods: None,
            has_nodes: false,
            has_pods: false,
            has_quotas: false,
            generation: 0,
        }
    }

    /// Whether all nodes, pods and quotas have been listed once.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_nodes && self.has_pods && self.has_quotas
    }

    pub(crate) fn all_quotas_are_told(&mut self) {
        self.quotas.all_are_told();
        self.waiting.quotas_have_changed();
        self.has_quotas = true;
    }

    pub(crate) fn apply_quota(&mut self, quota: &ResourceQuota) {
        self.quotas.apply(quota, &self.reading.names);
        self.waiting.has_quota(quota.metadata.namespace.as_deref().unwrap_or_default());
    }

    pub(crate) fn delete_quota(&mut self, quota: &ResourceQuota) {
        self.quotas.delete(quota);
        self.waiting.has_quota(quota.metadata.namespace.as_deref().unwrap_or_default());
    }

    /// Whether a pod's namespace has enough quota left for it.
    pub(crate) fn within_quota(
        &self,
        own: &PodName,
        dialect: Dialect,
        asked: Usage,
    ) -> Result<(), QuotaRefusal> {
        let namespace = namespace_of(own);
        if !self.quotas.has(namespace) {
            return Ok(());
        }
        let usage = |pod: &KnownPod| {
            let (node, holding) = pod.counts()?;
            let account = self.account(node, dialect).and_then(Result::ok);
            let factor = account.map_or(NonZeroU32::MIN, Account::factor);
            Some(holding?.usage(dialect, factor))
        };
        let is_beside = |name: &PodName| name != own && namespace_of(name) == namespace;
        let others = self.pods.iter().filter(|(name, _)| is_beside(name));
        let used = others.filter_map(|(_, pod)| usage(pod));
        let used = used.fold(Usage::default(), |sum, one| sum + one);
        self.quotas.check(namespace, dialect, used, asked)
    }

    /// Requires new lists of pods and nodes before the cluster is ready again: another extender may have bound pods.
    pub(crate) fn is_behind(&mut self) -> u64 {
        (self.has_nodes, self.has_pods) = (false, false);
        self.waiting.has_lease();
        self.generation += 1;
        self.generation
    }

    pub(crate) fn nodes_are_told_anew(&mut self) {
        self.told_nodes = Some(HashSet::new());
    }

    pub(crate) fn all_nodes_are_told(&mut self, generation: u64) {
        if let Some(told) = self.told_nodes.take() {
            self.nodes.retain(|name, _| told.contains(name));
        }
        self.has_nodes |= generation == self.generation;
    }

    pub(crate) fn pods_are_told_anew(&mut self) {
        self.told_pods = Some(HashSet::new());
    }

    pub(crate) fn all_pods_are_told(&mut self, generation: u64) {
        if let Some(told) = self.told_pods.take() {
            // A pod that is being bound may be newer than the list.
            let is_gone = |(name, pod): &(&PodName, &KnownPod)| {
                pod.assumed.is_none() && !told.contains(*name)
            };
            let gone = self.pods.iter().filter(is_gone).map(|(name, _)| Arc::clone(name));
            let gone: Vec<PodName> = gone.collect();
            gone.iter().for_each(|name| self.remove(name));
        }
        self.has_pods |= generation == self.generation;
    }

    pub(crate) fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else { return };
        let (name, known) = match self.nodes.get_key_value(name) {
            Some((name, known)) => (Arc::clone(name), Some(known)),
            None => (Arc::from(name), None),
        };
        if let Some(told) = &mut self.told_nodes {
            told.insert(Arc::clone(&name));
        }
        let registers = self.reading.dialects.iter().filter_map(|one| one.annotations().register);
        let annotations = node.metadata.annotations.as_ref();
        let text = |name: &'static str| Some((name, annotations?.get(name)?.clone()));
        let texts: BTreeMap<_, _> =
            registers.chain([NODE_CONFIG, NODE_TOPOLOGY]).filter_map(text).collect();
        // Most node updates do not change the registration.
        if known.is_some_and(|known| known.texts == texts) {
            return;
        }
        let account = |dialect: &Dialect| {
            (*dialect, Account::of(*dialect, |name| texts.get(name).map(String::as_str)))
        };
        let accounts = self.reading.dialects.iter().map(account).collect();
        let number = known.map_or(self.numbers, |known| known.number);
        self.numbers = self.numbers.max(number.saturating_add(1));
        self.nodes.insert(Arc::clone(&name), KnownNode { number, texts, accounts });
        self.count(&name);
        self.waiting.has_room(&name);
    }

    pub(crate) fn delete_node(&mut self, node: &Node) {
        if let Some(name) = &node.metadata.name {
            self.nodes.remove(name.as_str());
        }
    }

    pub(crate) fn apply_pod(&mut self, pod: &Pod) {
        let name = name_of(pod);
        let pod = &*self.reading.names.pod(pod);
        if let Some(told) = &mut self.told_pods {
            told.insert(Arc::clone(&name));
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = node.map(|node| {
            let known = self.nodes.get_key_value(node).map(|(name, _)| Arc::clone(name));
            known.unwrap_or_else(|| node.into())
        });
        let asked = match node {
            None if !has_ended(pod) => self.reading.read(pod).ok().flatten(),
            _ => None,
        };
        let holding = node.as_ref().and_then(|_| Holding::of(pod));
        if asked.is_none() && holding.is_none() {
            self.remove(&name);
            return;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let before = self.pods.remove(&name).filter(|before| {
            // Another pod of the same name.
            let is_same = before.uid == uid;
            if !is_same {
                self.waiting.forget(&name);
            }
            is_same
        });
        let was = before.as_ref().and_then(|pod| pod.counts());
        let was = was.map(|(node, holding)| (Arc::clone(node), holding.cloned()));
        if node.is_some() {
            self.waiting.forget(&name);
        }
        let assumed = before.and_then(|pod| pod.assumed).filter(|_| node.is_none());
        let allocating_since = node.as_ref().and_then(|_| allocating_since(pod));
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
        let known = KnownPod { uid, priority, asked, node, holding, allocating_since, assumed };
        self.pods.insert(Arc::clone(&name), known);
        self.recount(&name, was);
    }

    pub(crate) fn delete_pod(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let name = name_of(pod);
        if self.pods.get(&name).is_some_and(|known| known.uid == uid) {
            self.remove(&name);
        }
        self.waiting.forget(&name);
        self.waiting.has_gone(uid);
    }

    fn remove(&mut self, name: &PodName) {
        let Some(pod) = self.pods.remove(name) else { return };
        self.waiting.forget(name);
        let was = pod.counts().map(|(node, holding)| (Arc::clone(node), holding.cloned()));
        self.recount(name, was);
    }

    /// Moves a pod's share between accounts. `was`: where it counted before, and for how much.
    fn recount(&mut self, name: &PodName, was: Option<(Arc<str>, Option<Holding>)>) {
        let is = self.pods.get(name).and_then(KnownPod::counts);
        let is = is.map(|(node, holding)| (Arc::clone(node), holding.cloned()));
        if is == was {
            return;
        }
        if let Some((node, _)) = &was {
            if let Some(pods) = self.on.get_mut(node) {
                pods.remove(name);
                if pods.is_empty() {
                    self.on.remove(node);
                }
            }
            self.count(node);
            self.waiting.has_room(node);
            self.waiting.has_quota(namespace_of(name));
        }
        if let Some((node, _)) = is {
            self.on.entry(Arc::clone(&node)).or_default().insert(Arc::clone(name));
            self.count(&node);
        }
    }

    /// Computes a node's account anew from its pods.
    fn count(&mut self, node: &str) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        let pods = self.on.get(node).into_iter().flatten();
        let holdings: Vec<&Holding> =
            pods.filter_map(|name| self.pods.get(name)?.counts()?.1).collect();
        for (_, account) in &mut known.accounts {
            if let Ok(account) = account {
                account.reset();
                holdings.iter().for_each(|holding| account.take(holding));
            }
        }
    }

    pub(crate) fn pod(&self, name: &str) -> Option<&KnownPod> {
        self.pods.get(name)
    }

    pub(crate) fn node(&self, name: &str) -> Option<&KnownNode> {
        self.nodes.get(name)
    }

    /// The pod's name and the node on which it counts.
    pub(crate) fn counted<'a>(&'a self, pod: &'a str) -> Option<(&'a str, &'a str)> {
        let (node, _) = self.pods.get(pod)?.counts()?;
        Some((pod, node))
    }

    /// A node's account for a pod that may count there itself, by [`Self::counted`].
    pub(crate) fn beside<'a>(
        &self,
        (node, account): (&str, &'a Account),
        own: Option<(&str, &str)>,
    ) -> Cow<'a, Account> {
        let Some((own, _)) = own.filter(|(_, counts_on)| *counts_on == node) else {
            return Cow::Borrowed(account);
        };
        let mut account = account.clone();
        account.reset();
        let others = self.holders(node).filter(|(name, _)| &***name != own);
        let holdings = others.filter_map(|(_, pod)| pod.counts()?.1);
        holdings.for_each(|holding| account.take(holding));
        Cow::Owned(account)
    }

    pub(crate) fn holders(&self, node: &str) -> impl Iterator<Item = (&PodName, &KnownPod)> {
        let pods = self.on.get(node).into_iter().flatten();
        pods.filter_map(|name| self.pods.get_key_value(name))
    }

    /// A node's account for pods of a dialect. `None`: the node is unknown.
    pub(crate) fn account(
        &self,
        node: &str,
        dialect: Dialect,
    ) -> Option<Result<&Account, &Refusal>> {
        self.node(node)?.account(dialect)
    }

    /// Records that a pod is being bound; it counts on the node at once.
    pub(crate) fn assume(
        &mut self,
        name: &PodName,
        (uid, asked): (&str, &Arc<Asked>),
        (node, holding): (&str, Holding),
        now: Instant,
    ) {
        let was = self.pods.get(name).and_then(KnownPod::counts);
        let was = was.map(|(node, holding)| (Arc::clone(node), holding.cloned()));
        let pod = self.pods.entry(Arc::clone(name)).or_insert_with(|| KnownPod {
            uid: uid.to_owned(),
            // The watch sets it before it is needed.
            priority: i32::MAX,
            asked: Some(Arc::clone(asked)),
            node: None,
            holding: None,
            allocating_since: None,
            assumed: None,
        });
        let (until, stage) = (now + ASSUMED_FOR, Stage::Begun);
        pod.assumed = Some(Assumed { node: node.into(), holding, until, stage });
        self.waiting.forget(name);
        self.recount(name, was);
    }

    /// Records that a binding has failed.
    pub(crate) fn unassume(&mut self, name: &PodName) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        let was = pod.counts().map(|(node, holding)| (Arc::clone(node), holding.cloned()));
        pod.assumed = None;
        self.recount(name, was);
    }

    /// Records that a binding has no answer: the pod counts, but nobody waits for its allocation.
    pub(crate) fn is_unanswered(&mut self, name: &PodName) {
        if let Some(assumed) = self.assumed(name) {
            assumed.stage = Stage::Unanswered;
        }
    }

    /// Records that a binding has succeeded.
    pub(crate) fn is_confirmed(&mut self, name: &PodName, now: Instant) {
        if let Some(assumed) = self.assumed(name) {
            (assumed.stage, assumed.until) = (Stage::Confirmed, now + CONFIRMED_FOR);
        }
    }

    fn assumed(&mut self, name: &PodName) -> Option<&mut Assumed> {
        self.pods.get_mut(name)?.assumed.as_mut()
    }

    /// Drops bindings that the watch has not confirmed in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_over = |pod: &KnownPod| pod.assumed.as_ref().is_some_and(|one| one.until <= now);
        let over: Vec<PodName> = self
            .pods
            .iter()
            .filter(|(_, pod)| is_over(pod))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        over.iter().for_each(|name| self.unassume(name));
        self.waiting.expire(now);
    }

    /// Another pod of this node that does not have its GPUs yet. `now`: seconds since 1970.
    pub(crate) fn busy(&self, node: &str, but: &str, now: u64) -> Option<PodName> {
        let is_busy = |name: &&PodName| {
            let is_allocating = |pod: &KnownPod| {
                let recent = |since: u64| now.saturating_sub(since) < STUCK_AFTER;
                let is_being_bound =
                    pod.assumed.as_ref().is_some_and(|one| one.stage != Stage::Unanswered);
                is_being_bound || pod.allocating_since.is_some_and(recent)
            };
            ***name != *but && self.pods.get(*name).is_some_and(is_allocating)
        };
        self.on.get(node)?.iter().find(is_busy).cloned()
    }
}

fn allocating_since(pod: &Pod) -> Option<u64> {
    let since = |dialect: Dialect| {
        let time = annotation(pod, dialect.annotations().time?);
        time.filter(|_| is_allocating(pod, dialect))?.parse().ok()
    };
    Dialect::ALL.into_iter().filter_map(since).max()
}
