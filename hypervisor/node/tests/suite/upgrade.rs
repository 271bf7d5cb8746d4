//! A new version of agent and daemon beside eight running pods, as a DaemonSet is rolled.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

use node::Options;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::contained::{Cgroup, Image, Running, built, memory, prepared, run_in};
use super::kubelets_side::{Admitted, NUMBER, Node, with_gates};
use super::skipped::skipped;
use super::support::{Agent, FakeKubelet, gpu, shows, until};

/// Of eight pods: part of their UIDs.
const PODS: [char; 8] = ['1', '2', '3', '4', '7', '8', '9', 'a'];
const CORES: usize = 10;
/// A pod's limit in GiB. Two contexts take half a GiB each, and the busy process a few bytes of the first chunk.
const MEMORY: usize = 2;
const GRANTED_MIB: u64 = 1024 - 16;
/// How long shares are measured.
const MEASURED: Duration = Duration::from_secs(4);
/// One process keeps the GPU busy and tells how many kernels of 1 ms are done. Beside it others take memory until it is
/// refused, one after the other.
const WORK: &str = r#"
    until [ -e /shared/go ]; do sleep 0.05; done
    /image/tenant dense --kernel-us 1000 --seconds 600 --progress=0.5 | while read -r line
    do echo "$line"; /image/tenant mem --api alloc --chunk 16MiB --cap=8GiB; done"#;

struct Pod {
    admitted: Admitted,
    running: Running,
    /// Its container's, by which the daemon tells it from others. It goes when its processes have ended.
    cgroup: Cgroup,
}

fn results(said: &str) -> impl Iterator<Item = Value> {
    said.lines().filter_map(|line| serde_json::from_str(line).ok())
}

impl Pod {
    /// When the last kernels were counted, and how many.
    fn kernels(&self) -> Option<(f64, f64)> {
        let said = self.running.said();
        let counted = results(&said).filter(|one| one["kernels"].is_u64()).last()?;
        Some((counted["at"].as_f64()?, counted["kernels"].as_f64()?))
    }

    /// How often memory was refused.
    fn refusals(&self) -> usize {
        results(&self.running.said()).filter(|one| one["granted_bytes"].is_u64()).count()
    }

    /// Ends all of its processes.
    async fn end(&mut self) {
        let pid = Pid::from_raw(self.running.child.id().unwrap().cast_signed()).unwrap();
        kill_process_group(pid, Signal::KILL).unwrap();
        self.running.child.wait().await.unwrap();
        until("its cgroup is empty", || self.cgroup.processes() == 0).await;
    }

    /// It runs without a restart, with the limits that it had, and its memory was always refused at the same size.
    fn is_as_before(&mut self) {
        let ended = self.running.child.try_wait().unwrap();
        let said = self.running.said();
        assert!(ended.is_none(), "{}: {ended:?}: {said}", self.admitted.pod);
        assert_eq!(self.admitted.written(), Some(self.admitted.wanted()));
        for line in said.lines().filter(|line| line.contains("granted_bytes")) {
            assert_eq!(memory(line), (MEMORY as u64 * 1024, GRANTED_MIB), "{line}");
        }
        let refused = said.lines().filter(|line| !line.starts_with('{'));
        let faults: Vec<_> = refused.filter(|line| line.contains("tenant:")).collect();
        assert!(faults.is_empty(), "{faults:?}");
    }
}

/// Each pod's part of the GPU's time, in percent, while memory is refused to each.
async fn measure(what: &str, pods: &mut [Pod]) -> Vec<f64> {
    let count = |pods: &[Pod]| pods.iter().map(Pod::kernels).collect::<Option<Vec<_>>>();
    until("all count kernels", || count(pods).is_some()).await;
    let (begun, refused) = (count(pods).unwrap(), pods.iter().map(Pod::refusals).max().unwrap());
    tokio::time::sleep(MEASURED).await;
    let mut refusals = pods.iter().map(Pod::refusals);
    let fewest = refusals.by_ref().min().unwrap();
    until("memory is refused to each", || pods.iter().all(|pod| pod.refusals() > refused)).await;
    pods.iter_mut().for_each(Pod::is_as_before);
    let ended = count(pods).unwrap();
    let share = |(begun, ended): (&(f64, f64), &(f64, f64))| {
        (ended.1 - begun.1) / 10.0 / (ended.0 - begun.0)
    };
    let shares: Vec<f64> = begun.iter().zip(&ended).map(share).collect();
    println!("{what}: {shares:.1?} % of the GPU's time, memory refused {fewest} times and more");
    for share in &shares {
        // Machines that run other tests may be too slow for the whole share.
        assert!((1.0..CORES as f64 * 1.25).contains(share), "{what}: {shares:?}");
    }
    shares
}

fn daemon(folder: &Path) -> Child {
    let mut command = Command::new(built("hypervisor"));
    let command = command.args(["daemon", "--log", "warn", "--nvml", "none"]);
    let command = command.arg("--socket").arg(folder.join("daemon/hypervisor.sock"));
    let command = command.arg("--state").arg(folder.join("state"));
    let node = folder.join("image/shared/fake-node");
    command.env("SLUICE_FAKE_NODE", node).kill_on_drop(true).spawn().unwrap()
}

async fn stop(mut daemon: Child) {
    let pid = Pid::from_raw(daemon.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    daemon.wait().await.unwrap();
}

/// As if this version had been installed long ago.
fn make_old(library: &Path) {
    let before = SystemTime::now() - Duration::from_secs(7200);
    File::open(library).unwrap().set_times(FileTimes::new().set_modified(before)).unwrap();
}

async fn started(kubelet: &FakeKubelet, node: &Node, cgroups: Vec<Cgroup>) -> Vec<Pod> {
    let mut pods = Vec::new();
    for (number, cgroup) in cgroups.into_iter().enumerate() {
        let admitted = node.admit(&format!("pod-{number}"), "main", CORES, MEMORY).await;
        node.start(&admitted).await.unwrap();
        let (name, words) = (format!("main-{number}"), ["setsid", "sh", "-c", WORK]);
        let image = Image::default();
        let running = run_in(kubelet.path(), None, image, &admitted.answer, &name, &[], &words);
        cgroup.take(running.child.id().unwrap());
        pods.push(Pod { admitted, running, cgroup });
    }
    fs::write(kubelet.path().join("image/shared/go"), "").unwrap();
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_and_daemon_are_replaced_while_eight_pods_run() {
    let cgroups: Option<Vec<Cgroup>> = PODS.into_iter().map(Cgroup::make).collect();
    let Some(cgroups) = cgroups.filter(|all| all.iter().all(Cgroup::counts)) else {
        skipped("cgroups cannot be made here, or this is in a container itself");
        return;
    };
    let Some(mut kubelet) = prepared() else { return };
    kubelet.start();
    let folder = kubelet.path().to_owned();
    let from = folder.join("library");
    let [old, new] = ["0.1.0", "0.2.0"].map(|version| folder.join("libraries").join(version));
    let with =
        |version: &Path| Options { library: version.to_owned(), ..with_gates(kubelet.path()) };
    let (first, second) = (with(&old), with(&new));
    node::install(&from, &old).unwrap();
    fs::create_dir(folder.join("daemon")).unwrap();
    let (agent, one_daemon) = (Agent::start(first, shows(2)), daemon(&folder));
    let node = Node::of(&mut kubelet, 2).await;
    let mut pods = started(&kubelet, &node, cgroups).await;
    assert!(pods.iter().all(|pod| pod.admitted.ids[0].1[0].starts_with(&gpu(0).to_string())));
    measure("before", &mut pods).await;
    // The new one may come while the old one is there: it says so, and its DaemonSet starts it again.
    node::install(&from, &new).unwrap();
    let said = Agent::start(second.clone(), shows(2)).fails().await;
    assert!(said.contains("another `hypervisor node` uses"), "{said}");
    stop(one_daemon).await;
    agent.stop().await.unwrap();
    measure("while neither runs", &mut pods).await;
    make_old(&old);
    kubelet.forget_registrations();
    let (agent, other_daemon) = (Agent::start(second, shows(2)), daemon(&folder));
    let node = Node::of(&mut kubelet, 2).await;
    measure("after", &mut pods).await;
    // Longer than it takes to look for libraries that nobody needs.
    tokio::time::sleep(Duration::from_secs(11)).await;
    pods.iter_mut().for_each(Pod::is_as_before);
    for pod in &pods {
        let pid = pod.running.child.id().unwrap();
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        assert!(mounts.contains("libraries/0.1.0"), "{mounts}");
    }
    assert!(old.is_dir());
    for mut pod in pods {
        pod.end().await;
        node.end(&pod.admitted);
    }
    until("nobody needs the old libraries", || !old.exists()).await;
    // What starts now has the new ones.
    node.take(NUMBER, 1);
    let next = node.admit("next", "main", CORES, MEMORY).await;
    assert!(next.answer.mounts.iter().any(|one| one.host_path.ends_with("libraries/0.2.0")));
    assert!(new.is_dir());
    agent.stop().await.unwrap();
    stop(other_daemon).await;
}
