//! Benchmark of the extender in a large cluster: 10,000 nodes with 8 GPUs each, and 20,000 pods that hold some.
//!
//! `cargo bench -p extender --bench cluster` prints the figures, in about two minutes: the time of each call, and the
//! extender's processor time, which other programs on the machine change little. The extender is a process of its own
//! and is called as kube-scheduler calls it; the API server is the tests', on the same machine.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dialects::Dialect;
use extender::Options;
use serde_json::{Value, json};
use small_api_server::ApiServer;

const NODES: usize = 10_000;
const GPUS: usize = 8;
const PODS: usize = 20_000;
const LISTEN: &str = "127.0.0.1:34561";
const CALLS: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|one| one == "serve") {
        return serve(&arguments[at + 1]);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = runtime.block_on(ApiServer::start(folder.path())).unwrap();
    fill(&server);
    let program = std::env::current_exe().unwrap();
    let mut extender = Command::new(program).arg("serve").arg(&server.kubeconfig).spawn().unwrap();
    let start = Instant::now();
    while call("GET", "/readyz", "").is_none_or(|(status, _)| status != 200) {
        assert!(start.elapsed() < Duration::from_secs(120), "it is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("ready after                      {:>7.1} s", start.elapsed().as_secs_f64());
    let nodes: Vec<String> = (0..NODES).map(|at| format!("node-{at}")).collect();
    measure(&extender, "filter, 500 nodes", || filter(&nodes[..500], 1000, 500));
    measure(&extender, "filter, 10,000 nodes", || filter(&nodes, 1000, NODES));
    measure(&extender, "filter, 500 nodes, all refuse", || filter(&nodes[..500], 79_000, 0));
    measure(&extender, "filter, 10,000 nodes, all refuse", || filter(&nodes, 79_000, 0));
    measure(&extender, "prioritize, 10,000 nodes", || prioritize(&nodes));
    let mut next = 0;
    measure(&extender, "bind", || {
        next += 1;
        bind(&server, next)
    });
    println!("memory at most                   {:>7} MiB", most_memory_mib(&extender));
    extender.kill().unwrap();
    extender.wait().unwrap();
}

fn serve(kubeconfig: &str) {
    let options = Options {
        listen: LISTEN.parse().unwrap(),
        dialects: vec![Dialect::VgpuManager],
        gates: "".parse().unwrap(),
        names: dialects::ResourceNames::default(),
        kubeconfig: Some(kubeconfig.into()),
        lease: None,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(extender::serve(&options, std::future::pending())).unwrap();
}

fn uuid(node: usize, gpu: usize) -> String {
    format!("GPU-00552014-5c87-89ac-b1a6-{node:06x}{gpu:06x}")
}

fn fill(server: &ApiServer) {
    for node in 0..NODES {
        let gpu = |index: usize| {
            json!({"id": index, "type": "NVIDIA A100-SXM4-80GB", "uuid": uuid(node, index), "core": 100, "memory": 81_920,
                "number": 10, "numa": index / 4, "mig": false, "busId": "0000:01:00.0", "capability": 8.0, "healthy": true})
        };
        let register = Value::from((0..GPUS).map(gpu).collect::<Vec<_>>()).to_string();
        let annotations = json!({"nvidia.com/node-device-register": register});
        let metadata = json!({"name": format!("node-{node}"), "annotations": annotations});
        server.objects.put_node(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
    }
    // Two pods on each node: one GPU is a quarter full, and the others have less room than the refused pod requests.
    for at in 0..PODS {
        let mut full = pod(&format!("held-{at}"), 4000);
        let (node, second) = (at % NODES, at / NODES);
        let claims: Vec<String> = (0..4)
            .map(|gpu| gpu + 4 * second)
            .map(|gpu| format!("{gpu}_{}_25_4000", uuid(node, gpu)))
            .collect();
        full["metadata"]["annotations"] =
            json!({"nvidia.com/pre-allocated": format!("main[{}]", claims.join(","))});
        full["spec"]["nodeName"] = format!("node-{node}").into();
        server.objects.put(full);
    }
}

fn pod(name: &str, memory_mib: u64) -> Value {
    let limits = json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "20",
        "nvidia.com/vgpu-memory": memory_mib.to_string()});
    let environment: Vec<Value> = (0..30)
        .map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "x".repeat(40)}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}")},
        "spec": {"containers": [{"name": "main", "image": "example", "env": environment, "resources": {"limits": limits}}]},
    })
}

/// Returns status and body.
fn call(method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let address: SocketAddr = LISTEN.parse().unwrap();
    let mut connection = TcpStream::connect(address).ok()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).ok()?;
    connection.write_all(body.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.get(9..12)?.parse().ok()?, body.to_owned()))
}

/// The time of the call alone, without preparation.
fn timed(path: &str, body: &Value) -> (Duration, Value) {
    let body = body.to_string();
    let start = Instant::now();
    let (status, answer) = call("POST", path, &body).unwrap();
    let took = start.elapsed();
    assert_eq!(status, 200, "{answer}");
    (took, serde_json::from_str(&answer).unwrap())
}

fn filter(nodes: &[String], memory_mib: u64, left: usize) -> Duration {
    let wanted = json!({"Pod": pod("asks", memory_mib), "NodeNames": nodes});
    let (took, answer) = timed("/scheduler/filter", &wanted);
    assert_eq!(answer["NodeNames"].as_array().unwrap().len(), left);
    took
}

fn prioritize(nodes: &[String]) -> Duration {
    let mut asks = pod("asks", 1000);
    asks["metadata"]["annotations"] = json!({"nvidia.com/node-scheduler-policy": "binpack"});
    let (took, answer) = timed("/scheduler/prioritize", &json!({"Pod": asks, "NodeNames": nodes}));
    assert_eq!(answer.as_array().unwrap().len(), nodes.len());
    took
}

fn bind(server: &ApiServer, at: usize) -> Duration {
    let name = format!("new-{at}");
    server.objects.change(pod(&name, 1000));
    let wanted = json!({"PodName": name, "PodNamespace": "default",
        "PodUID": format!("uid-of-{name}"), "Node": format!("node-{at}")});
    let (took, answer) = timed("/scheduler/bind", &wanted);
    assert_eq!(answer["Error"], "");
    took
}

fn measure(extender: &Child, what: &str, mut one: impl FnMut() -> Duration) {
    let before = processor_ms(extender);
    let mut all: Vec<Duration> = (0..CALLS).map(|_| one()).collect();
    let each = (processor_ms(extender) - before) as f64 / CALLS as f64;
    all.sort_unstable();
    let ms = |at: usize| all[at].as_secs_f64() * 1000.0;
    let (half, most) = (ms(CALLS / 2), ms(CALLS * 99 / 100));
    println!("{what:<32} p50 {half:>6.1} ms, p99 {most:>6.1} ms, processor {each:>5.1} ms");
}

/// Used so far, in user and kernel mode. Linux counts in hundredths of a second.
fn processor_ms(of: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", of.id())).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>());
    ticks.sum::<Result<u64, _>>().unwrap() * 10
}

fn most_memory_mib(of: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", of.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}
