//! Containers that get their GPUs by KAI's scheduler: what a container runtime sends a plugin by NRI, and what it is
//! answered.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use limits::{ComputeLimit, MemoryLimit};
use node::proto::ContainerAllocateResponse;
use node::proto::nri::{
    ConfigureResponse, Container, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, Mount, PodSandbox, PodSandboxRequest, RegisterPluginRequest,
    StartContainerRequest, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use node::proto::ttrpc::{Request, Response};
use node::{ClusterOptions, Options};
use prost::Message;
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::contained::{Image, TAKE, memory, prepared, result, run_in};
use super::support::{Agent, ApiServer, FakeKubelet, gpu, in_time, options, shows, until};

/// containerd's side: it calls on connection 1, and is called on connection 2.
struct Runtime {
    socket: UnixStream,
    stream: u32,
}

impl Runtime {
    /// A plugin comes, and is told which pods there are.
    async fn with_plugin(listener: &UnixListener, pods: &[&str]) -> Self {
        let (socket, _) = in_time(listener.accept()).await.unwrap();
        let mut runtime = Self { socket, stream: 1 };
        let (2, 1, call) = runtime.receive().await else { panic!("it registers") };
        let call = Request::decode(&*call).unwrap();
        assert_eq!(
            (&*call.service, &*call.method),
            ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        );
        let plugin = RegisterPluginRequest::decode(&*call.payload).unwrap();
        assert_eq!((&*plugin.plugin_name, &*plugin.plugin_idx), ("sluice", "90"));
        runtime.send(2, (1, 2), &Response::default().encode_to_vec()).await;
        let configured: ConfigureResponse = runtime.call("Configure", &()).await.unwrap();
        // CreateContainer, StartContainer, StopPodSandbox and RemovePodSandbox.
        assert_eq!(configured.events, 0b10_1110);
        let pod = |uid: &&str| PodSandbox { uid: (*uid).to_owned(), ..PodSandbox::default() };
        for more in [true, false] {
            let pods = if more { pods.iter().map(pod).collect() } else { Vec::new() };
            let request = SynchronizeRequest { pods, more };
            let answer: SynchronizeResponse = runtime.call("Synchronize", &request).await.unwrap();
            assert_eq!(answer.more, more);
        }
        runtime
    }

    async fn receive(&mut self) -> (u32, u8, Vec<u8>) {
        let mut message = Vec::new();
        loop {
            let connection = in_time(self.socket.read_u32()).await.unwrap();
            let length = self.socket.read_u32().await.unwrap();
            // A runtime's buffer: a longer piece is an error of its own.
            assert!(length <= 4096, "{length}");
            let begin = message.len();
            message.resize(begin + usize::try_from(length).unwrap(), 0);
            self.socket.read_exact(&mut message[begin..]).await.unwrap();
            let size = u32::from_be_bytes(message[..4].try_into().unwrap());
            if message.len() == 10 + usize::try_from(size).unwrap() {
                return (connection, message[8], message.split_off(10));
            }
        }
    }

    /// Go's writer has a buffer: what does not fit comes in two pieces.
    async fn send(&mut self, connection: u32, (stream, kind): (u32, u8), payload: &[u8]) {
        let mut message = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(payload);
        let (first, second) = message.split_at(message.len().min(4096));
        for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
            self.socket.write_u32(connection).await.unwrap();
            self.socket.write_u32(u32::try_from(piece.len()).unwrap()).await.unwrap();
            self.socket.write_all(piece).await.unwrap();
        }
    }

    async fn call<T: Message + Default>(
        &mut self,
        method: &str,
        message: &impl Message,
    ) -> Result<T, String> {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload: message.encode_to_vec(),
            timeout_nano: 2_000_000_000,
        };
        self.stream += 2;
        self.send(1, (self.stream, 1), &request.encode_to_vec()).await;
        let (1, 2, answer) = self.receive().await else { panic!("an answer to {method}") };
        let Response { status, payload } = Response::decode(&*answer).unwrap();
        match status.filter(|status| status.code != 0) {
            Some(status) => Err(status.message),
            None => Ok(T::decode(&*payload).unwrap()),
        }
    }

    async fn create(
        &mut self,
        pod: &PodSandbox,
        container: Container,
    ) -> Result<Option<ContainerAdjustment>, String> {
        let (pod, container) = (Some(pod.clone()), Some(container));
        let request = CreateContainerRequest { pod, container };
        let answer: CreateContainerResponse = self.call("CreateContainer", &request).await?;
        Ok(answer.adjust)
    }
}

fn pod(name: &str, annotations: &[(&str, &str)]) -> PodSandbox {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    PodSandbox {
        id: format!("sandbox-of-{name}"),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        namespace: "team".to_owned(),
        annotations: annotations.iter().map(own).collect(),
    }
}

/// As KAI's binder lets it see a GPU, by a ConfigMap that the kubelet has read. `mounts`: where volumes are.
fn container(name: &str, visible: &str, mounts: &[&str]) -> Container {
    let mount = |path: &&str| Mount { destination: (*path).to_owned(), ..Mount::default() };
    // Long, as the variables of services are.
    let mut env: Vec<String> =
        (0..300).map(|at| format!("SERVICE_{at}=tcp://10.0.0.1:80")).collect();
    env.extend(["GPU_PORTION=0.5".to_owned(), format!("NVIDIA_VISIBLE_DEVICES={visible}")]);
    Container {
        id: format!("id-of-{name}"),
        name: name.to_owned(),
        env,
        mounts: mounts.iter().map(mount).collect(),
        pid: 0,
    }
}

/// What a runtime makes of an adjustment.
fn adjusted(adjustment: ContainerAdjustment) -> ContainerAllocateResponse {
    let mount = |mount: Mount| node::proto::Mount {
        read_only: mount.options.iter().any(|option| option == "ro"),
        host_path: mount.source,
        container_path: mount.destination,
    };
    ContainerAllocateResponse {
        envs: adjustment.env.into_iter().map(|one| (one.key, one.value)).collect::<HashMap<_, _>>(),
        mounts: adjustment.mounts.into_iter().map(mount).collect(),
        ..ContainerAllocateResponse::default()
    }
}

fn with_nri(folder: &Path) -> (Options, PathBuf) {
    let socket = folder.join("nri.sock");
    (Options { nri: Some(socket.clone()), ..options(folder) }, socket)
}

#[tokio::test]
async fn a_container_of_kai_is_held_to_memory_and_compute() {
    let Some(kubelet) = prepared() else { return };
    let (options, socket) = with_nri(kubelet.path());
    let listener = UnixListener::bind(socket).unwrap();
    let agent = Agent::start(options, shows(2));
    let mut runtime = Runtime::with_plugin(&listener, &[]).await;
    let first = gpu(0).to_string();
    let run = |adjustment: ContainerAdjustment, name: &str, words: &[&str]| {
        let answer = adjusted(adjustment);
        run_in(kubelet.path(), None, Image::default(), &answer, name, &[], words).end()
    };
    let memory_pod = pod("memory", &[("gpu-memory", "1024")]);
    let created = runtime.create(&memory_pod, container("main", &first, &["/data"])).await;
    let (code, said) = run(created.unwrap().unwrap(), "memory", &TAKE).await;
    // A context takes 512 MiB on the simulated device.
    assert_eq!((code, memory(&said)), (Some(0), (1024, 512)), "{said}");
    let fraction = pod("fraction", &[("gpu-fraction", "0.4")]);
    let created = runtime.create(&fraction, container("main", &first, &[])).await;
    let dense = ["/image/tenant", "dense", "--kernel-us", "1000", "--seconds", "5"];
    let (code, said) = run(created.unwrap().unwrap(), "fraction", &dense).await;
    assert_eq!(code, Some(0), "{said}");
    let percent = result(&said)["kernels"].as_u64().unwrap() / 50;
    println!("a gpu-fraction of 0.4: {percent} % of the GPU's time");
    assert!((1..=45).contains(&percent), "{percent} %");
    agent.stop().await.unwrap();
}

/// The runtime asks when all is mounted and the program does not run yet: an image's links are followed by then.
#[tokio::test]
async fn a_container_whose_limits_a_volume_hides_does_not_start() {
    let Some(kubelet) = prepared() else { return };
    let (options, socket) = with_nri(kubelet.path());
    let listener = UnixListener::bind(socket).unwrap();
    let agent = Agent::start(options, shows(2));
    let mut runtime = Runtime::with_plugin(&listener, &[]).await;
    let pod = pod("pod", &[("gpu-fraction", "0.1")]);
    let created = runtime.create(&pod, container("main", &gpu(0).to_string(), &[])).await;
    let answer = adjusted(created.unwrap().unwrap());
    let (empty, nothing) = (kubelet.path().join("empty"), kubelet.path().join("nothing"));
    fs::create_dir(&empty).unwrap();
    fs::write(&nothing, "").unwrap();
    let covers = [
        ("plain", None),
        ("data", Some((&empty, "/data"))),
        ("preload", Some((&nothing, "/etc/ld.so.preload"))),
        ("library", Some((&empty, "/run/sluice/library"))),
        ("session", Some((&empty, "/run/sluice/session"))),
        ("all", Some((&empty, "/run/sluice"))),
    ];
    let mut present = None;
    for (name, volume) in covers {
        let mut answer = answer.clone();
        answer.mounts.extend(volume.map(|(host, inside)| node::proto::Mount {
            host_path: host.to_str().unwrap().to_owned(),
            container_path: inside.to_owned(),
            read_only: false,
        }));
        let words = ["sh", "-c", "echo begun; exec sleep 600"];
        let running = run_in(kubelet.path(), None, Image::default(), &answer, name, &[], &words);
        until("its mounts are made", || running.has_said("begun")).await;
        let mut own = container("main", "", &[]);
        own.pid = running.pid();
        let change =
            StateChangeEvent { event: 6, pod: Some(pod.clone()), container: Some(own.clone()) };
        let old = runtime.call::<()>("StateChange", &change).await;
        let request = StartContainerRequest { pod: Some(pod.clone()), container: Some(own) };
        let new = runtime.call::<()>("StartContainer", &request).await;
        assert_eq!(old, new);
        match ["plain", "data"].contains(&name) {
            true => assert_eq!(new, Ok(()), "{name}"),
            false => {
                let said = new.unwrap_err();
                let is_it = said.starts_with("sluice: team/pod/main: a volume lies over /");
                assert!(is_it && said.contains("as the container sees it"), "{name}: {said}");
            }
        }
        present = present.or(Some(running));
    }
    // An earlier sandbox of the pod ends late: what the present container has stays until it has ended, too.
    let session = answer.mounts.iter().find(|mount| mount.container_path == "/run/sluice/session");
    let session = PathBuf::from(&session.unwrap().host_path);
    let stopped = PodSandboxRequest { pod: Some(pod.clone()) };
    runtime.call::<()>("StopPodSandbox", &stopped).await.unwrap();
    assert!(session.exists());
    drop(present);
    let begun = Instant::now();
    while session.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody has it any more");
        tokio::time::sleep(Duration::from_millis(50)).await;
        runtime.call::<()>("StopPodSandbox", &stopped).await.unwrap();
    }
    // One without an allocation, and one that has ended.
    for pid in [std::process::id(), u32::MAX] {
        let mut own = container("main", "", &[]);
        own.pid = pid;
        let request = StartContainerRequest { pod: Some(pod.clone()), container: Some(own) };
        assert_eq!(runtime.call::<()>("StartContainer", &request).await, Ok(()));
    }
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_runtime_asks_is_answered_and_what_has_ended_is_given_back() {
    let kubelet = FakeKubelet::running();
    let (options, socket) = with_nri(kubelet.path());
    let listener = UnixListener::bind(socket).unwrap();
    let agent = Agent::start(options.clone(), shows(2));
    let mut runtime = Runtime::with_plugin(&listener, &[]).await;
    let (first, half) = (gpu(0).to_string(), [("gpu-fraction", "0.5")]);
    let folders = || {
        let all = fs::read_dir(&options.allocations).unwrap().map(|one| one.unwrap().path());
        all.filter(|path| path.join("sluice-session.json").exists()).count()
    };
    // Others are left alone.
    let plain = runtime.create(&pod("plain", &[]), container("main", "all", &[])).await;
    assert_eq!(plain, Ok(None));
    let (a, b, c) = (pod("a", &half), pod("b", &half), pod("c", &half));
    let own = runtime.create(&a, container("main", &first, &[])).await.unwrap().unwrap();
    let inside: Vec<&str> = own.mounts.iter().map(|mount| &*mount.destination).collect();
    let wanted =
        ["library", "daemon", "allocation", "session"].map(|name| format!("/run/sluice/{name}"));
    assert!(wanted.iter().all(|path| inside.contains(&&**path)), "{inside:?}");
    assert!(inside.contains(&"/etc/ld.so.preload") && own.env[0].key == "SLUICE_ALLOCATION");
    // It is started anew: the same one.
    let again = runtime.create(&a, container("main", &first, &[])).await.unwrap().unwrap();
    assert_eq!(again, own);
    runtime.create(&b, container("main", &first, &[])).await.unwrap();
    let full = runtime.create(&c, container("main", &first, &[])).await.unwrap_err();
    assert!(
        full.starts_with("sluice: team/c/main: cores of ") && full.contains("0 of 100 are left"),
        "{full}"
    );
    let volume = runtime.create(&c, container("main", &first, &["/var/run/sluice/allocation"]));
    let volume = volume.await.unwrap_err();
    assert!(volume.contains("would take its limits away"), "{volume}");
    let wrong = pod("wrong", &[("gpu-fraction", "2")]);
    let wrong = runtime.create(&wrong, container("main", &first, &[])).await.unwrap_err();
    assert!(wrong.ends_with("expected a number above 0, up to 1"), "{wrong}");
    let other = pod("other", &[half[0], ("gpu-fraction-container-name", "main")]);
    let hidden = runtime.create(&other, container("sidecar", "all", &[])).await.unwrap().unwrap();
    assert_eq!((&*hidden.env[0].key, &*hidden.env[0].value), ("NVIDIA_VISIBLE_DEVICES", "void"));
    // A pod ends, in the words of both versions.
    let ended = StateChangeEvent { event: 2, pod: Some(a.clone()), container: None };
    runtime.call::<()>("StateChange", &ended).await.unwrap();
    runtime.create(&c, container("main", &first, &[])).await.unwrap().unwrap();
    let ended = PodSandboxRequest { pod: Some(b) };
    runtime.call::<()>("StopPodSandbox", &ended).await.unwrap();
    assert_eq!(folders(), 1);
    runtime.create(&a, container("main", &first, &[])).await.unwrap().unwrap();
    assert_eq!(folders(), 2);
    // The agent is away while pods come and go. The runtime tells what is left.
    agent.kill().await;
    drop(runtime);
    let agent = Agent::start(options.clone(), shows(2));
    let runtime = Runtime::with_plugin(&listener, &["uid-of-a", "uid-of-x"]).await;
    assert_eq!(folders(), 1);
    // The runtime restarts.
    drop(runtime);
    _ = Runtime::with_plugin(&listener, &[]).await;
    assert_eq!(folders(), 0);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn without_nri_people_are_told_once() {
    let kubelet = FakeKubelet::running();
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    let kubeconfig = Some(server.kubeconfig.clone());
    let cluster = Some(ClusterOptions { node: "here".to_owned(), kubeconfig });
    let (options, socket) = with_nri(kubelet.path());
    let agent = Agent::start(Options { cluster, ..options }, shows(1));
    let told = || {
        let all = server.objects.written("POST", "/events").into_iter();
        all.filter(|event| event["reason"] == "NRIUnavailable").collect::<Vec<_>>()
    };
    until("it is told", || !told().is_empty()).await;
    let note = told()[0]["note"].as_str().unwrap().to_owned();
    assert!(
        note.contains("nri.sock: No such file") && note.contains("are not limited until"),
        "{note}"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(told().len(), 1);
    // It is switched on.
    let listener = UnixListener::bind(socket).unwrap();
    Runtime::with_plugin(&listener, &[]).await;
    agent.stop().await.unwrap();
}

/// As NVIDIA's driver and its scheduler write them.
#[tokio::test]
async fn a_container_with_a_claim_of_nvidias_driver_is_held_to_its_part() {
    let kubelet = FakeKubelet::running();
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    let base = "/apis/resource.k8s.io/v1";
    let device = |number: u8| {
        json!({"name": format!("gpu-{number}"), "attributes": {"uuid": {"string": gpu(number)
        .to_string()}}})
    };
    let slice = json!({"metadata": {"name": "s"}, "spec": {"devices": [device(0), device(1)]}});
    let list = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "metadata": {}, "items": [slice]});
    server.objects.put_other(&format!("{base}/resourceslices"), list);
    let claim = |name: &str, consumed: Value, parameters: Value| {
        let result = json!({"driver": "gpu.nvidia.com", "pool": "here", "device": "gpu-1", "request": "r",
            "consumedCapacity": consumed});
        let config = json!({"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}});
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team", "uid": format!("uid-of-claim-{name}")},
            "status": {"allocation": {"devices": {"results": [result], "config": [config]}}}});
        let path = format!("{base}/namespaces/team/resourceclaims/{name}");
        server.objects.put_other(&path, object);
    };
    claim("part-x1", json!({"memory": "40Gi"}), json!({}));
    claim(
        "mps",
        json!({}),
        json!({"sharing": {"strategy": "MPS", "mpsConfig": {
        "defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "2Gi"}}}),
    );
    claim("whole", json!({}), json!({"sharing": {"strategy": "TimeSlicing"}}));
    let gone = |number: u8| {
        let name = format!("gone-{number}");
        json!({"name": name, "resourceClaimName": name})
    };
    let container_of = |name: &str, claims: &[&str]| {
        let claims: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
        json!({"name": name, "resources": {"claims": claims}})
    };
    server.objects.put(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "pod", "namespace": "team", "uid": "uid-of-pod"},
        "spec": {"nodeName": "here",
            "resourceClaims": [{"name": "part", "resourceClaimTemplateName": "t"}, {"name": "mps", "resourceClaimName": "mps"},
                {"name": "whole", "resourceClaimName": "whole"}, {"name": "gone", "resourceClaimName": "gone"},
                gone(1), gone(2), gone(3), gone(4), gone(5), gone(6)],
            "containers": [container_of("a", &["part"]), container_of("b", &["part", "gone"]), container_of("c", &["mps"]),
                container_of("d", &["whole"]), container_of("both", &["part", "mps"]), container_of("none", &[]),
                container_of("many", &["gone-1", "gone-2", "gone-3", "gone-4", "gone-5", "gone-6"])]},
        "status": {"resourceClaimStatuses": [{"name": "part", "resourceClaimName": "part-x1"}]},
    }));
    let cluster =
        ClusterOptions { node: "here".to_owned(), kubeconfig: Some(server.kubeconfig.clone()) };
    let (options, socket) = with_nri(kubelet.path());
    let listener = UnixListener::bind(socket).unwrap();
    let agent = Agent::start(Options { cluster: Some(cluster), ..options }, shows(2));
    let mut runtime = Runtime::with_plugin(&listener, &[]).await;
    let pod = pod("pod", &[]);
    let mut created = HashMap::new();
    for name in ["a", "b", "c", "d", "none"] {
        let adjustment = runtime.create(&pod, container(name, "void", &[])).await.unwrap();
        created.insert(name, adjustment);
    }
    let limits = |name: &str| {
        let mounts = &created[name].as_ref().unwrap().mounts;
        let session = mounts.iter().find(|mount| mount.destination == "/run/sluice/session");
        let page = Path::new(&session.unwrap().source).join(format!("{}.page", gpu(1)));
        Page::open_existing(&page).unwrap().look().unwrap().limits()
    };
    // As metrics and `sluice status` call them.
    let called = |name: &str| {
        let mounts = &created[name].as_ref().unwrap().mounts;
        let own = mounts.iter().find(|mount| mount.destination == "/run/sluice/allocation");
        OwnerSettings::of(Path::new(&own.unwrap().source)).unwrap().name.unwrap()
    };
    assert_eq!((&*called("a"), &*called("c")), ("claim team/part-x1", "team/pod/c"));
    // 40 GiB of 81,559 MiB.
    assert_eq!(limits("a").memory, Some(MemoryLimit::new(40 << 30)));
    assert_eq!(limits("a").compute, ComputeLimit::fixed(500_000));
    assert_eq!(created["a"], created["b"], "the claim is one session");
    assert_eq!(limits("c").memory, Some(MemoryLimit::new(2 << 30)));
    assert_eq!(limits("c").compute, ComputeLimit::fixed(300_000));
    assert_eq!((&created["d"], &created["none"]), (&None, &None));
    let both = runtime.create(&pod, container("both", "void", &[])).await.unwrap_err();
    assert!(both.contains("both with limits; expected one"), "{both}");
    // What cannot be known is refused in time, also if each answer comes in time: a runtime waits for 2 s.
    let begun = Instant::now();
    let slow = async {
        for number in 1..=6 {
            server.objects.be_silent(&format!("/gone-{number}"));
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let create = async {
        let refused = runtime.create(&pod, container("many", "void", &[])).await.unwrap_err();
        (refused, begun.elapsed())
    };
    let ((late, took), ()) = tokio::join!(create, slow);
    assert!(late.contains("team/pod/many: its claims: the API server: no answer"), "{late}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    // It is away: all start of which the runtime itself tells that they have no claim, and those that had limits before.
    server.objects.be_silent("");
    let (other, fixed) =
        (self::pod("other", &[]), self::pod("fixed", &[("kubernetes.io/config.source", "file")]));
    let plain = Container { name: "main".to_owned(), ..Container::default() };
    assert_eq!(runtime.create(&other, plain).await, Ok(None));
    assert_eq!(runtime.create(&fixed, container("main", "all", &[])).await, Ok(None));
    let of_kai = self::pod("kai", &[("gpu-fraction", "0.1")]);
    let of_kai = runtime.create(&of_kai, container("main", &gpu(0).to_string(), &[])).await;
    assert!(of_kai.unwrap().is_some());
    for name in ["a", "c"] {
        let again = runtime.create(&pod, container(name, "void", &[])).await.unwrap();
        assert_eq!(again, created[name]);
    }
    let refused = runtime.create(&other, container("main", "void", &[])).await.unwrap_err();
    let said = "sluice: team/other/main: its claims: the API server: no answer within 500 ms; expected the API server to \
                say what they have";
    assert_eq!(refused, said);
    agent.stop().await.unwrap();
}
