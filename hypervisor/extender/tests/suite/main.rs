//! The extender beside an API server, called as kube-scheduler calls it.
#![allow(missing_docs, clippy::unwrap_used)]

mod quotas;
mod rooms;
mod several;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dialects::Dialect;
use extender::{ExtenderError, Options};
use serde_json::{Value, json};
use small_api_server::ApiServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const GPU: &str = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec";
const PATIENCE: Duration = Duration::from_secs(20);

/// An extender that runs until the test ends.
struct Running {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ExtenderError>>,
}

impl Running {
    async fn start(kubeconfig: PathBuf) -> Self {
        Self::start_with(kubeconfig, None).await
    }

    async fn start_with(kubeconfig: PathBuf, lease: Option<&str>) -> Self {
        // An address of this process's own: nobody else takes the port until it is used again.
        let [.., high, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, 1, high, low);
        let free = std::net::TcpListener::bind((own, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let options = Options {
            listen: address,
            dialects: vec![Dialect::VgpuManager],
            gates: "".parse().unwrap(),
            names: dialects::ResourceNames::default(),
            kubeconfig: Some(kubeconfig),
            lease: lease.map(|name| name.parse().unwrap()),
        };
        let (end, ended) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let end = async { drop(ended.await) };
            extender::serve(&options, end).await
        });
        let running = Self { address, end, served };
        running.until("/healthz", 200).await;
        running
    }

    /// Waits until a call is answered so.
    async fn until(&self, path: &str, status: u16) {
        let start = Instant::now();
        loop {
            let answer = self.call("GET", path, "").await;
            if answer.as_ref().is_some_and(|(said, _)| *said == status) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{path}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Status and body; `None`: nobody answers.
    async fn call(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut connection = TcpStream::connect(self.address).await.ok()?;
        let (address, length) = (self.address, body.len());
        let call = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        connection.write_all(call.as_bytes()).await.ok()?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.get(9..12)?.parse().ok()?, body.to_owned()))
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.call("POST", path, &body.to_string()).await.unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// What it says against a binding.
    async fn bind(&self, pod: &str, uid: &str, node: &str) -> String {
        let wanted =
            json!({"PodName": pod, "PodNamespace": "default", "PodUID": uid, "Node": node});
        let answer = self.post("/scheduler/bind", &wanted).await;
        answer["Error"].as_str().unwrap().to_owned()
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }
}

fn pod(name: &str, memory_mib: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {
            "nvidia.com/vgpu-number": "1",
            "nvidia.com/vgpu-cores": "30",
            "nvidia.com/vgpu-memory": memory_mib.to_string(),
        }}}]},
    })
}

fn node(name: &str, register: Option<&str>) -> Value {
    let annotations = register.map(|text| json!({"nvidia.com/node-device-register": text}));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}})
}

fn register() -> String {
    format!(
        r#"[{{"id":0,"type":"A10","uuid":"{GPU}","core":100,"memory":8000,"number":4,"numa":0,"mig":false,"busId":"","capability":0.0,"healthy":true}}]"#
    )
}

/// One GPU of 8,000 MiB on `roomy`, and a node that has registered none.
async fn cluster() -> (tempfile::TempDir, ApiServer, Running) {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path()).await.unwrap();
    server.objects.put_node(node("roomy", Some(&register())));
    server.objects.put_node(node("bare", None));
    let running = Running::start(server.kubeconfig.clone()).await;
    running.until("/readyz", 200).await;
    (folder, server, running)
}

#[tokio::test]
async fn nodes_are_left_out_by_name_and_in_full() {
    let (_folder, _server, extender) = cluster().await;
    let by_name = json!({"Pod": pod("train", 1024), "NodeNames": ["roomy", "bare", "unknown"]});
    let left = extender.post("/scheduler/filter", &by_name).await;
    assert_eq!(left["NodeNames"], json!(["roomy"]), "{left}");
    assert_eq!(left["Nodes"], Value::Null);
    let failed = left["FailedNodes"].as_object().unwrap();
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["bare", "unknown"]);
    assert_eq!(failed["unknown"], "the node is not known yet");
    let nodes = json!({"items": [node("bare", None), node("roomy", None)]});
    let in_full = json!({"Pod": pod("train", 1024), "Nodes": nodes});
    let left = extender.post("/scheduler/filter", &in_full).await;
    assert_eq!(left["Nodes"]["items"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left["Nodes"]["items"][0]["metadata"]["name"], "roomy");
    assert_eq!(left["NodeNames"], Value::Null);
    // More than any GPU has.
    let large = json!({"Pod": pod("large", 8001), "NodeNames": ["roomy"]});
    let left = extender.post("/scheduler/filter", &large).await;
    assert_eq!(left["NodeNames"], json!([]), "{left}");
    assert!(left["FailedNodes"]["roomy"].as_str().unwrap().contains("memory"), "{left}");
    extender.stop().await;
}

#[tokio::test]
async fn a_pod_is_bound_once_with_its_claims() {
    let (_folder, server, extender) = cluster().await;
    server.objects.put(pod("train", 1024));
    assert_eq!(extender.bind("train", "uid-of-train", "roomy").await, "");
    let bindings = || server.objects.written("POST", "/pods/train/binding");
    assert_eq!(bindings().len(), 1);
    let binding = &bindings()[0];
    assert_eq!(binding["target"]["name"], "roomy");
    assert_eq!(binding["metadata"]["uid"], "uid-of-train");
    let claimed = &binding["metadata"]["annotations"]["nvidia.com/pre-allocated"];
    assert_eq!(*claimed, format!("main[0_{GPU}_30_1024]"));
    let label = &server.objects.written("PATCH", "/pods/train")[0]["metadata"];
    assert_eq!(label["labels"]["nvidia.com/assigned-phase"], "allocating");
    // The scheduler has not heard the answer.
    assert_eq!(extender.bind("train", "uid-of-train", "roomy").await, "");
    assert_eq!(bindings().len(), 1);
    let said = extender.bind("train", "uid-of-train", "bare").await;
    assert_eq!(said, "the pod default/train is on the node roomy already");
    // What it has is gone for the next one.
    server.objects.put(pod("large", 7000));
    let said = extender.bind("large", "uid-of-large", "roomy").await;
    assert!(said.starts_with("node roomy: "), "{said}");
    server.objects.put(pod("beside", 6976));
    assert_eq!(extender.bind("beside", "uid-of-beside", "roomy").await, "");
    extender.stop().await;
}

#[tokio::test]
async fn a_pod_that_has_gone_or_is_another_one_is_not_bound() {
    let (_folder, server, extender) = cluster().await;
    server.objects.put(pod("train", 1024));
    for (name, uid) in [("train", "uid-of-the-one-before"), ("never", "uid-of-never")] {
        let said = extender.bind(name, uid, "roomy").await;
        assert_eq!(said, format!("the pod default/{name} has gone"));
    }
    let said = extender.bind("train", "uid-of-train", "bare").await;
    assert!(said.starts_with("node bare: "), "{said}");
    assert!(server.objects.written("POST", "/binding").is_empty());
    let (status, said) = extender.call("POST", "/scheduler/bind", "{").await.unwrap();
    assert_eq!(status, 400);
    assert!(said.contains("the body is not as expected: "), "{said}");
    extender.stop().await;
}

#[tokio::test]
async fn without_an_api_server_nothing_is_bound_and_it_says_why() {
    let (_folder, server, extender) = cluster().await;
    server.objects.put(pod("train", 1024));
    drop(server);
    let said = extender.bind("train", "uid-of-train", "roomy").await;
    assert!(said.starts_with("the API server: "), "{said}");
    // What it has heard of still counts.
    let wanted = json!({"Pod": pod("train", 1024), "NodeNames": ["roomy"]});
    let left = extender.post("/scheduler/filter", &wanted).await;
    assert_eq!(left["NodeNames"], json!(["roomy"]), "{left}");
    extender.stop().await;
}

/// Between the label that says "allocating" and the binding.
#[tokio::test]
async fn a_binding_without_an_answer_is_made_again_and_holds_nobody_up() {
    let (_folder, server, extender) = cluster().await;
    server.objects.put(pod("train", 1024));
    server.objects.put(pod("beside", 1024));
    server.objects.be_silent("/pods/train/binding");
    let wanted = extender.bind("train", "uid-of-train", "roomy");
    let others = async {
        let phase = |pod: &Value| pod["metadata"]["labels"]["nvidia.com/assigned-phase"].clone();
        while phase(&server.objects.pod("train").unwrap()) != "allocating" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // On the same node: it waits for its turn, and no longer than a call may take.
        extender.bind("beside", "uid-of-beside", "roomy").await
    };
    let (said, beside) = tokio::join!(wanted, others);
    assert_eq!(said, "the API server: no answer within 5 s");
    assert_eq!(beside, "");
    let train = server.objects.pod("train").unwrap();
    assert_eq!(train["spec"]["nodeName"], Value::Null);
    // `beside` is in phase allocating by now, and the next one waits for it.
    let mut placed = server.objects.pod("beside").unwrap();
    placed["metadata"]["labels"]["nvidia.com/assigned-phase"] = "succeed".into();
    server.objects.put(placed);
    // The binding that waits is made now, before or after this one.
    server.objects.speak();
    assert_eq!(extender.bind("train", "uid-of-train", "roomy").await, "");
    let train = server.objects.pod("train").unwrap();
    assert_eq!(train["spec"]["nodeName"], "roomy");
    let claimed = &train["metadata"]["annotations"]["nvidia.com/pre-allocated"];
    assert_eq!(*claimed, format!("main[0_{GPU}_30_1024]"));
    extender.stop().await;
}

#[tokio::test]
async fn before_it_has_heard_of_the_cluster_it_leaves_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path()).await.unwrap();
    let kubeconfig = server.kubeconfig.clone();
    drop(server);
    let extender = Running::start(kubeconfig).await;
    extender.until("/readyz", 503).await;
    let wanted = json!({"Pod": pod("train", 1024), "NodeNames": ["roomy"]});
    let left = extender.post("/scheduler/filter", &wanted).await;
    assert_eq!(left["Error"], "it has not heard of all nodes, pods and quotas yet");
    assert_eq!(left["NodeNames"], Value::Null);
    extender.stop().await;
}

/// What this process keeps in memory.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn half_sent_bodies_and_idle_connections_are_bounded_and_end() {
    const MIB: usize = 1 << 20;
    let (_folder, _server, extender) = cluster().await;
    let before = resident_mib();
    let half = vec![b' '; 59 * MIB];
    let head = format!(
        "POST /scheduler/filter HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        60 * MIB
    );
    let send = async || {
        let mut connection = TcpStream::connect(extender.address).await.unwrap();
        let mut answer = String::new();
        connection.write_all(head.as_bytes()).await.unwrap();
        let (mut reads, mut writes) = connection.split();
        // Whoever is refused reads no more.
        tokio::join!(async { drop(writes.write_all(&half).await) }, async {
            drop(reads.read_to_string(&mut answer).await);
        });
        answer
    };
    let sent = futures_util::future::join_all((0..12).map(|_| send()));
    let mut most = 0;
    let watched = async {
        loop {
            most = most.max(resident_mib());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let answers = tokio::time::timeout(4 * PATIENCE, async {
        tokio::select! { answers = sent => answers, () = watched => unreachable!() }
    });
    // The first one has all places; the others are told.
    let answers = answers.await.expect("they are not held for ever");
    assert!(
        answers.iter().any(|said| said.contains("the body did not arrive within")),
        "{answers:?}"
    );
    assert!(
        answers.iter().any(|said| said.contains("bodies of other calls take all memory")),
        "{answers:?}"
    );
    assert!(most < before + 200, "{before} MiB, then {most}");
    // More connections than there are places.
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(extender.address).await.unwrap());
    }
    let start = Instant::now();
    for mut connection in idle {
        let mut said = Vec::new();
        let closed = tokio::time::timeout(4 * PATIENCE, connection.read_to_end(&mut said)).await;
        assert!(closed.is_ok(), "an idle connection after {:?}", start.elapsed());
    }
    extender.until("/readyz", 200).await;
    let (status, said) = extender.call("POST", "/scheduler/bind", "{").await.unwrap();
    assert_eq!(status, 400, "{said}");
    extender.stop().await;
}

#[tokio::test]
async fn a_name_does_not_lead_to_another_object() {
    let (_folder, server, extender) = cluster().await;
    let mut secret = pod("train", 1024);
    secret["metadata"]["namespace"] = "default".into();
    server.objects.put(secret);
    for name in ["x/../train", "../pods/train", "train?x=", "train#", "%74rain"] {
        let said = extender.bind(name, "uid-of-train", "roomy").await;
        assert_eq!(said, format!("the pod default/{name} has gone"));
    }
    // A node's name selects nothing else.
    let said = extender.bind("train", "uid-of-train", "roomy,metadata.name=x").await;
    assert_eq!(said, "node roomy,metadata.name=x: the node is not known yet");
    assert!(server.objects.written("POST", "/binding").is_empty());
    extender.stop().await;
}
