//! The kubelet's side of plugins: its socket, its registrations, its restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use node::proto::pod_resources::pod_resources_lister_server::PodResourcesListerServer;
use node::proto::registration_server::{Registration, RegistrationServer};
use node::proto::{Empty, RegisterRequest, VERSION};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::pods::Pods;
use super::{GoClient, in_time};

/// How registrations are answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mood {
    /// So many are refused first.
    pub(crate) refuses: Arc<AtomicU32>,
    /// So long each one takes.
    pub(crate) takes: Duration,
}

#[derive(Debug)]
struct Register {
    mood: Mood,
    came: mpsc::UnboundedSender<RegisterRequest>,
}

#[tonic::async_trait]
impl Registration for Register {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        tokio::time::sleep(self.mood.takes).await;
        let less = |left: u32| left.checked_sub(1);
        if self.mood.refuses.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok() {
            return Err(Status::unavailable("not yet"));
        }
        assert_eq!(request.get_ref().version, VERSION);
        _ = self.came.send(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

/// A kubelet with its folder, which also has room for allocations.
pub(crate) struct FakeKubelet {
    pub(crate) folder: TempDir,
    pub(crate) mood: Mood,
    pub(crate) pods: Pods,
    servers: Vec<JoinHandle<()>>,
    came: mpsc::UnboundedReceiver<RegisterRequest>,
    send: mpsc::UnboundedSender<RegisterRequest>,
}

impl FakeKubelet {
    /// One that has not started yet.
    pub(crate) fn new() -> Self {
        Self::with(tempfile::tempdir().unwrap())
    }

    /// The same, with its folder where that of a node's allocations is.
    pub(crate) fn in_memory() -> Self {
        Self::with(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn with(folder: TempDir) -> Self {
        for inside in [
            "kubelet/device-plugins",
            "kubelet/plugins_registry",
            "kubelet/pod-resources",
            "library",
        ] {
            fs::create_dir_all(folder.path().join(inside)).unwrap();
        }
        for library in ["libcuda_limiter.so", "libadd_path.so"] {
            fs::write(folder.path().join("library").join(library), "").unwrap();
        }
        let (send, came) = mpsc::unbounded_channel();
        let (mood, pods) = (Mood::default(), Pods::default());
        Self { folder, mood, pods, servers: Vec::new(), came, send }
    }

    pub(crate) fn running() -> Self {
        let mut kubelet = Self::new();
        kubelet.start();
        kubelet
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.path().join("kubelet/device-plugins")
    }

    /// As each kubelet begins: it deletes all sockets and makes its own.
    pub(crate) fn start(&mut self) {
        for entry in fs::read_dir(self.plugins()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(self.plugins().join("kubelet.sock")).unwrap();
        let register = Register { mood: self.mood.clone(), came: self.send.clone() };
        self.servers.push(tokio::spawn(async move {
            let server = Server::builder().add_service(RegistrationServer::new(register));
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        }));
        self.tell_of_pods();
    }

    /// Answers at the socket of PodResources.
    pub(crate) fn tell_of_pods(&mut self) {
        let socket = self.path().join("kubelet/pod-resources/kubelet.sock");
        _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(socket).unwrap();
        let service = PodResourcesListerServer::new(self.pods.clone());
        self.servers.push(tokio::spawn(async move {
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        }));
    }

    /// The socket of PodResources goes, as if that were switched off.
    pub(crate) fn tells_of_no_pods(&mut self) {
        self.servers.pop().unwrap().abort();
        fs::remove_file(self.path().join("kubelet/pod-resources/kubelet.sock")).unwrap();
    }

    /// It ends as if killed: its socket stays.
    pub(crate) fn kill(&mut self) {
        self.servers.drain(..).for_each(|server| server.abort());
    }

    /// The next registration, and the connection that it is answered by.
    pub(crate) async fn registered(&mut self) -> (RegisterRequest, GoClient) {
        let request = in_time(self.came.recv()).await.unwrap();
        let client = GoClient::connect(&self.plugins().join(&request.endpoint)).await;
        (request, client)
    }

    /// Looks at no registration that has come so far: whoever sent it has ended.
    pub(crate) fn forget_registrations(&mut self) {
        while self.came.try_recv().is_ok() {}
    }

    /// Whether a registration has come that was not looked at.
    pub(crate) fn has_another(&mut self) -> bool {
        !self.came.is_empty()
    }
}
