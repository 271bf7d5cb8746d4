//! `hypervisor daemon`: decides who may use a GPU when, for the programs of one node.
//!
//! Programs call over a Unix socket (`protocol`). They register, and ask for leases by long poll.
//! The scheduler decides. This crate connects it to callers, clocks and the ends of processes.
//! [`Sources`] tells who calls, what a session may have and which devices exist. In use are the
//! kernel's word on the socket's other end, what a session's processes say, and what NVIDIA's kernel
//! module shows.

#![forbid(unsafe_code)]

mod api;
mod clock;
mod connection;
mod connection_quota;
mod core;
mod devices;
mod elsewhere;
mod end;
mod events;
mod gate_pages;
mod identity;
mod limits;
pub mod log;
mod metrics;
mod node;
mod observe;
mod pacing;
mod page_memory;
mod probe;
mod process_exit;
mod quotas;
mod refused;
mod remote;
mod role;
mod routes;
mod service_manager;
mod socket_folder;
mod state;
mod status_quota;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http_bidir_comm::server::{BindError, PeerListener};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use ::limits::{ComputeLimit, GpuId};
pub use devices::{AnyDevice, Devices, Existence, KernelDevices};
pub use identity::{
    Caller, Container, ContainerId, Identity, KernelIdentity, NotAnId, Owner, PodUid, Runtime,
    Unidentified, Workload,
};
pub use observe::{Observation, UnknownProcesses};
pub use probe::{ProbeError, Target, probe};
pub use quotas::{AsRegistered, Asked, Quotas};
pub use remote::{Remote, RemoteError, TOKEN_VARIABLE, TlsFiles, TokenSource};
pub use role::{RoleError, check_node, run_extender, run_node, run_webhook, snapshot};
pub use service_manager::PassedError;

use self::connection::ConnectionAdmission;
use self::connection_quota::ConnectionQuota;
use self::core::Core;
use self::core::ends::EndWatch;
use self::end::Ends;
use self::pacing::Paced;
use self::page_memory::PageWatch;
use self::remote::RemoteListener;
use self::service_manager::Told;
use self::state::{Beginning, Choice};
use scheduler::Tuning;

/// How a daemon is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; `None`: at the default place.
    pub socket: Option<PathBuf>,
    /// The folder for what survives a restart; `None`: the default one, if the socket is the default
    /// one, too.
    pub state: Option<PathBuf>,
    /// A TCP port by which the state can be read; `None`: there is none.
    pub remote: Option<Remote>,
    /// How devices are observed.
    pub observation: Observation,
}

/// Where the daemon learns who calls, and what a session may have.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Who calls.
    pub identity: Arc<dyn Identity>,
    /// What a session may have.
    pub quotas: Arc<dyn Quotas>,
    /// Which devices exist.
    pub devices: Arc<dyn Devices>,
}

impl Default for Sources {
    /// The kernel, the sessions' own processes, and NVIDIA's kernel module.
    fn default() -> Self {
        Self {
            identity: Arc::new(KernelIdentity::default()),
            quotas: Arc::new(AsRegistered),
            devices: Arc::new(KernelDevices::default()),
        }
    }
}

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket cannot be opened.
    #[error("cannot listen: {0}")]
    Bind(#[from] BindError),
    /// The service manager passes something else than the daemon's socket.
    #[error(transparent)]
    Passed(#[from] PassedError),
    /// The socket's folder cannot be made, or cannot be trusted.
    #[error("the directory of {socket}: {source}", socket = socket.display())]
    Folder {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The state cannot be offered over TCP.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The state cannot be kept where it was asked for.
    #[error("the state in {folder}: {source}", folder = folder.display())]
    State {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refuses what every daemon needs.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Serves until a signal ends it, then removes the socket. SIGHUP is ignored: there is nothing to
/// read again.
///
/// # Errors
/// [`DaemonError`], before the first call is taken.
pub fn run(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    allow_many_files();
    let system = |what| move |source| DaemonError::System { what, source };
    // The second thread takes a call while the first is busy. With more threads, calls would only
    // wake them in turn.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("threads"))?;
    let served = runtime.block_on(serve(options, sources));
    // Calls that still wait end with their connections.
    runtime.shutdown_background();
    served
}

/// Asks the system for as many descriptors as it allows: each process that is served takes at least
/// two. If it refuses, the present number serves fewer processes.
fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(?current, %error, "cannot raise the limit of open files, so only few processes can be served");
    }
}

async fn serve(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    let mut ends =
        Ends::new().map_err(|source| DaemonError::System { what: "signal handlers", source })?;
    let modes = socket_folder::modes();
    let (passed, passed_at) = service_manager::passed_socket(options.socket.as_ref())?.unzip();
    let (socket, prepared) = match passed_at.as_ref().or(options.socket.as_ref()) {
        Some(socket) => (socket.clone(), socket_folder::check(socket)),
        None => {
            let socket = socket_folder::default_socket().unwrap_or_default();
            let prepared = socket_folder::prepare(&socket, modes.folder);
            (socket, prepared)
        }
    };
    prepared.map_err(|source| DaemonError::Folder { socket: socket.clone(), source })?;
    let remote = options.remote.as_ref().map(RemoteListener::bind).transpose()?;
    let connections = ConnectionQuota::of_this_process();
    let listener = match passed {
        Some(listener) => PeerListener::passed(listener, &socket)?,
        None => PeerListener::bind(&socket, modes.socket)?,
    };
    let admission =
        ConnectionAdmission::new(Arc::clone(&connections), Arc::clone(&sources.identity));
    let listener = listener.with_filter(admission);
    let beginning = beginning(options, &socket)?;
    let policy = options.observation.unknown_processes;
    let core = Core::new(Tuning::default(), connections, sources, beginning.as_ref(), policy);
    let keeper = beginning.map(|beginning| beginning.keep(Arc::clone(&core))).transpose();
    let _keeper = keeper.map_err(|source| DaemonError::System { what: "threads", source })?;
    let _watch =
        EndWatch::start(&core).map_err(|source| DaemonError::System { what: "threads", source })?;
    let _pages = PageWatch::start(&core)
        .map_err(|source| DaemonError::System { what: "threads", source })?;
    let _observer = observe::start(&core, &options.observation, &socket)
        .map_err(|source| DaemonError::System { what: "threads", source })?;
    tracing::info!(socket = %socket.display(), "serving");
    let server = http_bidir_comm::server::serve(listener, Paced::new(routes::routes(core.clone())));
    let remote = async {
        match remote {
            Some(remote) => remote.serve(routes::routes(core.clone())).await,
            None => std::future::pending().await,
        }
    };
    let _told =
        Told::serves(&core).map_err(|source| DaemonError::System { what: "threads", source })?;
    // The socket is removed with the server, unless the service manager keeps it.
    tokio::select! {
        never = server => match never {},
        never = remote => match never {},
        () = core.keep_time() => {}
        signal = ends.asked() => tracing::info!(signal, "ends"),
    }
    Ok(())
}

/// What an earlier daemon left. `None`: nothing is kept.
fn beginning(options: &Options, socket: &Path) -> Result<Option<Beginning>, DaemonError> {
    let default_socket = options.socket.is_none().then_some(socket);
    let beginning = match state::choose(options.state.as_deref(), default_socket) {
        Choice::Nowhere => return Ok(None),
        Choice::Named(folder) => {
            let read = state::take(&folder).and_then(Beginning::read);
            read.map_err(|source| DaemonError::State { folder, source })?
        }
        Choice::Default(folder) => match state::take(&folder) {
            Ok(taken) => {
                Beginning::read(taken).map_err(|source| DaemonError::State { folder, source })?
            }
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "cannot keep state: sessions and accounts will not \
                    survive a restart");
                return Ok(None);
            }
        },
    };
    Ok(Some(beginning))
}
