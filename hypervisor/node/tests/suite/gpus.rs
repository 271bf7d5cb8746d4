//! GPUs that come, go and are taken out of service while pods run.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, PreStartContainerRequest,
    PreStartContainerResponse,
};
use observer::{AllReadings, Seen};
use poem::listener::{Listener, UnixListener};
use serde_json::{Value, json};

use super::contained::{Image, Running, TAKE, built, memory, prepared, run_in};
use super::health::healthy;
use super::kubelets_side::{Admitted, CORES, GIB, MEMORY, NUMBER, Node};
use super::people::{Cluster, has, page, pod, started, started_on};
use super::support::{FakeKubelet, GoClient, Watched, gpu, shows, until};

/// Waits until just so many are.
async fn until_offered(watched: &mut Watched, wanted: &[usize]) {
    loop {
        let gpus = u8::try_from(wanted.len()).unwrap();
        if healthy(watched, gpus).await == wanted {
            return;
        }
    }
}

async fn allocate(client: &GoClient, id: String) -> Result<(), String> {
    let container_requests = vec![ContainerAllocateRequest { devices_i_ds: vec![id] }];
    let answer: Result<AllocateResponse, _> =
        client.call("Allocate", &AllocateRequest { container_requests }).await;
    answer.map(drop).map_err(|(_, said)| said.replace("%20", " "))
}

/// As kubelets do when a container of a running pod starts again.
async fn start_again(client: &GoClient, id: String) -> Result<(), String> {
    let request = PreStartContainerRequest { devices_i_ds: vec![id] };
    let answer: Result<PreStartContainerResponse, _> =
        client.call("PreStartContainer", &request).await;
    answer.map(drop).map_err(|(_, said)| said.replace("%20", " "))
}

/// What schedulers read of the node's GPUs: whether each may be used.
fn registered(cluster: &Cluster) -> Vec<bool> {
    let node = cluster.server.objects.node("here").unwrap_or_default();
    let text = node["metadata"]["annotations"]["nvidia.com/node-device-register"].clone();
    let all: Vec<Value> = serde_json::from_str(text.as_str().unwrap_or("[]")).unwrap();
    all.iter().map(|one| one["healthy"].as_bool().unwrap()).collect()
}

fn annotate(cluster: &Cluster, text: &str) {
    let mut node = cluster.server.objects.node("here").unwrap();
    node["metadata"]["annotations"]["sluice.dev/cordoned-gpus"] = text.into();
    cluster.server.objects.change_node(node);
}

#[tokio::test]
async fn no_new_container_gets_a_cordoned_gpu_and_running_ones_keep_theirs() {
    let mut kubelet = FakeKubelet::running();
    let cluster = started(&mut kubelet, vec![pod("runs", &json!({}))]).await;
    let mut watched = cluster.client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 2).await, [10, 10]);
    let page = cluster.start(&kubelet, "runs", 3).await;
    until("schedulers know the node", || registered(&cluster) == [true, true]).await;
    annotate(&cluster, &gpu(0).to_string());
    // The node is read every 30 s, and whenever its GPUs change.
    cluster.agent.devices.send(shows(3)).unwrap();
    until_offered(&mut watched, &[0, 10, 10]).await;
    until("schedulers know of it", || registered(&cluster) == [false, true, true]).await;
    until("people are told", || !cluster.events("GPUsCordoned").is_empty()).await;
    let file = kubelet.path().join("daemon/cordoned-gpus");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{}\n", gpu(0)));
    let said = allocate(&cluster.client, format!("{}::4", gpu(0))).await.unwrap_err();
    assert!(said.ends_with("is cordoned"), "{said}");
    start_again(&cluster.client, format!("{}::3", gpu(0))).await.unwrap();
    assert!(has(&page, 10, GIB));
    // What cannot be followed changes nothing, and is told.
    annotate(&cluster, "0");
    cluster.agent.devices.send(shows(4)).unwrap();
    until("people are told", || !cluster.events("GPUCordonRefused").is_empty()).await;
    until_offered(&mut watched, &[0, 10, 10, 10]).await;
    annotate(&cluster, "");
    cluster.agent.devices.send(shows(5)).unwrap();
    until_offered(&mut watched, &[10, 10, 10, 10, 10]).await;
    allocate(&cluster.client, format!("{}::4", gpu(0))).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    cluster.agent.stop().await.unwrap();
}

/// Without the GPU of this number.
fn shows_without(count: u8, lost: u8) -> Seen {
    let Seen::Devices(AllReadings { taken, mut devices }) = shows(count) else { panic!() };
    devices.retain(|reading| reading.uuid != gpu(lost));
    Seen::Devices(AllReadings { taken, devices })
}

#[tokio::test]
async fn a_gpu_is_lost_and_another_added_while_pods_run() {
    let mut kubelet = FakeKubelet::running();
    let socket = kubelet.path().join("daemon/hypervisor.sock");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let declared = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&declared);
    let sums = json!({"sessions": 0, "asking": 0, "leases": 0, "share_ppm": 0, "charged_us": 0});
    let answer = move || {
        let device = json!({"uuid": gpu(0).to_string(), "state": "idle", "own": sums, "others": sums,
            "declared_healthy": count.load(Ordering::Acquire)});
        let list = json!({"devices": [device]});
        poem::Response::builder().content_type("application/json").body(list.to_string())
    };
    let routes =
        poem::Route::new().at("/api/v1/devices", poem::endpoint::make_sync(move |_| answer()));
    let acceptor = UnixListener::bind(&socket).into_acceptor().await.unwrap();
    let daemon = tokio::spawn(poem::Server::new_with_acceptor(acceptor).run(routes));
    let pods = ["first", "second", "third"].map(|name| pod(name, &json!({})));
    let cluster = started(&mut kubelet, pods.to_vec()).await;
    let mut watched = cluster.client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 2).await, [10, 10]);
    let lost = cluster.start(&kubelet, "first", 3).await;
    let other = format!("{}::3", gpu(1));
    let folder = cluster.starts(&kubelet, "second", "default", other.clone()).await.unwrap();
    let kept = std::fs::read(folder.join("sluice-session.json")).unwrap();
    cluster.agent.devices.send(shows_without(2, 0)).unwrap();
    until_offered(&mut watched, &[0, 10]).await;
    until("schedulers know of it", || registered(&cluster) == [false, true]).await;
    // One is added. The pods on the others have what they had.
    cluster.agent.devices.send(shows_without(3, 0)).unwrap();
    until_offered(&mut watched, &[0, 10, 10]).await;
    until("schedulers know of it", || registered(&cluster) == [false, true, true]).await;
    let added = cluster.starts(&kubelet, "third", "default", format!("{}::3", gpu(2))).await;
    assert!(added.unwrap().join("sluice-session.json").is_file());
    start_again(&cluster.client, other.clone()).await.unwrap();
    assert_eq!(std::fs::read(folder.join("sluice-session.json")).unwrap(), kept);
    assert!(has(&lost, 10, GIB));
    // It is there again: a fault that comes and goes is a fault, until its operator says otherwise.
    cluster.agent.devices.send(shows(3)).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(registered(&cluster), [false, true, true]);
    declared.store(1, Ordering::Release);
    until("the operator is heard", || {
        cluster.agent.devices.send(shows(3)).unwrap();
        registered(&cluster) == [true, true, true]
    })
    .await;
    cluster.agent.stop().await.unwrap();
    daemon.abort();
}

/// The agent's next run does not know the GPU, and its pod still has it.
#[tokio::test]
async fn an_agent_that_starts_without_a_lost_gpu_serves_the_others() {
    let mut kubelet = FakeKubelet::running();
    let pods = || ["first", "second", "third"].map(|name| pod(name, &json!({}))).to_vec();
    let cluster = started(&mut kubelet, pods()).await;
    let lost = cluster.begin(&kubelet, "first", 3).await;
    let other = format!("{}::3", gpu(1));
    let second = cluster.starts(&kubelet, "second", "default", other.clone()).await.unwrap();
    let kept = std::fs::read(second.join("sluice-session.json")).unwrap();
    cluster.agent.stop().await.unwrap();
    kubelet.forget_registrations();
    let cluster = started_on(&mut kubelet, pods(), shows_without(2, 0)).await;
    let mut watched = cluster.client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 2).await, [0, 10]);
    start_again(&cluster.client, other).await.unwrap();
    let third = cluster.starts(&kubelet, "third", "default", format!("{}::4", gpu(1))).await;
    assert!(third.unwrap().join("sluice-session.json").is_file());
    assert_eq!(std::fs::read(second.join("sluice-session.json")).unwrap(), kept);
    assert!(has(&page(&lost), 10, GIB));
    kubelet.pods.end("first");
    until("its directory goes with its pod", || !lost.exists()).await;
    cluster.agent.stop().await.unwrap();
}

/// How many kernels a container's busy process has completed.
fn kernels(running: &Running) -> u64 {
    let said = running.said();
    let counts = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    counts.filter_map(|one| one["kernels"].as_u64()).next_back().unwrap_or_default()
}

/// A container with 10 cores and 2 GiB of a GPU.
async fn admit(node: &Node, pod: &str, of: u8, place: u8) -> Admitted {
    let ids = |letter: &str, numbers: std::ops::Range<u8>| {
        numbers.map(|number| format!("{}::{letter}{number}", gpu(of))).collect::<Vec<_>>()
    };
    let cores = place * 10..place * 10 + 10;
    let all = [(NUMBER, ids("", place..place + 1)), (CORES, ids("c", cores))];
    let memory = (MEMORY, ids("m", place * 2..place * 2 + 2));
    let admitted = node.admit_with(pod, "main", all.into_iter().chain([memory]).collect()).await;
    node.start(&admitted).await.unwrap();
    admitted
}

/// The agent as a program, which sees the simulated GPUs through NVML, and real processes in containers.
#[tokio::test]
async fn processes_on_another_gpu_do_not_notice_that_one_is_lost() {
    let Some(mut kubelet) = prepared() else { return };
    kubelet.start();
    let folder = kubelet.path().to_owned();
    let simulated = folder.join("image/shared/fake-node");
    let mut agent = tokio::process::Command::new(built("hypervisor"));
    let agent = agent
        .args(["node", "--log", "warn", "--memory-factor", "1024"])
        .args(["--feature-gates", "CorePlugin=true,MemoryPlugin=true"]);
    for (option, path) in [
        ("--kubelet-dir", folder.join("kubelet")),
        ("--allocations", folder.join("allocations")),
        ("--library", folder.join("library")),
        ("--daemon", folder.join("daemon/hypervisor.sock")),
        ("--nvml", built("libfake_nvml.so")),
    ] {
        agent.arg(option).arg(path);
    }
    let agent = agent.env("SLUICE_FAKE_NODE", &simulated).env("SLUICE_FAKE_DEVICES", "2");
    let mut agent = agent.kill_on_drop(true).spawn().unwrap();
    let node = Node::of(&mut kubelet, 2).await;
    let mut watched = node.client(NUMBER).watch("ListAndWatch", &Empty {}).await;
    until_offered(&mut watched, &[10, 10]).await;
    // NVIDIA's runtime would show a container its own GPU alone.
    let run = |admitted: &Admitted, words: &[&str]| {
        let Admitted { pod, answer, .. } = admitted;
        let own = [("CUDA_VISIBLE_DEVICES", &*answer.envs["NVIDIA_VISIBLE_DEVICES"])];
        run_in(&folder, None, Image::default(), answer, pod, &own, words)
    };
    let busy = ["/image/tenant", "dense", "--kernel-us", "1000", "--seconds=600", "--progress"];
    let (first, second) = (admit(&node, "first", 0, 0).await, admit(&node, "second", 1, 0).await);
    let lost = run(&first, &busy);
    let mut other = run(&second, &busy);
    until("both are busy", || kernels(&lost) > 0 && kernels(&other) > 0).await;
    fs::write(simulated.with_extension("faults"), "lost 0\n").unwrap();
    until_offered(&mut watched, &[0, 10]).await;
    // The other one goes on, and its limits hold as before.
    let before = kernels(&other);
    until("it goes on", || kernels(&other) > before + 100).await;
    assert!(other.child.try_wait().unwrap().is_none(), "{}", other.said());
    assert_eq!(second.written(), Some(second.wanted()));
    let third = admit(&node, "third", 1, 1).await;
    let (code, said) = run(&third, &TAKE).end().await;
    assert_eq!((code, memory(&said)), (Some(0), (2048, 1536)), "{said}");
    assert!(agent.try_wait().unwrap().is_none());
}
