//! The client against a Poem server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use http_bidir_comm::server::{
    Answer, BindError, Body, OnDrop, Peer, PeerListener, error_to_json, serve, wait_up_to,
};
use poem::web::Data;
use poem::{EndpointExt, Route, handler, post};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(10);
const CAP: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Abandoned(AtomicUsize);

#[handler]
fn who(peer: Peer, body: Body<Value>) -> Answer<Value> {
    Answer(json!({"pid": peer.pid, "uid": peer.uid, "got": body.0}))
}

#[handler]
async fn fetch(body: Body<u64>, news: Data<&Arc<Notify>>) -> Answer<Option<u64>> {
    Answer(wait_up_to(CAP, CAP, news.notified()).await.map(|()| body.0 + 1))
}

#[handler]
async fn wait(_body: Body<Value>, abandoned: Data<&Arc<Abandoned>>) -> Answer<()> {
    let abandoned = Arc::clone(&abandoned);
    let _guard = OnDrop::new(move || {
        abandoned.0.fetch_add(1, Ordering::SeqCst);
    });
    std::future::pending::<()>().await;
    Answer(())
}

pub(crate) struct TestServer {
    runtime: Runtime,
    news: Arc<Notify>,
    abandoned: Arc<Abandoned>,
}

impl TestServer {
    pub(crate) fn start(path: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let news = Arc::new(Notify::new());
        let abandoned = Arc::new(Abandoned::default());
        let routes = Route::new()
            .at("/who", post(who))
            .at("/fetch", post(fetch))
            .at("/wait", post(wait))
            .data(Arc::clone(&news))
            .data(Arc::clone(&abandoned))
            .catch_all_error(error_to_json);
        let listener = {
            let _context = runtime.enter();
            PeerListener::bind(path, 0o600).unwrap()
        };
        runtime.spawn(serve(listener, routes));
        Self { runtime, news, abandoned }
    }
}

pub(crate) fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    (dir, path)
}

#[test]
fn the_caller_is_who_the_kernel_says() {
    let (_dir, path) = socket();
    let _server = TestServer::start(&path);
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let got: Value = client.post("/who", &json!([1, 2]), PATIENCE).unwrap();
    assert_eq!(got["pid"], std::process::id());
    assert_eq!(got["uid"], rustix::process::getuid().as_raw());
    assert_eq!(got["got"], json!([1, 2]));
}

#[test]
fn refusals_are_json_with_their_status() {
    let (_dir, path) = socket();
    let _server = TestServer::start(&path);
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let refusal = |path: &str, body: &Value| match client.post::<_, Value>(path, body, PATIENCE) {
        Err(ClientError::Refused { status, message }) => (status, message),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal("/nowhere", &json!(1)).0, 404);
    let (status, message) = refusal("/fetch", &json!("text"));
    assert_eq!(status, 400);
    assert!(message.contains("expected u64"), "{message}");
    let (status, message) = refusal("/who", &json!("x".repeat(100_000)));
    assert_eq!(status, 413, "{message}");
}

#[test]
fn news_reach_a_waiting_caller() {
    let (_dir, path) = socket();
    let server = TestServer::start(&path);
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let (news, told) = (Arc::clone(&server.news), AtomicBool::new(false));
    let got: Option<u64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            told.store(true, Ordering::SeqCst);
            news.notify_one();
        });
        client.post("/fetch", &6u64, PATIENCE).unwrap()
    });
    assert_eq!(got, Some(7));
    assert!(told.load(Ordering::SeqCst), "answered before there was news");
}

#[test]
fn a_caller_that_goes_away_is_noticed() {
    let (_dir, path) = socket();
    let server = TestServer::start(&path);
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let error = client.post::<_, Value>("/wait", &1, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    let start = Instant::now();
    while server.abandoned.0.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < PATIENCE, "the handler still waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_restarted_server_is_found_again() {
    let (_dir, path) = socket();
    let first = TestServer::start(&path);
    let client = BlockingHttpClient::new(Endpoint::Unix(path.clone()));
    client.post::<_, Value>("/who", &1, PATIENCE).unwrap();
    first.runtime.shutdown_timeout(PATIENCE);
    let error = client.post::<_, Value>("/who", &1, PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    let _second = TestServer::start(&path);
    client.post::<_, Value>("/who", &1, PATIENCE).unwrap();
}

#[test]
fn a_path_has_one_server_and_no_remains() {
    let (_dir, path) = socket();
    // Left behind by a dead server.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = TestServer::start(&path);
    let bind = |path: &Path| {
        let _context = server.runtime.enter();
        PeerListener::bind(path, 0o600).map(drop)
    };
    assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
    let file = path.with_file_name("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(bind(&file), Err(BindError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let foreign = path.with_file_name("foreign");
    let _listening = std::os::unix::net::UnixListener::bind(&foreign).unwrap();
    assert!(matches!(bind(&foreign), Err(BindError::InUse { .. })));
    server.runtime.shutdown_timeout(PATIENCE);
    assert!(!path.exists());
}
