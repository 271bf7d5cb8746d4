//! The webhook beside an API server, called over TLS as API servers call it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dialects::{Dialect, ResourceNames};
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use small_api_server::{ApiServer, Objects};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use webhook::{Certificates, NAME, Options, Rotation, Rules, WebhookError};

const PATIENCE: Duration = Duration::from_secs(20);
const HOST: &str = "sluice-webhook.sluice.svc";
const SECRET: &str = "/api/v1/namespaces/sluice/secrets/sluice-webhook";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const KINDS: [&str; 2] = ["Mutating", "Validating"];
const ROTATION: Rotation = Rotation {
    lifetime: Duration::from_secs(90 * 24 * 3600),
    settle: Duration::from_secs(1),
    poll: Duration::from_millis(50),
};

/// A webhook that runs until the test ends.
struct Running {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    served: JoinHandle<Result<(), WebhookError>>,
}

impl Running {
    /// It may not serve yet.
    fn start(certificates: Certificates) -> Self {
        // An address of this process's own: nobody else takes the port until it is used again.
        let [.., high, low] = std::process::id().to_be_bytes();
        let free = std::net::TcpListener::bind((Ipv4Addr::new(127, 3, high, low), 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let options = Options {
            listen: address,
            rules: Rules {
                dialects: vec![Dialect::VgpuManager],
                scheduler: Some("vgpu-scheduler".into()),
                runtime_class: None,
                names: ResourceNames::default(),
            },
            certificates,
            rotation: ROTATION,
            linger: Duration::from_millis(200),
        };
        let (end, ended) = oneshot::channel::<()>();
        let served =
            tokio::spawn(
                async move { webhook::serve(&options, async { drop(ended.await) }).await },
            );
        Self { address, end, served }
    }

    fn own(server: &ApiServer) -> Self {
        Self::start(Certificates::SelfIssued {
            namespace: "sluice".into(),
            name: NAME.into(),
            kubeconfig: Some(server.kubeconfig.clone()),
        })
    }

    async fn connect(&self, roots: RootCertStore) -> Option<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.ok()?;
        TlsConnector::from(Arc::new(config)).connect(HOST.try_into().unwrap(), stream).await.ok()
    }

    /// What it says of a pod; `None`: nobody that is trusted answers.
    async fn review(&self, roots: RootCertStore, path: &str, pod: &Value) -> Option<Value> {
        let connection = self.connect(roots).await?;
        let body = review(pod);
        answer(connection, &[&head(path, body.len()), &body]).await
    }

    /// Waits until it is called with success.
    async fn is_served(&self, objects: &Objects) {
        let start = Instant::now();
        loop {
            let roots = trusted(objects, KINDS[0]);
            if self.review(roots, "/validate", &pod("5")).await.is_some() {
                return;
            }
            assert!(start.elapsed() < PATIENCE && !self.served.is_finished());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The certificate that a new connection gets.
    async fn certificate(&self, roots: RootCertStore) -> Vec<u8> {
        certificate(&self.connect(roots).await.unwrap())
    }
}

fn certificate(connection: &TlsStream<TcpStream>) -> Vec<u8> {
    connection.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn head(path: &str, length: usize) -> String {
    format!("POST {path}?timeout=5s HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n")
}

fn review(pod: &Value) -> String {
    let request = json!({"uid": "u-1", "operation": "CREATE", "namespace": "default", "object": pod, "dryRun": false});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string()
}

/// The answer to what is sent in these parts. The connection ends with it.
async fn answer(mut connection: TlsStream<TcpStream>, parts: &[&str]) -> Option<Value> {
    for part in parts {
        connection.write_all(part.as_bytes()).await.ok()?;
    }
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&answer["kind"], &answer["response"]["uid"]),
        (&json!("AdmissionReview"), &json!("u-1"))
    );
    Some(answer["response"].clone())
}

fn pod(cores: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "train-"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/vgpu-cores": cores}}}]},
    })
}

fn bytes(base64: &Value) -> Vec<u8> {
    serde_json::from_value::<ByteString>(base64.clone()).unwrap().0
}

fn configuration(kind: &str) -> String {
    format!("{GROUP}/{}webhookconfigurations/{NAME}", kind.to_lowercase())
}

/// The CAs that API servers trust by a configuration.
fn trusted(objects: &Objects, kind: &str) -> RootCertStore {
    let found = objects.other(&configuration(kind)).unwrap();
    let bundle = &found["webhooks"][0]["clientConfig"]["caBundle"];
    let mut roots = RootCertStore::empty();
    if !bundle.is_null() {
        for authority in CertificateDer::pem_slice_iter(&bytes(bundle)) {
            roots.add(authority.unwrap()).unwrap();
        }
    }
    roots
}

/// An API server as a chart leaves it.
async fn cluster() -> (tempfile::TempDir, ApiServer) {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path()).await.unwrap();
    for kind in KINDS {
        let webhook = json!({
            "name": "gpu-pods.sluice.dev", "failurePolicy": "Fail", "ofALaterVersion": 1,
            "clientConfig": {"service": {"name": NAME, "namespace": "sluice", "path": "/"}},
            "matchConditions": [{"name": "asks-for-gpus", "expression": "true"}],
        });
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": NAME}, "webhooks": [webhook],
        });
        server.objects.put_other(&configuration(kind), object);
    }
    (folder, server)
}

#[tokio::test]
async fn api_servers_trust_it_and_get_patches_and_refusals() {
    let (_folder, server) = cluster().await;
    let running = Running::own(&server);
    running.is_served(&server.objects).await;
    for kind in KINDS {
        let roots = trusted(&server.objects, kind);
        let changed = running.review(roots, "/mutate", &pod("30")).await.unwrap();
        assert_eq!(
            (&changed["allowed"], &changed["patchType"]),
            (&json!(true), &json!("JSONPatch"))
        );
        let patch: Value = serde_json::from_slice(&bytes(&changed["patch"])).unwrap();
        let path = "/spec/containers/0/resources/limits/nvidia.com~1vgpu-number";
        assert_eq!(patch[0], json!({"op": "add", "path": path, "value": "1"}));
        assert_eq!(patch[1]["value"], "vgpu-scheduler");
        let kept = server.objects.other(&configuration(kind)).unwrap();
        assert_eq!(kept["webhooks"][0]["ofALaterVersion"], 1);
    }
    let roots = || trusted(&server.objects, KINDS[0]);
    let plain = json!({"spec": {"containers": [{"name": "main"}]}});
    let unchanged = running.review(roots(), "/mutate", &plain).await.unwrap();
    assert_eq!(unchanged, json!({"uid": "u-1", "allowed": true}));
    let mut wrong = pod("300");
    wrong["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/vgpu-number"] = "1".into();
    let refused = running.review(roots(), "/validate", &wrong).await.unwrap();
    let said = "container main: nvidia.com/vgpu-cores: 300 cores of each of its GPUs are asked for; expected 1 to 100";
    assert_eq!((&refused["allowed"], &refused["status"]["message"]), (&json!(false), &json!(said)));
}

#[tokio::test]
async fn replicas_agree_on_one_certificate_and_write_a_lost_secret_again() {
    let (_folder, server) = cluster().await;
    let replicas = [Running::own(&server), Running::own(&server), Running::own(&server)];
    for replica in &replicas {
        replica.is_served(&server.objects).await;
    }
    let roots = || trusted(&server.objects, KINDS[1]);
    let first = replicas[0].certificate(roots()).await;
    for replica in &replicas[1..] {
        assert_eq!(replica.certificate(roots()).await, first);
    }
    let kept = server.objects.other(SECRET).unwrap();
    assert_eq!(kept["type"], "kubernetes.io/tls");
    server.objects.remove_other(SECRET);
    let start = Instant::now();
    while server.objects.other(SECRET).is_none_or(|found| found["data"] != kept["data"]) {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(replicas[2].certificate(roots()).await, first);
}

#[tokio::test]
async fn it_waits_for_an_api_server_and_for_its_configurations() {
    let (_folder, mut server) = cluster().await;
    let missing = configuration(KINDS[1]);
    let object = server.objects.other(&missing).unwrap();
    server.objects.remove_other(&missing);
    server.leave();
    let running = Running::own(&server);
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.come_back().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!running.served.is_finished());
    server.objects.put_other(&missing, object);
    running.is_served(&server.objects).await;
}

/// As an API server whose watch tells of a configuration somewhat later.
struct Caller {
    running: Arc<Running>,
    objects: Objects,
    begun: Arc<Barrier>,
}

impl Caller {
    /// Calls until another certificate is shown than at first; both.
    async fn call_until_rotated(self) -> [Vec<u8>; 2] {
        let first = self.call().await;
        self.begun.wait().await;
        loop {
            let shown = self.call().await;
            if shown != first {
                return [first, shown];
            }
        }
    }

    async fn call(&self) -> Vec<u8> {
        let roots = trusted(&self.objects, KINDS[0]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let connection = self.running.connect(roots).await.unwrap();
        let certificate = certificate(&connection);
        let body = review(&pod("30"));
        let said = answer(connection, &[&head("/mutate", body.len()), &body]).await;
        assert_eq!(said.unwrap()["allowed"], true);
        certificate
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_loses_nothing() {
    let (_folder, server) = cluster().await;
    let running = Arc::new(Running::own(&server));
    running.is_served(&server.objects).await;
    let begun = Arc::new(Barrier::new(9));
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let caller = Caller {
            running: Arc::clone(&running),
            objects: server.objects.clone(),
            begun: Arc::clone(&begun),
        };
        callers.spawn(caller.call_until_rotated());
    }
    begun.wait().await;
    // A call that is under way all the time: as much of it has come as keeps it from being answered.
    let mut slow = running.connect(trusted(&server.objects, KINDS[0])).await.unwrap();
    let first = certificate(&slow);
    let body = review(&pod("30"));
    let (sent, rest) = body.split_at(body.len() / 2);
    slow.write_all(format!("{}{sent}", head("/mutate", body.len())).as_bytes()).await.unwrap();
    // Two thirds of its life are over.
    let mut secret = server.objects.other(SECRET).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let issued = now - ROTATION.lifetime.as_secs() / 3 * 2;
    secret["metadata"]["annotations"]["sluice.dev/issued"] = issued.to_string().into();
    server.objects.put_other(SECRET, secret);
    let shown = tokio::time::timeout(PATIENCE, callers.join_all()).await.unwrap();
    assert_eq!(shown[0][0], first);
    assert!(shown.iter().all(|pair| *pair == shown[0]), "{shown:?}");
    let said = answer(slow, &[rest]).await.unwrap();
    assert_eq!(said["allowed"], true);
}

/// A certificate that is its own CA, and its key, in these files.
fn write_pair(certificate: &PathBuf, key: &PathBuf) -> RootCertStore {
    let own = KeyPair::generate().unwrap();
    let signed = CertificateParams::new([HOST.to_owned()]).unwrap().self_signed(&own).unwrap();
    std::fs::write(certificate, signed.pem()).unwrap();
    std::fs::write(key, own.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(signed.der().clone()).unwrap();
    roots
}

#[tokio::test]
async fn files_are_read_again_and_kept_while_they_are_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let files = || Certificates::Files { certificate: certificate.clone(), key: key.clone() };
    let failed = Running::start(files()).served.await.unwrap().unwrap_err().to_string();
    assert!(failed.starts_with("--tls-cert ") && failed.contains("No such file"), "{failed}");
    let first = write_pair(&certificate, &key);
    let running = Running::start(files());
    let until = async |roots: &RootCertStore| {
        let start = Instant::now();
        while running.review(roots.clone(), "/validate", &pod("5")).await.is_none() {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(&first).await;
    std::fs::write(&certificate, "half of it").unwrap();
    tokio::time::sleep(4 * ROTATION.poll).await;
    until(&first).await;
    let second = write_pair(&certificate, &key);
    until(&second).await;
    assert!(running.connect(first).await.is_none());
}

#[tokio::test]
async fn when_it_ends_it_is_not_ready_and_answers_what_has_come() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let roots = write_pair(&certificate, &key);
    let Running { address, end, served } = Running::start(Certificates::Files { certificate, key });
    let (unused, _) = oneshot::channel();
    let running = Running { address, end: unused, served };
    let start = Instant::now();
    let mut slow = loop {
        match running.connect(roots.clone()).await {
            Some(connection) => break connection,
            None => assert!(start.elapsed() < PATIENCE),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let body = review(&pod("30"));
    let (begun, rest) = body.split_at(body.len() / 2);
    slow.write_all(format!("{}{begun}", head("/mutate", body.len())).as_bytes()).await.unwrap();
    let ready = async || {
        let mut connection = running.connect(roots.clone()).await.unwrap();
        connection.write_all(b"GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer[9..12].to_owned()
    };
    assert_eq!(ready().await, "200");
    end.send(()).unwrap();
    while ready().await != "503" {}
    // Longer than it linger: only the call that has begun keeps it.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!running.served.is_finished());
    assert_eq!(answer(slow, &[rest]).await.unwrap()["allowed"], true);
    running.served.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_empty_list_of_dialects_ends_the_start() {
    let options = Options {
        listen: ([127, 0, 0, 1], 0).into(),
        rules: Rules::default(),
        certificates: Certificates::Files { certificate: "c".into(), key: "k".into() },
        rotation: Rotation::default(),
        linger: Duration::ZERO,
    };
    let said = webhook::serve(&options, std::future::pending()).await.unwrap_err().to_string();
    assert_eq!(said, "no dialect is chosen; expected vgpu-manager, volcano, hami or vgpu-rs");
}
