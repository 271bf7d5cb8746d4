//! Many pods at once: the GPUs that they got are theirs, their claims follow, and their schedulers are told before any image
//! is there. No container starts here: `PreStartContainer` comes after the pull.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dialects::gates::FeatureGates;
use dialects::table::offered;
use dialects::{Dialect, PodClaims, Share, pods};
use k8s_openapi::api::core::v1::Pod;
use limits::GpuId;
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, PreferredAllocationRequest, PreferredAllocationResponse,
};
use node::{ClusterOptions, Options};
use serde_json::json;
use session::Page;
use session::settings::OwnerSettings;

use super::support::{Agent, ApiServer, FakeKubelet, GoClient, gpu, options, shows, until};

const GPUS: u8 = 8;
const PHASE: &str = "nvidia.com/assigned-phase";
/// What fills a GPU: cores, and 800 MiB for each.
const MIXED: [u64; 8] = [5, 8, 10, 12, 13, 15, 17, 20];
/// As many as a GPU has places fit on it: a kubelet that lists pods late may give one GPU more of them than were claimed.
const EVEN: [u64; 8] = [10; 8];
const MIB_OF_CORE: u64 = 800;

struct Node {
    kubelet: FakeKubelet,
    server: ApiServer,
    agent: Option<Agent>,
    client: GoClient,
    dialect: Dialect,
    free: BTreeSet<String>,
    random: u64,
}

impl Node {
    async fn start(dialect: Dialect) -> Self {
        Self::with(dialect, "").await
    }

    async fn with(dialect: Dialect, gates: &str) -> Self {
        let mut kubelet = FakeKubelet::running();
        let server = ApiServer::start(kubelet.path()).await.unwrap();
        server.objects.put_node(json!({"metadata": {"name": "here"}}));
        let (agent, client) = agent(&mut kubelet, &server, dialect, gates).await;
        let ids =
            (0..GPUS).flat_map(|at| (0..10).map(move |place| format!("{}::{place}", gpu(at))));
        let random = u64::from(std::process::id()) << 20 | 0x9e37;
        println!("seed {random}");
        Self { kubelet, server, agent: Some(agent), client, dialect, free: ids.collect(), random }
    }

    /// It ends where it is, and another one is there.
    async fn restart(&mut self) {
        self.agent.take().unwrap().kill().await;
        let (agent, client) = agent(&mut self.kubelet, &self.server, self.dialect, "").await;
        (self.agent, self.client) = (Some(agent), client);
    }

    async fn stop(self) {
        self.agent.unwrap().stop().await.unwrap();
    }

    fn random(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % u64::try_from(end).unwrap()).unwrap()
    }

    /// Its scheduler binds a pod.
    fn bind(&self, name: &str, on: u8, cores: u64) {
        let mib = cores * MIB_OF_CORE;
        let (labels, annotations, units) = match self.dialect {
            Dialect::Hami => {
                let text = format!("{},NVIDIA,{mib},{cores}:;", gpu(on));
                let lock = format!("2026-11-28T12:00:00Z,default,{name}");
                let node = json!({"metadata": {"name": "here", "annotations": {"hami.io/mutex.lock": lock}}});
                self.server.objects.put_node(node);
                let all = json!({"hami.io/bind-phase": "allocating", "hami.io/vgpu-devices-to-allocate": text,
                    "hami.io/vgpu-devices-allocated": text});
                (json!({}), all, ["nvidia.com/gpucores", "nvidia.com/gpumem"])
            }
            _ => {
                let text = format!("main[{on}_{}_{cores}_{mib}]", gpu(on));
                let all = json!({"nvidia.com/pre-allocated": text, "nvidia.com/predicate-time": "1716199325"});
                (
                    json!({PHASE: "allocating"}),
                    all,
                    ["nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"],
                )
            }
        };
        let limits = json!({resource(self.dialect): "1", units[0]: cores.to_string(), units[1]: mib.to_string()});
        self.server.objects.change(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"),
                "labels": labels, "annotations": annotations},
            "spec": {"nodeName": "here", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }));
    }

    /// The kubelet admits a pod, and begins to pull. Returns its folder.
    async fn admit(&mut self, name: &str) -> String {
        let ask = ContainerPreferredAllocationRequest {
            available_device_i_ds: self.free.iter().cloned().collect(),
            must_include_device_i_ds: vec![],
            allocation_size: 1,
        };
        let ask = PreferredAllocationRequest { container_requests: vec![ask] };
        let answer: PreferredAllocationResponse =
            self.client.call("GetPreferredAllocation", &ask).await.unwrap();
        self.give(name, &answer.container_responses[0].device_i_ds.clone()).await
    }

    async fn give(&mut self, name: &str, ids: &[String]) -> String {
        assert!(self.free.remove(&ids[0]), "{ids:?}");
        let ask = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
        let ask = AllocateRequest { container_requests: vec![ask] };
        let answer: AllocateResponse = self.client.call("Allocate", &ask).await.unwrap();
        self.kubelet.pods.give(name, "main", resource(self.dialect), ids);
        answer.container_responses[0].envs["SLUICE_ALLOCATION"].clone()
    }

    fn pod(&self, name: &str) -> Pod {
        serde_json::from_value(self.server.objects.pod(name).unwrap()).unwrap()
    }

    fn is_told(&self, name: &str) -> bool {
        pods::has_succeeded(&self.pod(name), self.dialect)
    }

    /// What is claimed for a pod, which is what it has.
    fn part(&self, name: &str, key: &str) -> (GpuId, Share) {
        let folder = self.kubelet.path().join("allocations").join(key);
        let settings = OwnerSettings::of(&folder).unwrap();
        assert_eq!(settings.name.unwrap(), format!("default/{name}/main"));
        let [gpu] = settings.devices.unwrap()[..] else { panic!("one GPU is asked for") };
        let page =
            Page::open_existing(&folder.join("session").join(format!("{gpu}.page"))).unwrap();
        let limits = page.look().unwrap().limits();
        let cores = u64::from(limits.compute.share_ppm) / 10_000;
        let share = Share { cores, memory_mib: limits.memory.unwrap().limit >> 20 };
        let pod = self.pod(name);
        let claims = pods::claims(&pod, self.dialect, NonZeroU32::MIN).unwrap();
        let real = pods::real(&pod, self.dialect, NonZeroU32::MIN).unwrap();
        let one = |claims: &PodClaims| {
            let claim = claims.of("main").unwrap()[0];
            (claim.gpu, Share { cores: claim.cores, memory_mib: claim.memory_mib })
        };
        assert_eq!((one(&claims), one(&real)), ((gpu, share), (gpu, share)), "{name}");
        (gpu, share)
    }
}

fn resource(dialect: Dialect) -> &'static str {
    if dialect == Dialect::Hami { "nvidia.com/gpu" } else { "nvidia.com/vgpu-number" }
}

async fn agent(
    kubelet: &mut FakeKubelet,
    server: &ApiServer,
    dialect: Dialect,
    gates: &str,
) -> (Agent, GoClient) {
    let kubeconfig = Some(server.kubeconfig.clone());
    let cluster = Some(ClusterOptions { node: "here".to_owned(), kubeconfig });
    let (dialects, memory_factor) = (vec![dialect], NonZeroU32::MIN);
    let gates: FeatureGates = gates.parse().unwrap();
    let count = offered(&dialects, &gates).len();
    let wanted = Options { cluster, dialects, gates, memory_factor, ..options(kubelet.path()) };
    let agent = Agent::start(wanted, shows(GPUS));
    let mut clients = BTreeMap::new();
    while clients.len() < count {
        let (request, client) = kubelet.registered().await;
        clients.insert(request.resource_name, client);
    }
    (agent, clients.remove(resource(dialect)).unwrap())
}

/// Returns how many pods are on another GPU than their scheduler had claimed.
async fn sixty_four_at_once(cores: [u64; 8], lists_first: bool) -> usize {
    let mut node = Node::start(Dialect::VgpuManager).await;
    let mut names = Vec::new();
    for (at, cores) in (0..GPUS).flat_map(|on| cores.map(|cores| (on, cores))).enumerate() {
        let name = format!("pod-{at}");
        node.bind(&name, cores.0, cores.1);
        names.push((name, gpu(cores.0)));
    }
    let begun = Instant::now();
    // Kubelets order pods by the second of their creation.
    for at in (1..names.len()).rev() {
        let other = node.random(at + 1);
        names.swap(at, other);
    }
    let mut keys = BTreeMap::new();
    for (name, _) in &names {
        if lists_first {
            node.kubelet.pods.admit(name, "main");
        }
        keys.insert(name.clone(), node.admit(name).await);
    }
    let are_told = || {
        let events = node.server.objects.written("POST", "/events");
        assert!(events.is_empty(), "{events:?}");
        names.iter().all(|(name, _)| node.is_told(name))
    };
    until("all schedulers are told", are_told).await;
    let took = begun.elapsed();
    let mut sums: BTreeMap<GpuId, Share> = BTreeMap::new();
    let mut elsewhere = 0;
    for (name, claimed) in &names {
        let (gpu, share) = node.part(name, &keys[name]);
        let sum = sums.entry(gpu).or_default();
        (sum.cores, sum.memory_mib) = (sum.cores + share.cores, sum.memory_mib + share.memory_mib);
        elsewhere += usize::from(gpu != *claimed);
    }
    assert!(sums.values().all(|sum| sum.cores <= 100 && sum.memory_mib <= 81_559), "{sums:?}");
    println!("64 pods told within {took:.1?}, {elsewhere} on other GPUs than claimed");
    assert!(took < Duration::from_secs(30), "{took:?}");
    node.stop().await;
    elsewhere
}

/// `SLUICE_FAULTS=1` makes 20 rounds.
fn rounds() -> u32 {
    if std::env::var_os("SLUICE_FAULTS").is_some() { 20 } else { 1 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_pods_that_fill_eight_gpus_get_those_that_were_claimed() {
    for _ in 0..rounds() {
        assert_eq!(sixty_four_at_once(MIXED, true).await, 0);
    }
}

/// A kubelet that lists pods when they have something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claims_of_pods_that_are_taken_for_each_other_follow() {
    for _ in 0..rounds() {
        assert!(sixty_four_at_once(EVEN, false).await > 0, "none is taken for another");
    }
}

/// As the extender does with SerialBindNode: the next pod when the one before has its GPU.
#[tokio::test]
async fn pods_that_are_bound_one_after_the_other_wait_for_no_image() {
    let mut node = Node::start(Dialect::VgpuManager).await;
    let begun = Instant::now();
    for at in 0..8 {
        let name = format!("pod-{at}");
        node.bind(&name, 0, 10);
        node.kubelet.pods.admit(&name, "main");
        node.admit(&name).await;
        while !node.is_told(&name) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    let took = begun.elapsed();
    println!("8 pods bound within {took:.1?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    node.stop().await;
}

fn is_locked(node: &Node) -> bool {
    node.server.objects.node("here").unwrap()["metadata"]["annotations"]["hami.io/mutex.lock"]
        .is_string()
}

#[tokio::test]
async fn hamis_lock_is_released_before_the_image_is_there() {
    let mut node = Node::start(Dialect::Hami).await;
    let mut longest = Duration::ZERO;
    for at in 0..8 {
        let name = format!("pod-{at}");
        node.bind(&name, at, 10);
        let begun = Instant::now();
        node.kubelet.pods.admit(&name, "main");
        let key = node.admit(&name).await;
        until("it is released", || !is_locked(&node)).await;
        longest = longest.max(begun.elapsed());
        assert!(node.is_told(&name));
        node.part(&name, &key);
    }
    println!("the lock is held for {longest:.1?} at most");
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    node.stop().await;
}

#[tokio::test]
async fn an_agent_that_ends_between_allocate_and_telling_tells_when_it_is_back() {
    for dialect in [Dialect::VgpuManager, Dialect::Hami] {
        let mut node = Node::start(dialect).await;
        node.bind("pod", 0, 10);
        node.kubelet.pods.refuses.store(true, Ordering::Release);
        let ids = [format!("{}::3", gpu(5))];
        let key = node.give("pod", &ids).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!node.is_told("pod"));
        node.restart().await;
        node.kubelet.pods.refuses.store(false, Ordering::Release);
        until("its scheduler is told", || node.is_told("pod")).await;
        until("the lock is released", || !is_locked(&node)).await;
        assert_eq!(node.part("pod", &key).0, gpu(5));
        node.stop().await;
    }
}

/// A kubelet gives a container one resource after the other.
#[tokio::test]
async fn a_container_has_its_limits_when_the_kubelet_has_given_it_all_that_it_counts() {
    let mut node = Node::with(Dialect::VgpuManager, "CorePlugin=true").await;
    node.bind("pod", 0, 10);
    node.kubelet.pods.admit("pod", "main");
    let key = node.admit("pod").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!node.is_told("pod"));
    let cores: Vec<String> = (0..10).map(|at| format!("{}::c{at}", gpu(3))).collect();
    node.kubelet.pods.give("pod", "main", "nvidia.com/vgpu-cores", &cores);
    until("its scheduler is told", || node.is_told("pod")).await;
    assert_eq!(node.part("pod", &key).0, gpu(0));
    node.stop().await;
}
