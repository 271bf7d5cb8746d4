//! Real processes, started with just the mounts, variables and devices that a container gets, on the simulated GPU.
//! They know nothing of Sluice.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use node::proto::ContainerAllocateResponse;
use serde_json::{Value, json};
use small_runtime::container::Container;
use small_runtime::proto::{ContainerConfig, Device, KeyValue, Mount};
use tokio::process::Child;

use super::kubelets_side::{Admitted, NUMBER, Node, with_gates};
use super::people;
use super::skipped::skipped;
use super::support::{Agent, FakeKubelet, HANG, gpu, in_time, shows, until};

const MIB: u64 = 1 << 20;
/// What a pod's author may write to be free of limits.
const LIFTING: [(&str, &str); 7] = [
    ("CUDA_DISABLE_CONTROL", "true"),
    ("ENABLE_CUDA_HOOKS", "false"),
    ("CUDA_MEM_LIMIT", "32g"),
    ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"0\": 34359738368}"),
    ("SLUICE_POLICY", "none"),
    ("SLUICE_ON_FAILURE", "open"),
    ("SLUICE_ALLOCATION", "nothing"),
];

/// A node with an agent, on which containers really run.
pub(crate) struct Cluster {
    pub(crate) kubelet: FakeKubelet,
    pub(crate) node: Node,
    agent: Agent,
}

/// What an image has beside the machine's programs, and where the runtime finds CDI files.
#[derive(Clone, Copy, Default)]
pub(crate) struct Image<'a> {
    pub(crate) files: Option<&'a Path>,
    pub(crate) cdi: &'a [PathBuf],
}

/// A container that runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    output: PathBuf,
}

/// A file that the workspace has built.
pub(crate) fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debug").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

/// Whether containers can be started here.
fn can_start() -> bool {
    let script = "mount -t tmpfs none /mnt && mkdir /mnt/x && mount --bind /usr /mnt/x";
    let mut tried = std::process::Command::new("unshare");
    let tried = tried.args(["--mount", "sh", "-ec", script]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

/// A kubelet that has not started, with libraries and an image. `None`: containers cannot be started here, which is said.
pub(crate) fn prepared() -> Option<FakeKubelet> {
    if !rustix::process::geteuid().is_root() || !can_start() {
        skipped("it needs root and namespaces");
        return None;
    }
    let kubelet = FakeKubelet::in_memory();
    for library in ["libcuda_limiter.so", "libadd_path.so"] {
        fs::copy(built(library), kubelet.path().join("library").join(library)).unwrap();
    }
    let image = kubelet.path().join("image");
    fs::create_dir_all(image.join("shared")).unwrap();
    for (from, to) in [
        ("tenant", "tenant"),
        ("sluice", "sluice"),
        ("libfake_cuda.so", "libcuda.so.1"),
        ("libfake_nvml.so", "libnvidia-ml.so.1"),
    ] {
        fs::copy(built(from), image.join(to)).unwrap();
    }
    Some(kubelet)
}

impl Cluster {
    /// `None`: containers cannot be started here, which is said.
    pub(crate) async fn start() -> Option<Self> {
        let mut kubelet = prepared()?;
        kubelet.start();
        let agent = Agent::start(with_gates(kubelet.path()), shows(2));
        let node = Node::of(&mut kubelet, 2).await;
        Some(Self { kubelet, node, agent })
    }

    pub(crate) async fn stop(self) {
        self.agent.stop().await.unwrap();
    }

    /// Starts a program in a container that got this answer, with variables of the pod's own.
    pub(crate) fn run(
        &self,
        answer: &ContainerAllocateResponse,
        name: &str,
        own: &[(&str, &str)],
        words: &[&str],
    ) -> Running {
        self.run_as(None, answer, name, own, words)
    }

    /// The same with a user namespace, as of pods with `hostUsers: false`. Kubelets do not map what plugins mount.
    fn run_as(
        &self,
        users: Option<u32>,
        answer: &ContainerAllocateResponse,
        name: &str,
        own: &[(&str, &str)],
        words: &[&str],
    ) -> Running {
        run_in(self.kubelet.path(), users, Image::default(), answer, name, own, words)
    }
}

/// A container of the node with this folder.
pub(crate) fn run_in(
    folder: &Path,
    users: Option<u32>,
    own_image: Image<'_>,
    answer: &ContainerAllocateResponse,
    name: &str,
    own: &[(&str, &str)],
    words: &[&str],
) -> Running {
    let mount = |host: &Path, inside: &str, readonly| Mount {
        container_path: inside.to_owned(),
        host_path: host.to_str().unwrap().to_owned(),
        readonly,
        ..Mount::default()
    };
    let image = folder.join("image");
    let mut mounts =
        vec![mount(&image, "/image", true), mount(&image.join("shared"), "/shared", false)];
    mounts.extend(
        answer
            .mounts
            .iter()
            .map(|one| mount(Path::new(&one.host_path), &one.container_path, one.read_only)),
    );
    let devices = answer.devices.iter().map(|one| Device {
        container_path: one.container_path.clone(),
        host_path: one.host_path.clone(),
        permissions: one.permissions.clone(),
    });
    // A kubelet puts the pod's own variables behind those of plugins.
    let plugin = answer.envs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let image = [("LD_LIBRARY_PATH", "/image"), ("SLUICE_FAKE_NODE", "/shared/fake-node")];
    let all = plugin.chain(image).chain(own.iter().copied());
    let env = |(key, value): (&str, &str)| KeyValue { key: key.into(), value: value.into() };
    let config = ContainerConfig {
        command: words.iter().map(|&word| word.to_owned()).collect(),
        envs: all.map(env).collect(),
        mounts,
        annotations: answer.annotations.clone(),
        devices: devices.collect(),
        ..ContainerConfig::default()
    };
    let root = folder.join(format!("root-{name}"));
    let output = folder.join(format!("{name}.out"));
    let started = Container {
        config: &config,
        users,
        bundle: &root,
        output: &output,
        image: own_image.files,
        cdi: own_image.cdi,
    };
    let child = started.start().unwrap();
    Running { child, output }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub(crate) fn has_said(&self, words: &str) -> bool {
        self.said().contains(words)
    }

    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let status = in_time(self.child.wait()).await.unwrap();
        assert_eq!(status.signal(), None, "{}", self.said());
        (status.code(), self.said())
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }
}

/// The result of a run of `tenant`, among what else was said.
#[track_caller]
pub(crate) fn result(said: &str) -> Value {
    let line = said.lines().rev().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no result: {said}"))).unwrap()
}

/// As the pod's author wrote it: memory that is taken until it is refused.
pub(crate) const TAKE: [&str; 7] =
    ["/image/tenant", "mem", "--api", "alloc", "--chunk", "16MiB", "--cap=8GiB"];

/// The device's size and what was granted, in MiB.
#[track_caller]
pub(crate) fn memory(said: &str) -> (u64, u64) {
    let result = result(said);
    let mib = |name: &str| result[name].as_u64().unwrap() / MIB;
    (mib("meminfo_total"), mib("granted_bytes"))
}

async fn one_gib(cluster: &Cluster, pod: &str) -> Admitted {
    let container = cluster.node.admit(pod, "main", 10, 1).await;
    cluster.node.start(&container).await.unwrap();
    container
}

#[tokio::test]
async fn a_container_is_held_to_its_memory_whatever_its_environment_says() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    let run = |name: &str, own: &[(&str, &str)], words: &[&str]| {
        cluster.run(&container.answer, name, own, words).end()
    };
    // A context takes 512 MiB on the simulated device.
    let (code, said) = run("plain", &[], &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    let (code, said) = run("lifting", &LIFTING, &TAKE).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    let honest = "not honoured; in this container its node decides";
    assert!(said.contains("CUDA_DISABLE_CONTROL") && said.contains(honest), "{said}");
    // Nothing of the environment is left in the child.
    let cleared = [
        &["/usr/bin/env", "-i", "LD_LIBRARY_PATH=/image", "SLUICE_FAKE_NODE=/shared/fake-node"][..],
        &TAKE,
    ]
    .concat();
    let (code, said) = run("cleared", &LIFTING, &cleared).await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    // `readOnlyRootFilesystem: true`: made so when all that plugins mount is there.
    let script = "mount -o remount,bind,ro / && ! touch /tmp/file && exec \"$@\"";
    let read_only = [&["unshare", "--mount", "sh", "-ec", script, "sh"][..], &TAKE].concat();
    let (code, said) = run("read-only", &LIFTING, &read_only).await;
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    cluster.stop().await;
}

/// The limit is the container's, not a user's or a pid namespace's.
#[tokio::test]
async fn users_and_namespaces_of_a_container_share_its_limit() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    let hold = [&TAKE[..6], &["--cap=256MiB", "--hold=600"]].concat();
    let holder = cluster.run(&container.answer, "holder", &[], &hold);
    until("it holds memory", || holder.said().contains("granted_bytes")).await;
    // The simulated node belongs to who made it.
    let shared = cluster.kubelet.path().join("image/shared/fake-node");
    fs::set_permissions(shared, fs::Permissions::from_mode(0o666)).unwrap();
    for (name, words) in [
        ("user", &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..]),
        ("namespace", &["unshare", "--pid", "--fork"]),
    ] {
        let words = [words, &TAKE].concat();
        let (code, said) = cluster.run(&container.answer, name, &[], &words).end().await;
        // 768 MiB are in use, and a context needs 512.
        assert!(code == Some(1) && said.contains("OUT_OF_MEMORY"), "{name}: {code:?} {said}");
    }
    // Others have their own.
    let other = one_gib(&cluster, "other").await;
    let words = [&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..], &TAKE];
    let (code, said) = cluster.run(&other.answer, "other", &[], &words.concat()).end().await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    drop(holder);
    cluster.stop().await;
}

#[tokio::test]
async fn a_container_whose_limits_are_not_known_waits_and_then_fails_with_a_line() {
    let Some(cluster) = Cluster::start().await else { return };
    // As an init container whose place no other container gets: no kubelet tells whose it is.
    let place = [format!("{}::9", gpu(1))];
    let answer = cluster.node.allocate(NUMBER, &place).await;
    cluster.node.start_with(&place).await.unwrap();
    let own = [("SLUICE_ON_FAILURE", "open"), ("CUDA_MEM_LIMIT", "1g")];
    let (code, said) = cluster.run(&answer, "init", &own, &TAKE).end().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the limits of this container are not known"), "{said}");
    assert!(!said.contains("granted_bytes"), "{said}");
    cluster.stop().await;
}

/// Root of the container is another user of the node, and what is the node's root's is nobody's in there.
#[tokio::test]
async fn a_container_with_a_user_namespace_is_held_to_its_memory() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    // The simulated node belongs to who made it.
    let (code, said) = cluster.run(&container.answer, "host", &[], &TAKE).end().await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    let shared = cluster.kubelet.path().join("image/shared/fake-node");
    fs::set_permissions(shared, fs::Permissions::from_mode(0o666)).unwrap();
    let run = |name: &str, own: &[(&str, &str)], words: &[&str]| {
        cluster.run_as(Some(300_000), &container.answer, name, own, words).end()
    };
    let (code, said) =
        run("map", &[], &["sh", "-c", "id -u; stat -c %u / /run/sluice/allocation"]).await;
    assert_eq!((code, &*said), (Some(0), "0\n0\n65534\n"));
    let nobody = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..];
    for (name, own, words) in [
        ("root", &[][..], TAKE.to_vec()),
        ("lifting", &LIFTING[..], TAKE.to_vec()),
        ("nobody", &LIFTING[..], [nobody, &TAKE].concat()),
    ] {
        let (code, said) = run(name, own, &words).await;
        assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{name}: {said}");
    }
    // A user whom the container knows has no say, nor has one who could be anybody where it can be written to.
    std::os::unix::fs::chown(&container.folder, Some(300_007), None).unwrap();
    let (code, said) = run("own", &[], &TAKE).await;
    assert!(code == Some(1) && said.contains("this is a folder of user 7"), "{said}");
    std::os::unix::fs::chown(&container.folder, Some(1000), None).unwrap();
    let mut answer = container.answer.clone();
    for mount in answer.mounts.iter_mut().filter(|one| one.container_path.ends_with("/allocation"))
    {
        mount.read_only = false;
    }
    let (code, said) = cluster.run_as(Some(300_000), &answer, "open", &[], &TAKE).end().await;
    assert!(code == Some(1) && said.contains("this is a folder of user 65534"), "{said}");
    cluster.stop().await;
}

/// What stands in the folder is the node's, or nothing works.
#[tokio::test]
async fn what_is_no_decision_of_the_nodes_fails_with_a_line() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    let file = container.folder.join("sluice-session.json");
    let run = |name: &str| cluster.run(&container.answer, name, &[], &TAKE).end();
    let chown = |uid| std::os::unix::fs::chown(&container.folder, Some(uid), None).unwrap();
    chown(1000);
    let (code, said) = run("owner").await;
    assert!(code == Some(1) && said.contains("expected a folder of root"), "{said}");
    chown(0);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let (code, said) = run("cut").await;
    assert!(code == Some(1) && said.contains("its limits are not known"), "{said}");
    fs::write(&file, whole).unwrap();
    let session = container.folder.join("session");
    fs::set_permissions(&session, fs::Permissions::from_mode(0o777)).unwrap();
    let (code, said) = run("open").await;
    assert!(code == Some(1) && said.contains("only user 0 or root can write to"), "{said}");
    fs::set_permissions(&session, fs::Permissions::from_mode(0o711)).unwrap();
    let (code, said) = run("whole").await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    cluster.stop().await;
}

/// The kubelet was slow: the program waits, and then has its limits.
#[tokio::test]
async fn a_container_whose_limits_come_late_waits_for_them() {
    let Some(mut cluster) = Cluster::start().await else { return };
    cluster.kubelet.tells_of_no_pods();
    let container = one_gib(&cluster, "pod").await;
    let running = cluster.run(&container.answer, "late", &[], &TAKE);
    assert_eq!(container.written(), None);
    cluster.kubelet.tell_of_pods();
    let (code, said) = running.end().await;
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    cluster.stop().await;
}

/// A cgroup as kubelets make it for a container of containerd. It goes with its last process.
pub(crate) struct Cgroup {
    folder: PathBuf,
    id: String,
}

impl Cgroup {
    /// Of the only container of a pod, whose UID ends with that digit.
    pub(crate) fn make(digit: char) -> Option<Self> {
        let id = format!("{digit}{:063x}", std::process::id());
        let pod = format!("kubepods/besteffort/pod11111111-2222-3333-4444-55555555555{digit}");
        let made = |root: &&str| {
            let folder = Path::new(root).join(&pod).join(&id);
            fs::create_dir_all(&folder).ok()?;
            folder.join("cgroup.procs").exists().then_some(folder)
        };
        let folder = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"];
        let folder = folder.iter().find_map(made)?;
        Some(Self { folder, id })
    }

    /// Puts a process there.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// How many processes are there.
    pub(crate) fn processes(&self) -> usize {
        fs::read_to_string(self.folder.join("cgroup.procs")).unwrap().lines().count()
    }

    /// Whether a process in it is seen in it: this may be in a container itself.
    pub(crate) fn counts(&self) -> bool {
        let script = r#"echo $$ > "$0/cgroup.procs" && cat /proc/self/cgroup"#;
        let mut tried = std::process::Command::new("sh");
        let tried = tried.args(["-c", script]).arg(&self.folder).output().unwrap();
        let seen = String::from_utf8_lossy(&tried.stdout).into_owned();
        seen.lines().any(|line| line.contains(":/kubepods/") && line.ends_with(&self.id))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let begun = std::time::Instant::now();
        while fs::remove_dir(&self.folder).is_err() && begun.elapsed().as_secs() < 5 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        // Other pods may be in those above its pod's.
        for folder in self.folder.ancestors().skip(1).take(3) {
            _ = fs::remove_dir(folder);
        }
    }
}

/// As its pod's container, with its limits and what it has.
#[tokio::test]
async fn the_nodes_daemon_knows_a_container_and_people_see_its_names() {
    the_daemon_knows(None, '5').await;
}

#[tokio::test]
async fn the_nodes_daemon_knows_a_container_with_a_user_namespace() {
    the_daemon_knows(Some(300_000), '6').await;
}

async fn the_daemon_knows(users: Option<u32>, digit: char) {
    let Some(cgroup) = Cgroup::make(digit).filter(Cgroup::counts) else {
        skipped("cgroups cannot be made here, or this is in a container itself");
        return;
    };
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    let (folder, socket) =
        (cluster.kubelet.path(), cluster.kubelet.path().join("daemon/hypervisor.sock"));
    let shared = folder.join("image/shared");
    let mut daemon = tokio::process::Command::new(built("hypervisor"))
        .args(["daemon", "--log", "warn", "--nvml", "none", "--socket"])
        .arg(&socket)
        .env("SLUICE_FAKE_NODE", shared.join("fake-node"))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until("the daemon listens", || socket.exists()).await;
    // The container makes its simulated node there.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let work = "until [ -e /shared/go ]; do sleep 0.05; done
        exec /image/tenant dense --kernel-us 1000 --seconds 600";
    let words = ["sh", "-c", work];
    let running = cluster.run_as(users, &container.answer, "main", &[], &words);
    cgroup.take(running.child.id().unwrap());
    fs::write(shared.join("go"), "").unwrap();
    let script = r#"mount -t tmpfs none /var/log && mkdir /var/log/containers
        ln -s nowhere "/var/log/containers/pod_default_main-$0.log"
        exec "$@""#;
    let sluice = |words: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-ec", script, &cgroup.id]).arg(built("sluice")).args(words);
        let output = command.arg("--daemon").arg(&socket).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&output.stdout) + &text(&output.stderr)
    };
    let begun = std::time::Instant::now();
    loop {
        let seen = sluice(&["status"]);
        if ["default/pod/main", "10 %", "1.0 GiB", "512.0 MiB"]
            .iter()
            .all(|word| seen.contains(word))
        {
            break;
        }
        assert!(begun.elapsed() < HANG, "{seen}{}", running.said());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let uuid = gpu(0).to_string();
    let change = ["limit", "default/pod/main", "--mem", "900MiB", "--device", &uuid];
    let said = sluice(&change);
    assert!(
        said.contains("memory was 1024 MiB, is now 900 MiB") || said.contains("is now 900"),
        "{said}"
    );
    // By the same name, with its figures and the limit that has just been changed.
    // The daemon looks once a second.
    let has_changed =
        |top: &str| ["default/pod/main", "900.0 MiB", "10%"].iter().all(|word| top.contains(word));
    let begun = std::time::Instant::now();
    loop {
        let top = sluice(&["top", "--once", "default/pod/main"]);
        if has_changed(&top) {
            break;
        }
        assert!(begun.elapsed() < HANG, "{top}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let explained = sluice(&["explain", "default/pod/main"]);
    let named = ["called default/pod/main", "10% fixed"];
    assert!(named.iter().all(|word| explained.contains(word)), "{explained}");
    for words in
        [["top", "--once", "default/other/main"].as_slice(), &["explain", "default/other/main"]]
    {
        let said = sluice(words);
        assert!(said.contains("default/other/main") && !said.contains("512.0 MiB"), "{said}");
    }
    // Its time is the daemon's to give.
    let charged = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let ask = b"GET /api/v1/sessions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(ask).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let list: Value = serde_json::from_str(body).unwrap();
        let own = list["sessions"].as_array().unwrap().iter();
        let mut own = own.filter(|session| session["container"]["id"] == cgroup.id.as_str());
        own.any(|session| session["devices"][0]["charged_us"].as_u64() > Some(0))
    };
    until("it has had leases", charged).await;
    drop(running);
    daemon.kill().await.unwrap();
    cluster.stop().await;
}

/// What a container cannot do to the folders that it sees.
#[tokio::test]
async fn a_container_can_neither_change_nor_see_more_than_its_own() {
    let Some(cluster) = Cluster::start().await else { return };
    let container = one_gib(&cluster, "pod").await;
    let other = one_gib(&cluster, "other").await;
    let script = "for file in /run/sluice/allocation/sluice-session.json /run/sluice/allocation/x /etc/ld.so.preload \
                  /run/sluice/library/libcuda_limiter.so /run/sluice/daemon/x; do
            if echo x 2>/dev/null >> $file; then echo wrote $file; fi
        done
        find /run/sluice -name '*.json' -o -name '*.page'";
    let running = cluster.run(&container.answer, "looks", &[], &["sh", "-c", script]);
    let (code, said) = running.end().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("wrote"), "{said}");
    // Limits within limits would hold nowhere.
    let words = ["/image/sluice", "run", "--mem", "512MiB", "--", "true"];
    let (code, told) = cluster.run(&container.answer, "within", &[], &words).end().await;
    assert!(code != Some(0) && told.contains("without 'sluice run'"), "{code:?} {told}");
    assert_eq!(said.matches(".page").count(), 2, "its own, at two places: {said}");
    assert_eq!(said.matches("sluice-session.json").count(), 1, "{said}");
    assert_eq!(
        (container.written(), other.written()),
        (Some(container.wanted()), Some(other.wanted()))
    );
    cluster.stop().await;
}

/// `sluice.dev/limits` holds for processes that run, within the promised time.
#[tokio::test]
async fn an_annotation_changes_what_running_processes_get() {
    let Some(mut kubelet) = prepared() else { return };
    kubelet.start();
    let cluster = people::started(&mut kubelet, vec![people::pod("changed", &json!({}))]).await;
    let place = format!("{}::3", gpu(0));
    let (answer, folder) = cluster.gets(&kubelet, "changed", "default", place).await.unwrap();
    let page = people::page(&folder);
    assert!(people::has(&page, 10, 1 << 30));
    // It takes what it gets, and then more of it whenever there is more.
    let grows = "echo begun; while ! /image/tenant mem --api alloc --chunk 16MiB --cap=1200MiB | grep -q '\"granted_bytes\":1258291200'
        do sleep 0.1; done; echo has more";
    let running = |name: &str, words: &[&str]| {
        run_in(kubelet.path(), None, Image::default(), &answer, name, &[], words)
    };
    let dense =
        running("dense", &["/image/tenant", "dense", "--kernel-us", "1000", "--seconds", "600"]);
    let shared = kubelet.path().join("image/shared/fake-node");
    until("a process has begun", || shared.exists()).await;
    until("it is a member", || !page.summary().unwrap().processes.is_empty()).await;
    let grows = running("grows", &["sh", "-c", grows]);
    until("the other one has begun", || grows.said().contains("begun")).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert!(!grows.said().contains("has more"), "{}", grows.said());
    let begun = std::time::Instant::now();
    let changed = json!({"sluice.dev/limits": "cores=50,memory=3GiB"});
    cluster.server.objects.change(people::pod("changed", &changed));
    until("the page has them", || people::has(&page, 50, 3 << 30)).await;
    let written = begun.elapsed();
    until("it is told", || !cluster.events("GPULimitsChanged").is_empty()).await;
    let told = begun.elapsed();
    println!("limits of a running pod: written after {written:.1?}, told after {told:.1?}");
    assert!(told < std::time::Duration::from_secs(4), "{told:?}");
    let event = cluster.events("GPULimitsChanged")[0]["note"].as_str().unwrap().to_owned();
    assert!(event.contains("cores 10 -> 50, memory 1024 MiB -> 3072 MiB; seen by "), "{event}");
    assert!(!event.contains("seen by 0 processes"), "{event}");
    until("a process has what was refused before", || grows.said().contains("has more")).await;
    drop((dense, grows));
    cluster.agent.stop().await.unwrap();
}
