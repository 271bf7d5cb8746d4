//! `hypervisor node` is killed by SIGKILL within its steps: at a request to the API server, before it is done and before it
//! is answered, or before a call that changes something in the folder of allocations. Another one is started, kubelet
//! and schedulers go on as they do, and all ends as if nothing had happened.
//!
//! What the pages' own crate writes is not counted as calls, since it makes them without the C library.
//! `SLUICE_FAULTS=1` takes each request and each call; without it some of them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use limits::GpuId;
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, PreStartContainerRequest,
    PreStartContainerResponse,
};
use prost::Message;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;
use small_api_server::{ApiServer, Moment};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::cluster::example;
use crate::contained::built;
use crate::kubelets_side::{GIB, NUMBER};
use crate::people::{has, pod};
use crate::support::{FakeKubelet, GoClient, HANG, gpu, in_time};

/// How many rounds run at once.
const AT_ONCE: usize = 8;
/// How long it takes until it has been seen that a container is listed.
const LISTED: Duration = Duration::from_millis(1500);
/// No agent makes so many.
const MOST: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Point {
    Request(usize, Moment),
    Call(usize),
}

/// A node whose agent is there again when it has been killed.
struct Node {
    kubelet: FakeKubelet,
    server: ApiServer,
    agent: Child,
    client: Option<GoClient>,
    was_killed: bool,
}

fn agent(kubelet: &FakeKubelet, server: &ApiServer, kills: Option<(&Path, usize)>) -> Child {
    let at = |name: &str| kubelet.path().join(name);
    let mut agent = Command::new(built("hypervisor"));
    agent
        .args(["node", "--node-name", "here", "--device-split", "10", "--log", "error"])
        .arg("--kubeconfig")
        .arg(&server.kubeconfig)
        .arg("--kubelet-dir")
        .arg(at("kubelet"))
        .arg("--allocations")
        .arg(at("allocations"))
        .arg("--library")
        .arg(at("library"))
        .arg("--daemon")
        .arg(at("daemon/hypervisor.sock"))
        .arg("--nvml")
        .arg(built("libfake_nvml.so"))
        .env("SLUICE_FAKE_NODE", at("fake-node"))
        .env("SLUICE_FAKE_DEVICES", "2")
        .env("SLUICE_FAKE_MEMORY", (80_u64 << 30).to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some((library, number)) = kills {
        agent.env("LD_PRELOAD", library).env("SLUICE_KILL_AT", number.to_string());
    }
    agent.spawn().unwrap()
}

impl Node {
    async fn start() -> Self {
        let mut kubelet = FakeKubelet::in_memory();
        kubelet.start();
        let server = ApiServer::start(kubelet.path()).await.unwrap();
        let agent = agent(&kubelet, &server, None);
        Self { kubelet, server, agent, client: None, was_killed: false }
    }

    fn folder(&self) -> PathBuf {
        self.kubelet.path().join("allocations")
    }

    /// Another agent, which is killed there.
    async fn again(&mut self, point: Point, library: &Path) {
        self.agent.kill().await.unwrap();
        self.client = None;
        let call = match point {
            Point::Call(number) => Some((library, number)),
            Point::Request(..) => None,
        };
        // An agent that makes requests earlier than this knows whom to kill would not be killed.
        let (tell, told) = std::sync::mpsc::channel();
        if let Point::Request(number, moment) = point {
            let kill = move || {
                if let Ok(agent) = told.recv_timeout(HANG) {
                    // Where it has ended by now another process may have its id: that one is not meant.
                    _ = pidfd_send_signal::<OwnedFd>(agent, Signal::KILL);
                }
            };
            self.server.objects.at(number, moment, kill);
        }
        self.agent = agent(&self.kubelet, &self.server, call);
        let pid = i32::try_from(self.agent.id().unwrap()).unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        _ = tell.send(pidfd_open(pid, PidfdFlags::empty()).unwrap());
    }

    /// Starts another agent if this one has been killed.
    fn look_after_it(&mut self) {
        if let Some(status) = self.agent.try_wait().unwrap() {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(status.signal(), Some(9), "{status}");
            (self.was_killed, self.client) = (true, None);
            self.agent = agent(&self.kubelet, &self.server, None);
        }
    }

    async fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let begun = std::time::Instant::now();
        while !so(self) {
            assert!(begun.elapsed() < HANG, "never: {what}");
            self.look_after_it();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// As kubelets ask again, by a new container or the same one. `Err`: it was refused.
    async fn call<T: Message + Default>(
        &mut self,
        method: &str,
        request: &impl Message,
    ) -> Result<T, String> {
        let socket = self.kubelet.plugins().join("sluice-nvidia-com-vgpu-number.sock");
        let begun = std::time::Instant::now();
        loop {
            assert!(begun.elapsed() < HANG, "never answered: {method}");
            self.look_after_it();
            let client = match self.client.clone() {
                Some(client) => client,
                None => match GoClient::try_connect(&socket).await {
                    Ok(client) => self.client.insert(client).clone(),
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    }
                },
            };
            match in_time(client.call(method, request)).await {
                Ok(answer) => return Ok(answer),
                Err((status, _)) if status == "closed" || status == "reset" => self.client = None,
                Err((_, said)) => return Err(said.replace("%20", " ")),
            }
        }
    }

    /// The container of a pod gets a place and starts. Its folder.
    async fn begin(&mut self, name: &str, on: u8, place: u8) -> Result<PathBuf, String> {
        let ids = vec![format!("{}::{place}", gpu(on))];
        let one = ContainerAllocateRequest { devices_i_ds: ids.clone() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse = self.call("Allocate", &request).await?;
        self.kubelet.pods.give(name, "default", NUMBER, &ids);
        let request = PreStartContainerRequest { devices_i_ds: ids };
        let _: PreStartContainerResponse = self.call("PreStartContainer", &request).await?;
        let key = &answer.container_responses[0].envs["SLUICE_ALLOCATION"];
        Ok(self.folder().join(key))
    }

    fn annotation(&self, pod: &str, name: &str) -> Value {
        self.server.objects.pod(pod).unwrap()["metadata"]["annotations"][name].clone()
    }

    /// Names that are no folder of an allocation.
    fn others(&self) -> Vec<String> {
        let all = fs::read_dir(self.folder()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut others: Vec<String> = all.map(name).filter(|name| name.len() != 64).collect();
        others.sort_unstable();
        others
    }

    fn allocations(&self) -> usize {
        fs::read_dir(self.folder()).unwrap().count() - self.others().len()
    }
}

fn page(folder: &Path, gpu: GpuId) -> Option<Page> {
    Page::open_existing(&folder.join("session").join(format!("{gpu}.page"))).ok()
}

fn holds(folder: &Path, name: &str, on: u8, cores: u32, memory: u64) -> bool {
    let named =
        OwnerSettings::of(folder).is_ok_and(|settings| settings.name.as_deref() == Some(name));
    named && page(folder, gpu(on)).is_some_and(|page| has(&page, cores, memory))
}

/// Returns whether the agent was killed at all.
async fn round(point: Point, library: &Path) -> bool {
    let mut node = Node::start().await;
    let none = json!({});
    node.server.objects.put(pod("before", &none));
    let before = node.begin("before", 1, 0).await.unwrap();
    let is_kept = |before: &Path| holds(before, "default/before/default", 1, 10, GIB);
    node.until("the first has its limits", |_| is_kept(&before)).await;
    // The kubelet gives it another one.
    node.server.objects.put(example("gpu-pod", 0));
    node.again(point, library).await;

    let folder = node.begin("gpu-pod", 1, 4).await.unwrap();
    let name = "default/gpu-pod/default";
    node.until("its limits are written", |_| holds(&folder, name, 1, 10, GIB)).await;
    let phase = |node: &Node| {
        node.server.objects.pod("gpu-pod").unwrap()["metadata"]["labels"]["nvidia.com/assigned-phase"].clone()
    };
    node.until("its scheduler is told", |node| phase(node) == "succeed").await;
    let real = |cores: u32, memory: u64| json!(format!("default[1_{}_{cores}_{memory}]", gpu(1)));
    let is_real = |node: &Node, cores, memory| {
        node.annotation("gpu-pod", "nvidia.com/real-allocated") == real(cores, memory)
    };
    node.until("what it has is told", |node| is_real(node, 10, 1024)).await;
    let claim = |node: &Node| node.annotation("gpu-pod", "nvidia.com/pre-allocated");
    node.until("its claim follows", |node| claim(node) == real(10, 1024)).await;

    // The account is the same: 20 of 100 are promised.
    let wants = |name: &str, cores: &str| {
        let mut pod = pod(name, &json!({}));
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/vgpu-cores"] = cores.into();
        pod
    };
    node.server.objects.put(wants("greedy", "81"));
    let said = node.begin("greedy", 1, 7).await.unwrap_err();
    assert!(said.contains("81; 80 of 100 are left"), "{point:?}: {said}");

    let mut changed = node.server.objects.pod("gpu-pod").unwrap();
    changed["metadata"]["annotations"]["sluice.dev/limits"] = "cores=20,memory=2GiB".into();
    node.server.objects.change(changed);
    node.until("its limits are changed", |_| holds(&folder, name, 1, 20, 2 * GIB)).await;
    node.until("the change is told", |node| is_real(node, 20, 2048)).await;
    assert!(is_kept(&before), "{point:?}");

    node.kubelet.pods.end("greedy");
    node.kubelet.pods.end("gpu-pod");
    node.server.objects.remove("gpu-pod");
    node.until("what has ended is removed", |node| node.allocations() == 1).await;
    assert!(!folder.exists() && is_kept(&before), "{point:?}");
    node.server.objects.put(wants("fits", "90"));
    let fits = node.begin("fits", 1, 4).await.unwrap();
    assert!(holds(&fits, "default/fits/default", 1, 90, GIB), "{point:?}");
    // What the kubelet has never listed is kept for longer.
    tokio::time::sleep(LISTED).await;
    node.kubelet.pods.end("fits");
    node.kubelet.pods.end("before");
    node.until("nothing is left", |node| node.allocations() == 0).await;
    // An agent that is killed at its end leaves a draft, which the next one removes.
    node.until("no draft is left", |node| node.others() == [".lock", "ld.so.preload"]).await;
    node.agent.kill().await.unwrap();
    node.was_killed
}

/// Each point, or some of them, until there is none any more. Returns how many there were.
async fn at_each(point: impl Fn(usize) -> Point, library: &Path) -> usize {
    let each = std::env::var_os("SLUICE_FAULTS").is_some();
    let stride = if each { 1 } else { 13 };
    let first = 1 + usize::try_from(std::process::id()).unwrap() % stride;
    let mut numbers = (first..MOST).step_by(stride);
    let (mut rounds, mut killed, mut over) = (JoinSet::new(), 0, false);
    loop {
        while !over && rounds.len() < AT_ONCE {
            let (point, library) = (point(numbers.next().unwrap()), library.to_owned());
            rounds.spawn(async move { round(point, &library).await });
        }
        let Some(done) = rounds.join_next().await else { return killed };
        if done.unwrap() { killed += 1 } else { over = true }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_requests_to_the_api_server() {
    for moment in [Moment::Asked, Moment::Done] {
        let killed = at_each(|number| Point::Request(number, moment), Path::new("")).await;
        println!("{moment:?}: killed {killed} times");
        assert!(killed > 0, "it makes requests");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_calls_that_change_the_folder_of_allocations() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("kill_at.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/timed/kill_at.c");
    let mut cc = std::process::Command::new("cc");
    let made = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(made.unwrap().success());
    let killed = at_each(Point::Call, &library).await;
    println!("killed {killed} times");
    assert!(killed > 2, "it makes calls");
}
