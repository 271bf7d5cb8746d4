//! What people ask of running pods, and what they are told of them.

use std::path::{Path, PathBuf};

use limits::{ComputeLimit, MemoryLimit};
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    PreStartContainerRequest, PreStartContainerResponse,
};
use node::{ClusterOptions, Options};
use observer::Seen;
use poem::listener::{Listener, UnixListener};
use serde_json::{Value, json};
use session::ledger::RefusedFor;
use session::{Membership, Page};

use super::kubelets_side::{GIB, NUMBER};
use super::support::{Agent, ApiServer, FakeKubelet, GoClient, gpu, options, shows, until};

/// A pod with one container that asks for 10 cores and 1024 MiB of a GPU.
pub(crate) fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "annotations": annotations},
        "spec": {"nodeName": "here", "containers": [{"name": "default", "resources": {"limits": {
            "nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "10", "nvidia.com/vgpu-memory": "1024"}}}]},
    })
}

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) agent: Agent,
    pub(crate) client: GoClient,
}

pub(crate) async fn started(kubelet: &mut FakeKubelet, pods: Vec<Value>) -> Cluster {
    started_on(kubelet, pods, shows(2)).await
}

/// The same on a node that shows these devices.
pub(crate) async fn started_on(
    kubelet: &mut FakeKubelet,
    pods: Vec<Value>,
    devices: Seen,
) -> Cluster {
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    pods.into_iter().for_each(|pod| server.objects.put(pod));
    let cluster =
        ClusterOptions { node: "here".to_owned(), kubeconfig: Some(server.kubeconfig.clone()) };
    let memory_factor = 1.try_into().unwrap();
    let wanted = Options { cluster: Some(cluster), memory_factor, ..options(kubelet.path()) };
    let agent = Agent::start(wanted, devices);
    let (_, client) = kubelet.registered().await;
    Cluster { server, agent, client }
}

impl Cluster {
    /// Starts a pod's container on a place of the first GPU. Returns its page.
    pub(crate) async fn start(&self, kubelet: &FakeKubelet, pod: &str, place: u8) -> Page {
        page(&self.begin(kubelet, pod, place).await)
    }

    /// The same; its limits may come later. Returns its folder.
    pub(crate) async fn begin(&self, kubelet: &FakeKubelet, pod: &str, place: u8) -> PathBuf {
        let id = format!("{}::{place}", gpu(0));
        self.starts(kubelet, pod, "default", id).await.unwrap()
    }

    /// The same of any container, on any place.
    pub(crate) async fn starts(
        &self,
        kubelet: &FakeKubelet,
        pod: &str,
        container: &str,
        id: String,
    ) -> Result<PathBuf, String> {
        Ok(self.gets(kubelet, pod, container, id).await?.1)
    }

    /// The same, with what the kubelet is to do for it.
    pub(crate) async fn gets(
        &self,
        kubelet: &FakeKubelet,
        pod: &str,
        container: &str,
        id: String,
    ) -> Result<(ContainerAllocateResponse, PathBuf), String> {
        let ids = vec![id];
        let one = ContainerAllocateRequest { devices_i_ds: ids.clone() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse = self.client.call("Allocate", &request).await.unwrap();
        kubelet.pods.give(pod, container, NUMBER, &ids);
        let request = PreStartContainerRequest { devices_i_ds: ids };
        let started: Result<PreStartContainerResponse, _> =
            self.client.call("PreStartContainer", &request).await;
        started.map_err(|(_, said)| said.replace("%20", " "))?;
        let answer = answer.container_responses.into_iter().next().unwrap();
        let folder = kubelet.path().join("allocations").join(&answer.envs["SLUICE_ALLOCATION"]);
        Ok((answer, folder))
    }

    pub(crate) fn events(&self, reason: &str) -> Vec<Value> {
        let all = self.server.objects.written("POST", "/events").into_iter();
        all.filter(|event| event["reason"] == reason).collect()
    }
}

pub(crate) fn page(folder: &Path) -> Page {
    Page::open_existing(&folder.join("session").join(format!("{}.page", gpu(0)))).unwrap()
}

pub(crate) fn has(page: &Page, cores: u32, memory: u64) -> bool {
    let limits = page.look().unwrap().limits();
    let compute = ComputeLimit::fixed(cores * 10_000);
    limits.memory == Some(MemoryLimit::new(memory)) && limits.compute == compute
}

#[tokio::test]
async fn an_annotation_changes_a_running_containers_limits_and_its_end_takes_them_back() {
    let mut kubelet = FakeKubelet::running();
    let annotated = json!({"sluice.dev/limits": "cores=20,memory=2GiB"});
    let cluster = started(&mut kubelet, vec![pod("changed", &annotated)]).await;
    let page = cluster.start(&kubelet, "changed", 3).await;
    until("they are changed", || has(&page, 20, 2 * GIB)).await;
    until("it is told", || !cluster.events("GPULimitsChanged").is_empty()).await;
    let event = &cluster.events("GPULimitsChanged")[0];
    let note = format!(
        "limits changed: container default: {}: cores 10 -> 20, memory 1024 MiB -> 2048 MiB; seen by 0 processes",
        gpu(0)
    );
    assert_eq!((event["note"].as_str(), event["type"].as_str()), (Some(&*note), Some("Normal")));
    assert_eq!(event["regarding"]["uid"], "uid-of-changed");
    assert_eq!(event["metadata"]["namespace"], "default");
    let real = || {
        let all = cluster.server.objects.written("PATCH", "/pods/changed").into_iter();
        let one =
            |patch: Value| patch["metadata"]["annotations"]["nvidia.com/real-allocated"].clone();
        all.map(one).collect::<Vec<_>>()
    };
    let written = json!(format!("default[0_{}_20_2048]", gpu(0)));
    until("schedulers can see it", || real().contains(&written)).await;
    // What an operator changes by `sluice limit` stays: the annotation has not changed.
    let own = limits::Limits {
        memory: Some(MemoryLimit::new(GIB)),
        compute: ComputeLimit::fixed(5_0000),
    };
    page.change_limits(&own).unwrap();
    cluster.agent.stop().await.unwrap();
    // The next run has what this one knew.
    let cluster = started(&mut kubelet, vec![pod("changed", &annotated)]).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(has(&page, 5, GIB) && cluster.events("GPULimitsChanged").is_empty());
    cluster.agent.stop().await.unwrap();
    let cluster = started(&mut kubelet, vec![pod("changed", &json!({}))]).await;
    until("they are as the pod asks", || has(&page, 10, GIB)).await;
    until("it is told", || !cluster.events("GPULimitsChanged").is_empty()).await;
    let said = cluster.events("GPULimitsChanged")[0]["note"].as_str().unwrap().to_owned();
    assert!(said.contains("cores 20 -> 10, memory 2048 MiB -> 1024 MiB"), "{said}");
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn more_than_is_left_is_refused_with_the_numbers_and_changes_nothing() {
    let mut kubelet = FakeKubelet::running();
    let greedy = json!({"sluice.dev/limits": "cores=91"});
    let wrong = json!({"sluice.dev/limits": "other:cores=5"});
    let pods = vec![pod("first", &json!({})), pod("greedy", &greedy), pod("wrong", &wrong)];
    let cluster = started(&mut kubelet, pods).await;
    let first = cluster.start(&kubelet, "first", 0).await;
    let page = cluster.start(&kubelet, "greedy", 1).await;
    let other = cluster.start(&kubelet, "wrong", 2).await;
    until("both are refused", || cluster.events("GPULimitsRefused").len() >= 2).await;
    let events = cluster.events("GPULimitsRefused");
    let of = |pod: &str| {
        let event = events.iter().find(|event| event["regarding"]["name"] == pod).unwrap();
        event["note"].as_str().unwrap().to_owned()
    };
    let said = of("greedy");
    let numbers = format!("cores of {} are asked for: 91;", gpu(0));
    assert!(said.contains(&numbers) && said.contains(" of 100 are left"), "{said}");
    let said = of("wrong");
    assert!(
        said.contains("\"other\" is no container of the pod with a GPU; expected default"),
        "{said}"
    );
    for page in [&first, &page, &other] {
        assert!(has(page, 10, GIB));
    }
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn refused_memory_is_told_once_for_many() {
    let mut kubelet = FakeKubelet::running();
    let cluster = started(&mut kubelet, vec![pod("hungry", &json!({}))]).await;
    let page = cluster.start(&kubelet, "hungry", 0).await;
    let member = Membership::claim(page).unwrap();
    let refuse = |times: u64| {
        let mut ledger = member.open().unwrap();
        for _ in 0..times {
            ledger.note_refusal(RefusedFor::Limit, 2 * GIB, 1);
        }
    };
    refuse(1);
    until("it is told", || !cluster.events("GPUMemoryDenied").is_empty()).await;
    let event = &cluster.events("GPUMemoryDenied")[0];
    let note = event["note"].as_str().unwrap();
    let words =
        "GPU memory request denied: asked 2.0 GiB, limit 1.0 GiB, in use 0 B (container default, ";
    assert!(note.starts_with(words), "{note}");
    assert_eq!(
        (event["regarding"]["name"].as_str(), event["type"].as_str()),
        (Some("hungry"), Some("Warning"))
    );
    refuse(1000);
    let patches = || {
        let all = cluster.server.objects.written("PATCH", "").into_iter();
        all.filter_map(|patch| patch["series"]["count"].as_u64()).collect::<Vec<_>>()
    };
    until("they are counted to it", || !patches().is_empty()).await;
    assert_eq!((patches(), cluster.events("GPUMemoryDenied").len()), (vec![1001], 1));
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_process_without_a_session_is_told_of_the_node() {
    let mut kubelet = FakeKubelet::running();
    let socket = kubelet.path().join("daemon/hypervisor.sock");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let sums = json!({"sessions": 0, "asking": 0, "leases": 0, "share_ppm": 0, "charged_us": 0});
    let device = json!({
        "uuid": gpu(1).to_string(), "state": "idle", "unknown": 1, "unknown_seen": 1, "own": sums, "others": sums,
        "unknown_processes": [{"pid": 4711, "uid": 1000, "name": "python", "memory_bytes": 512 << 20}],
    });
    let list = json!({"devices": [device]});
    let answer =
        move || poem::Response::builder().content_type("application/json").body(list.to_string());
    let routes =
        poem::Route::new().at("/api/v1/devices", poem::endpoint::make_sync(move |_| answer()));
    let acceptor = UnixListener::bind(&socket).into_acceptor().await.unwrap();
    let daemon = tokio::spawn(poem::Server::new_with_acceptor(acceptor).run(routes));
    let cluster = started(&mut kubelet, vec![]).await;
    until("it is told", || !cluster.events("GPUProcessWithoutSession").is_empty()).await;
    let event = &cluster.events("GPUProcessWithoutSession")[0];
    let note = format!(
        "{} is used without a session, so that nothing limits it: process 4711 (python) of user 1000 with 512.0 MiB",
        gpu(1)
    );
    assert_eq!(event["note"].as_str(), Some(&*note));
    assert_eq!(
        (event["regarding"]["kind"].as_str(), event["regarding"]["uid"].as_str()),
        (Some("Node"), Some("here"))
    );
    cluster.agent.stop().await.unwrap();
    daemon.abort();
}
