//! `hypervisor daemon`: decides who may use a GPU when, for the programs of one node.
//!
//! Programs call over a Unix socket (`protocol`): they register, and ask for leases by long
//! poll. The decisions are the scheduler's; here is what connects them to callers, clocks and the
//! ends of processes. Who calls, and what a session may have, comes from [`Sources`]: in use are
//! what the kernel says of the socket's other end, and what a session's processes say.

#![forbid(unsafe_code)]

mod clock;
mod connection_quota;
mod core;
mod identity;
mod limits;
mod node;
mod process_exit;
mod quotas;
mod refused;
mod routes;
mod socket_folder;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http_bidir_comm::server::{BindError, PeerListener};
use poem::Server;
use poem::listener::Listener;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

pub use ::limits::{ComputeLimit, GpuId};
pub use identity::{Caller, Identity, KernelIdentity, Owner, Unidentified};
pub use quotas::{AsRegistered, Asked, Quotas};

use self::connection_quota::{ConnectionAdmission, ConnectionQuota};
use self::core::Core;
use scheduler::Tuning;

/// How a daemon is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; `None`: the default place.
    pub socket: Option<PathBuf>,
}

/// Where the daemon learns who speaks, and what a session may have.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Who speaks.
    pub identity: Arc<dyn Identity>,
    /// What a session may have.
    pub quotas: Arc<dyn Quotas>,
}

impl Default for Sources {
    /// The kernel, and the sessions' own processes.
    fn default() -> Self {
        Self { identity: Arc::new(KernelIdentity), quotas: Arc::new(AsRegistered) }
    }
}

/// Why the daemon can not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket can not be had.
    #[error("can not listen: {0}")]
    Bind(#[from] BindError),
    /// The socket's folder can not be made or trusted.
    #[error("the folder of {socket}: {source}", socket = socket.display())]
    Folder {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system does not give what every daemon needs.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Serves until SIGTERM or SIGINT; the socket is removed at the end.
///
/// # Errors
/// [`DaemonError`], before the first call is taken.
pub fn run(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    allow_many_files();
    let system = |what| move |source| DaemonError::System { what, source };
    // The second thread takes a call while the first one is busy; more would only be woken in turn.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("threads"))?;
    let served = runtime.block_on(serve(options, sources));
    // Calls that wait end with their connections.
    runtime.shutdown_background();
    served
}

/// Each process that is served takes two descriptors at least: as many as the system lets this one have. What
/// it has instead is enough for some.
fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(?current, %error, "few processes can be served: no more files may be open");
    }
}

async fn serve(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    let system = |source| DaemonError::System { what: "signal handlers", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(system)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system)?;
    let socket = options.socket.clone().or_else(socket_folder::default_socket).unwrap_or_default();
    let modes = socket_folder::modes();
    socket_folder::prepare(&socket, modes.folder)
        .map_err(|source| DaemonError::Folder { socket: socket.clone(), source })?;
    let connections = ConnectionQuota::of_this_process();
    let acceptor = PeerListener::bind(&socket, modes.socket)?
        .with_filter(ConnectionAdmission(Arc::clone(&connections)))
        .into_acceptor()
        .await
        .map_err(|source| DaemonError::System { what: "the socket", source })?;
    let core = Core::new(Tuning::default(), connections, sources);
    tracing::info!(socket = %socket.display(), "serving");
    let server = Server::new_with_acceptor(acceptor).run(routes::routes(core.clone()));
    tokio::select! {
        ended = server => ended.map_err(|source| DaemonError::System { what: "the server", source }),
        () = core.keep_time() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
