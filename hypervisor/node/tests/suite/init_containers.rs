//! Init containers and sidecars with GPUs: kubelets give an init container's ids to later containers of its pod, and list no
//! init containers.

use std::path::PathBuf;
use std::time::Duration;

use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, PreStartContainerRequest,
    PreStartContainerResponse,
};
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;

use super::kubelets_side::NUMBER;
use super::people::{self, Cluster};
use super::support::{FakeKubelet, gpu, until};

fn container(name: &str, cores: u32) -> Value {
    json!({"name": name, "resources": {"limits": {
        NUMBER: "1", "nvidia.com/vgpu-cores": cores.to_string(), "nvidia.com/vgpu-memory": "1024"}}})
}

fn sidecar(name: &str, cores: u32) -> Value {
    let mut sidecar = container(name, cores);
    sidecar["restartPolicy"] = "Always".into();
    sidecar
}

fn pod(name: &str, init: &[Value], containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"),
            "labels": {"nvidia.com/assigned-phase": "allocating"}},
        "spec": {"nodeName": "here", "initContainers": init, "containers": containers},
    })
}

/// What the pod's kubelet reports of an init container.
fn status(restarts: u32, state: Value) -> Value {
    json!({"initContainerStatuses": [{"name": "fetch", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
        "state": state}]})
}

fn ended(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

struct Node {
    kubelet: FakeKubelet,
    cluster: Cluster,
}

impl Node {
    async fn with(pods: Vec<Value>) -> Self {
        let mut kubelet = FakeKubelet::running();
        let cluster = people::started(&mut kubelet, pods).await;
        Self { kubelet, cluster }
    }

    /// The agent is killed, and started again.
    async fn restarted(self, pods: Vec<Value>) -> Self {
        let Self { mut kubelet, cluster } = self;
        cluster.agent.kill().await;
        kubelet.forget_registrations();
        let cluster = people::started(&mut kubelet, pods).await;
        Self { kubelet, cluster }
    }

    /// Gives a container a place of the first GPU. Returns the folder of that.
    async fn give(&self, place: u8) -> PathBuf {
        let ids = vec![id(place)];
        let one = ContainerAllocateRequest { devices_i_ds: ids };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse =
            self.cluster.client.call("Allocate", &request).await.unwrap();
        let key = &answer.container_responses[0].envs["SLUICE_ALLOCATION"];
        self.kubelet.path().join("allocations").join(key)
    }

    /// The same of one that is listed.
    async fn give_listed(&self, pod: &str, container: &str, place: u8) -> PathBuf {
        let folder = self.give(place).await;
        self.kubelet.pods.give(pod, container, NUMBER, &[id(place)]);
        folder
    }

    async fn starts(&self, place: u8) -> Result<(), String> {
        let request = PreStartContainerRequest { devices_i_ds: vec![id(place)] };
        let answer: Result<PreStartContainerResponse, _> =
            self.cluster.client.call("PreStartContainer", &request).await;
        answer.map(drop).map_err(|(_, said)| said.replace("%20", " "))
    }

    fn report(&self, pod: &str, status: Value) {
        let objects = &self.cluster.server.objects;
        let mut pod = objects.pod(pod).unwrap();
        pod["status"] = status;
        objects.change(pod);
    }

    fn is_told(&self, pod: &str) -> bool {
        let pod = self.cluster.server.objects.pod(pod).unwrap();
        pod["metadata"]["labels"]["nvidia.com/assigned-phase"] == "succeed"
    }

    async fn stop(self) {
        self.cluster.agent.stop().await.unwrap();
    }
}

fn id(place: u8) -> String {
    format!("{}::{place}", gpu(0))
}

/// For which container a folder is, and how many cores that has.
fn whose(folder: &std::path::Path) -> Option<(String, u32)> {
    let name = OwnerSettings::of(folder).ok()?.name?;
    let page = folder.join("session").join(format!("{}.page", gpu(0)));
    let limits = Page::open_existing(&page).unwrap().look().unwrap().limits();
    Some((name.rsplit('/').next().unwrap().to_owned(), limits.compute.share_ppm / 10_000))
}

fn of(name: &str, cores: u32) -> Option<(String, u32)> {
    Some((name.to_owned(), cores))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_containers_sidecars_and_main_containers_have_each_its_own_limits() {
    let init = [container("fetch", 60), sidecar("proxy", 10)];
    let node = Node::with(vec![pod("pod", &init, &[container("main", 20)])]).await;
    // Admission: the sidecar gets the init container's id.
    node.give(0).await;
    let shared = node.give_listed("pod", "proxy", 0).await;
    let own = node.give_listed("pod", "main", 1).await;
    until("its scheduler is told before any image is there", || node.is_told("pod")).await;
    node.starts(0).await.unwrap();
    assert_eq!(whose(&shared), of("fetch", 60));
    node.report("pod", status(0, ended(1)));
    node.starts(0).await.unwrap();
    assert_eq!(whose(&shared), of("fetch", 60), "it has failed, and starts again");
    node.report("pod", status(1, json!({"running": {}})));
    // The kubelet has reported its end, and the API server does not show it yet.
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(whose(&shared), None, "nobody has limits that are not known");
        node.report("pod", status(1, ended(0)));
    };
    let (started, ()) = tokio::join!(node.starts(0), late);
    started.unwrap();
    assert_eq!(whose(&shared), of("proxy", 10));
    node.starts(1).await.unwrap();
    assert_eq!(whose(&own), of("main", 20));
    // Containers that start anew keep what they have.
    for (place, folder, expected) in [(0, &shared, of("proxy", 10)), (1, &own, of("main", 20))] {
        node.starts(place).await.unwrap();
        assert_eq!(whose(folder), expected);
    }
    node.stop().await;
}

#[tokio::test]
async fn an_init_container_is_promised_what_it_has_beyond_later_ones_until_it_has_ended() {
    let pods = vec![
        pod("pod", &[container("fetch", 60)], &[container("main", 20)]),
        pod("other", &[], &[container("main", 50)]),
    ];
    let node = Node::with(pods).await;
    node.give(0).await;
    let shared = node.give_listed("pod", "main", 0).await;
    until("its scheduler is told", || node.is_told("pod")).await;
    node.starts(0).await.unwrap();
    assert_eq!(whose(&shared), of("fetch", 60));
    let other = node.give_listed("other", "main", 1).await;
    let refused = node.starts(1).await.unwrap_err();
    assert!(refused.contains("are asked for: 50; 40 of 100 are left"), "{refused}");
    node.report("pod", status(0, ended(0)));
    node.starts(0).await.unwrap();
    assert_eq!(whose(&shared), of("main", 20));
    node.starts(1).await.unwrap();
    assert_eq!(whose(&other), of("main", 50));
    node.stop().await;
}

#[tokio::test]
async fn an_init_container_alone_has_its_limits_and_its_scheduler_is_told() {
    let main = json!({"name": "main"});
    let pods = vec![
        pod("pod", &[container("fetch", 60)], std::slice::from_ref(&main)),
        pod("other", &[], &[container("main", 50)]),
    ];
    let node = Node::with(pods.clone()).await;
    let own = node.give(0).await;
    node.kubelet.pods.admit("pod", "main");
    node.starts(0).await.unwrap();
    assert_eq!(whose(&own), of("fetch", 60));
    until("its scheduler is told", || node.is_told("pod")).await;
    node.give_listed("other", "main", 1).await;
    let refused = node.starts(1).await.unwrap_err();
    assert!(refused.contains("are asked for: 50; 40 of 100 are left"), "{refused}");
    // The next run knows that no kubelet lists it.
    let node = node.restarted(pods).await;
    let refused = node.starts(1).await.unwrap_err();
    assert!(refused.contains("are asked for: 50; 40 of 100 are left"), "{refused}");
    node.stop().await;
}

#[tokio::test]
async fn the_agents_next_run_knows_what_an_init_container_is_promised() {
    let init = [container("fetch", 60), sidecar("proxy", 10)];
    let pods = vec![
        pod("pod", &init, &[container("main", 20)]),
        pod("fits", &[], &[container("main", 40)]),
        pod("other", &[], &[container("main", 1)]),
    ];
    let node = Node::with(pods.clone()).await;
    node.give(0).await;
    let shared = node.give_listed("pod", "proxy", 0).await;
    node.give_listed("pod", "main", 1).await;
    until("its scheduler is told", || node.is_told("pod")).await;
    node.starts(0).await.unwrap();
    assert_eq!(whose(&shared), of("fetch", 60));
    // 60 are promised: to the init container 40, and to the main one 20.
    let node = node.restarted(pods).await;
    let fits = node.give_listed("fits", "main", 2).await;
    node.starts(2).await.unwrap();
    assert_eq!(whose(&fits), of("main", 40));
    node.give_listed("other", "main", 3).await;
    let refused = node.starts(3).await.unwrap_err();
    assert!(refused.contains("are asked for: 1; 0 of 100 are left"), "{refused}");
    node.stop().await;
}

/// Nothing but their processes tells two such pods apart, and these are not there.
#[tokio::test]
async fn an_init_container_that_may_be_another_pods_has_no_limits_until_that_is_known() {
    let main = json!({"name": "main"});
    let two = ["one", "two"].map(|name| {
        let cores = if name == "one" { 10 } else { 20 };
        pod(name, &[container("fetch", cores)], std::slice::from_ref(&main))
    });
    let node = Node::with(two.to_vec()).await;
    let own = node.give(0).await;
    node.starts(0).await.unwrap();
    assert_eq!(whose(&own), None);
    node.report("one", status(0, ended(0)));
    until("only one of them can be it", || whose(&own) == of("fetch", 20)).await;
    node.stop().await;
}
