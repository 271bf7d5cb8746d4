//! Tasks from a server to a client, over real sockets.

mod bounds;
mod delivery;
mod ends;
mod events;
mod who;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use http_bidir_comm::client::{
    BlockingHttpClient, ClientError, Endpoint, Stop, TaskClient, TaskClientSettings, Transport,
};
use http_bidir_comm::server::{
    Anyone, Authenticate, BoundedTcpListener, PeerListener, TaskServer, TaskSettings, serve,
};
use http_bidir_comm::{BackOff, ClientName};
use poem::Route;
use tokio::runtime::Runtime;

/// How long a task has where its end is not what is tested.
const LONG: Duration = Duration::from_secs(60);

const TRANSPORTS: [Transport; 2] = [Transport::LongPoll, Transport::EventStream];

fn name() -> ClientName {
    "worker-1".parse().unwrap()
}

/// A task server, with the runtime that serves it.
struct Served {
    runtime: Runtime,
    tasks: TaskServer<u64, u64>,
}

impl Served {
    fn new(settings: TaskSettings, authenticate: impl Authenticate) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Self { runtime, tasks: TaskServer::with_settings(authenticate, settings) }
    }

    fn at(path: &Path, settings: TaskSettings) -> Self {
        Self::new(settings, Anyone).listening(path)
    }

    fn listening(self, path: &Path) -> Self {
        let _context = self.runtime.enter();
        let listener = PeerListener::bind(path, 0o600).unwrap();
        self.runtime.spawn(serve(listener, Route::new().nest("/tasks", self.tasks.routes())));
        drop(_context);
        self
    }

    fn listening_on_tcp(&self, most: usize, token: Option<&str>) -> Endpoint {
        let _context = self.runtime.enter();
        let listener = BoundedTcpListener::bind(([127, 0, 0, 1], 0).into(), most).unwrap();
        let port = listener.local_addr().unwrap().port();
        self.runtime.spawn(serve(listener, Route::new().nest("/tasks", self.tasks.routes())));
        Endpoint::Tcp { host: "127.0.0.1".into(), port, token: token.map(str::to_owned) }
    }

    fn arrival(&self) {
        self.runtime
            .block_on(async { tokio::time::timeout(LONG, self.tasks.arrival(&name())).await })
            .unwrap();
    }

    fn shut_down(self) {
        self.runtime.shutdown_timeout(LONG);
    }
}

fn quick(transport: Transport) -> TaskClientSettings {
    TaskClientSettings {
        transport,
        wait: Duration::from_millis(300),
        back_off: BackOff { first: Duration::from_millis(1), most: Duration::from_millis(50) },
        ..TaskClientSettings::default()
    }
}

fn short_keep_alive() -> TaskSettings {
    TaskSettings { keep_alive: Duration::from_millis(100), ..TaskSettings::default() }
}

fn client(endpoint: Endpoint, transport: Transport) -> TaskClient<u64, u64> {
    let http = BlockingHttpClient::new(endpoint);
    TaskClient::with_settings(http, "/tasks", name(), quick(transport))
}

/// A client that doubles numbers in a thread of its own, and counts how often it did.
struct Doubler {
    stop: Stop,
    counts: Arc<Mutex<BTreeMap<u64, u32>>>,
    thread: JoinHandle<Result<(), ClientError>>,
}

impl Doubler {
    fn start(endpoint: Endpoint, transport: Transport) -> Self {
        let (stop, counts) = (Stop::new(), Arc::<Mutex<BTreeMap<u64, u32>>>::default());
        let (stopped, counting) = (stop.clone(), Arc::clone(&counts));
        let thread = std::thread::spawn(move || {
            client(endpoint, transport).run(&stopped, |number| {
                *counting.lock().unwrap().entry(number).or_default() += 1;
                number * 2
            })
        });
        Self { stop, counts, thread }
    }

    /// Which numbers it handled. None was handled twice.
    fn end(self) -> Vec<u64> {
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
        let counts = self.counts.lock().unwrap();
        assert!(counts.values().all(|&count| count == 1), "{counts:?}");
        counts.keys().copied().collect()
    }
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    crate::round_trip::socket()
}
