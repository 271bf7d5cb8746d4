//! The DRA driver: what a kubelet and an API server of Kubernetes 1.34 and newer send it, and what its containers get.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use limits::{ComputeLimit, MemoryLimit};
use node::proto::ContainerAllocateResponse;
use node::proto::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use node::proto::plugin_registration::{InfoRequest, PluginInfo};
use node::{ClusterOptions, Options};
use observer::{Seen, Xid};
use serde_json::{Value, json};
use session::Page;

use super::contained::{Image, TAKE, memory, prepared, result, run_in};
use super::support::{Agent, ApiServer, FakeKubelet, GoClient, gpu, options, shows, until};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/here-gpu.sluice.dev";
const SERVICE: &str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";

fn uid(name: &str) -> String {
    format!("11111111-2222-3333-4444-{:0>12}", name.len())
}

/// As the scheduler of Kubernetes 1.36 allocates a part of the first GPU.
fn allocated(name: &str, cores: &str, memory: &str) -> Value {
    let device = gpu(0).to_string().to_ascii_lowercase();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": uid(name)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.sluice.dev",
            "capacity": {"requests": {"cores": cores, "memory": memory}}}}]}},
        "status": {
            "allocation": {
                "devices": {
                    "config": [{"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": "gpu.sluice.dev",
                        "parameters": {"apiVersion": "gpu.sluice.dev/v1", "kind": "GpuConfig", "policy": "fixed"}}}],
                    "results": [{"driver": "gpu.sluice.dev", "pool": "here", "device": device, "request": "gpu",
                        "shareID": format!("share-of-{name}"),
                        "consumedCapacity": {"cores": cores, "memory": memory}}],
                },
            },
            "reservedFor": [{"resource": "pods", "name": format!("pod-of-{name}"), "uid": format!("pod-{name}")}],
        },
    })
}

struct Node {
    server: ApiServer,
    options: Options,
    agent: Option<Agent>,
    kubelet: GoClient,
    cdi: PathBuf,
}

impl Node {
    async fn start(kubelet: &FakeKubelet) -> Self {
        let server = ApiServer::start(kubelet.path()).await.unwrap();
        let kubeconfig = Some(server.kubeconfig.clone());
        let cdi = kubelet.path().join("cdi");
        let options = Options {
            cluster: Some(ClusterOptions { node: "here".to_owned(), kubeconfig }),
            dra: Some(cdi.clone()),
            ..options(kubelet.path())
        };
        let agent = Some(Agent::start(options.clone(), shows(2)));
        let kubelet = connected(&options.kubelet).await;
        Self { server, options, agent, kubelet, cdi }
    }

    /// The agent ends wherever it is, and another one begins.
    async fn restart(&mut self) {
        self.agent.take().unwrap().kill().await;
        self.agent = Some(Agent::start(self.options.clone(), shows(2)));
        self.kubelet = connected(&self.options.kubelet).await;
    }

    async fn stop(&mut self) {
        self.agent.take().unwrap().stop().await.unwrap();
    }

    fn devices(&self) -> &std::sync::mpsc::Sender<Seen> {
        &self.agent.as_ref().unwrap().devices
    }

    fn has(&self, claim: &Value) {
        let name = claim["metadata"]["name"].as_str().unwrap();
        self.server.objects.put_other(&format!("{CLAIMS}/{name}"), claim.clone());
    }

    async fn prepare(&self, name: &str) -> NodePrepareResourceResponse {
        let request = NodePrepareResourcesRequest { claims: vec![claim(name)] };
        let method = format!("{SERVICE}/NodePrepareResources");
        let mut answer: NodePrepareResourcesResponse =
            self.kubelet.call(&method, &request).await.unwrap();
        answer.claims.remove(&uid(name)).unwrap()
    }

    async fn prepared(&self, name: &str) -> Device {
        let answer = self.prepare(name).await;
        assert_eq!(answer.error, "");
        answer.devices.into_iter().next().unwrap()
    }

    async fn unprepare(&self, name: &str) {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim(name)] };
        let method = format!("{SERVICE}/NodeUnprepareResources");
        let answer: NodeUnprepareResourcesResponse =
            self.kubelet.call(&method, &request).await.unwrap();
        assert_eq!(answer.claims[&uid(name)].error, "");
    }

    /// The allocations of claims.
    fn folders(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(&self.options.allocations).unwrap().map(|one| one.unwrap().path());
        all.filter(|path| path.join("allocation.json").exists()).collect()
    }

    fn page(&self, device: &Device) -> Page {
        let [id] = &device.cdi_device_ids[..] else { panic!("{device:?}") };
        let (_, name) = id.split_once('=').unwrap();
        let text = fs::read_to_string(self.cdi.join(format!("sluice.dev-{name}.json"))).unwrap();
        let spec: Value = serde_json::from_str(&text).unwrap();
        let mounts = spec["devices"][0]["containerEdits"]["mounts"].as_array().unwrap();
        let session = mounts.iter().find(|one| one["containerPath"] == "/run/sluice/session");
        let session = Path::new(session.unwrap()["hostPath"].as_str().unwrap());
        Page::open_existing(&session.join(format!("{}.page", gpu(0)))).unwrap()
    }
}

fn claim(name: &str) -> Claim {
    Claim { namespace: "default".to_owned(), uid: uid(name), name: name.to_owned() }
}

/// As a kubelet does when it sees the socket.
async fn connected(kubelet: &Path) -> GoClient {
    let socket = kubelet.join("plugins_registry/gpu.sluice.dev-reg.sock");
    let client = loop {
        match GoClient::try_connect(&socket).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    let info: PluginInfo =
        client.call("pluginregistration.Registration/GetInfo", &InfoRequest {}).await.unwrap();
    assert_eq!((&*info.r#type, &*info.name), ("DRAPlugin", "gpu.sluice.dev"));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    client
}

/// What a runtime is told of a container with such a device.
fn container(device: &Device) -> ContainerAllocateResponse {
    let ids = device.cdi_device_ids.join(",");
    ContainerAllocateResponse {
        annotations: HashMap::from([("cdi.k8s.io/claim".to_owned(), ids)]),
        ..ContainerAllocateResponse::default()
    }
}

#[tokio::test]
async fn a_slice_shows_the_gpus_and_a_fault_taints_one_within_5_s() {
    let kubelet = FakeKubelet::running();
    let mut node = Node::start(&kubelet).await;
    let objects = node.server.objects.clone();
    let slice = || objects.other(SLICE);
    until("it is published", || slice().is_some()).await;
    let spec = slice().unwrap()["spec"].clone();
    assert_eq!((&spec["driver"], &spec["nodeName"]), (&json!("gpu.sluice.dev"), &json!("here")));
    assert_eq!(spec["pool"], json!({"name": "here", "generation": 1, "resourceSliceCount": 1}));
    assert_eq!(slice().unwrap()["metadata"]["ownerReferences"][0]["kind"], "Node");
    let golden: Value = serde_json::from_str(include_str!("dra-device.golden")).unwrap();
    assert_eq!(spec["devices"][0], golden, "{:#}", spec["devices"][0]);
    let taints = || slice().unwrap()["spec"]["devices"][0]["taints"].clone();
    let begun = Instant::now();
    node.devices().send(Seen::Xid(gpu(0), Xid(79))).unwrap();
    until("it is tainted", || taints().is_array()).await;
    println!("a fault is a taint after {:.2?}", begun.elapsed());
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    assert_eq!(taints(), json!([{"key": "gpu.sluice.dev/unhealthy", "effect": "NoSchedule"}]));
    assert_eq!(slice().unwrap()["spec"]["pool"]["generation"], 2);
    node.has(&allocated("late", "40", "1Gi"));
    let error = node.prepare("late").await.error;
    assert!(error.contains("is not offered; expected a toleration of the taint"), "{error}");
    // Kubelets remove the slices of drivers that they have not seen for a while.
    objects.remove_other(SLICE);
    node.devices().send(shows(1)).unwrap();
    until("it is there again", || slice().is_some()).await;
    node.stop().await;
    assert!(!kubelet.path().join("kubelet/plugins_registry/gpu.sluice.dev-reg.sock").exists());
}

#[tokio::test]
async fn two_claims_of_40_and_60_percent_of_one_gpu_are_both_limited() {
    let Some(mut kubelet) = prepared() else { return };
    kubelet.start();
    let mut node = Node::start(&kubelet).await;
    let claims = [("a", "40", "1Gi"), ("bb", "60", "2Gi")];
    claims.iter().for_each(|(name, cores, memory)| node.has(&allocated(name, cores, memory)));
    let (a, b) = (node.prepared("a").await, node.prepared("bb").await);
    assert_eq!((&*a.pool_name, &a.request_names[..]), ("here", &["gpu".to_owned()][..]));
    assert_eq!(a.share_id.as_deref(), Some("share-of-a"));
    let limits = |device: &Device| node.page(device).look().unwrap().limits();
    assert_eq!(limits(&a).memory, Some(MemoryLimit::new(1 << 30)));
    assert_eq!(limits(&a).compute, ComputeLimit::fixed(400_000));
    assert_eq!(limits(&b).compute, ComputeLimit::fixed(600_000));
    // Nothing is left of the GPU's time.
    node.has(&allocated("ccc", "10", "1Gi"));
    let error = node.prepare("ccc").await.error;
    assert!(error.contains("cores of") && error.contains("0 of 100 are left"), "{error}");
    let cdi = [node.cdi.clone()];
    let run = |device: &Device, name: &str, words: &[&str]| {
        let image = Image { cdi: &cdi, ..Image::default() };
        run_in(kubelet.path(), None, image, &container(device), name, &[], words).end()
    };
    // A context takes 512 MiB on the simulated device.
    let (code, said) = run(&a, "a-memory", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    let (code, said) = run(&b, "b-memory", &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (2048, 1536)), "{said}");
    // Both at once, for five seconds: kernels of a millisecond. A busy machine gives them less, never more.
    let dense = ["/image/tenant", "dense", "--kernel-us", "1000", "--seconds", "5"];
    let (first, second) = tokio::join!(run(&a, "a-time", &dense), run(&b, "b-time", &dense));
    let busy = |(code, said): &(Option<i32>, String)| {
        assert_eq!(*code, Some(0), "{said}");
        result(said)["kernels"].as_u64().unwrap() / 50
    };
    let percent = (busy(&first), busy(&second));
    println!("claims of 40 and 60 %: {} and {} % of the GPU's time", percent.0, percent.1);
    assert!((1..=45).contains(&percent.0) && (1..=65).contains(&percent.1), "{percent:?}");
    let told = || node.server.objects.written("PATCH", "/resourceclaims/bb/status");
    until("what it uses is told", || !told().is_empty()).await;
    let devices = told()[0]["status"]["devices"].clone();
    assert_eq!(devices[0]["shareID"], "share-of-bb");
    assert_eq!(devices[0]["data"]["memoryLimitBytes"], 2_u64 << 30);
    assert_eq!(devices[0]["data"]["computePercent"], 60.0);
    node.stop().await;
}

#[tokio::test]
async fn a_restart_amid_prepare_loses_nothing() {
    let kubelet = FakeKubelet::running();
    let mut node = Node::start(&kubelet).await;
    node.has(&allocated("a", "40", "1Gi"));
    let before = node.prepared("a").await;
    let folder = node.folders().into_iter().next().unwrap();
    let own = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let inode = own(&folder.join("session"));
    // It ends while it asks for the next claim.
    node.has(&allocated("bb", "50", "1Gi"));
    node.server.objects.be_silent("/resourceclaims/bb");
    let (asked, request) =
        (node.kubelet.clone(), NodePrepareResourcesRequest { claims: vec![claim("bb")] });
    let lost = tokio::spawn(async move {
        let method = format!("{SERVICE}/NodePrepareResources");
        asked.call::<NodePrepareResourcesResponse>(&method, &request).await
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    node.restart().await;
    // An answer, if there is one, is no success.
    if let Ok(mut answer) = lost.await.unwrap() {
        assert_ne!(answer.claims.remove(&uid("bb")).unwrap().error, "");
    }
    node.server.objects.speak();
    // What runs keeps its session.
    assert_eq!(node.prepared("a").await, before);
    assert_eq!(own(&folder.join("session")), inode);
    let other = node.prepared("bb").await;
    // It ends within the work: the folder has no settings yet, or the runtime's file is missing.
    let settings = |folder: &PathBuf| folder.join("sluice-session.json");
    let second = node.folders().into_iter().find(|one| *one != folder).unwrap();
    fs::remove_file(settings(&second)).unwrap();
    for file in fs::read_dir(&node.cdi).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    node.restart().await;
    assert_eq!((node.prepared("bb").await, node.prepared("a").await), (other, before));
    assert!(settings(&second).exists() && own(&folder.join("session")) == inode);
    assert_eq!(fs::read_dir(&node.cdi).unwrap().count(), 2);
    // What is promised is known to the next run, too.
    node.has(&allocated("ccc", "20", "1Gi"));
    assert!(node.prepare("ccc").await.error.contains("10 of 100 are left"));
    // Kubelets list no device of it, and it stays.
    kubelet.pods.admit("other", "main");
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(node.folders().len(), 2);
    for _ in 0..2 {
        node.unprepare("a").await;
    }
    assert_eq!((node.folders(), fs::read_dir(&node.cdi).unwrap().count()), (vec![second], 1));
    node.prepared("ccc").await;
    node.stop().await;
}
