//! `hypervisor daemon`: decides when each program of a node may use a GPU.
//!
//! Programs register over a Unix socket (crate `protocol`) and request leases by long poll; the crate `scheduler`
//! decides. This crate connects the scheduler to callers, clocks and process exits. [`Sources`] supplies identity,
//! quotas and devices: by default the kernel's peer credentials, the quotas that a session's processes report, and the
//! devices that NVIDIA's kernel module shows.

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
pub use ::scheduler::Way;
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

/// Settings of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The Unix socket to listen on; `None`: the default path.
    pub socket: Option<PathBuf>,
    /// The only way in which sessions share a device; `None`: the one in which more gets done.
    pub share: Option<Way>,
    /// Directory for state that survives a restart; `None`: the default one if the socket is the default one, else
    /// none.
    pub state: Option<PathBuf>,
    /// TCP port for reading the state; `None`: no port.
    pub remote: Option<Remote>,
    /// How devices are observed.
    pub observation: Observation,
}

/// Where the daemon gets callers' identities, sessions' quotas, and the devices.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Identifies callers.
    pub identity: Arc<dyn Identity>,
    /// Decides sessions' quotas.
    pub quotas: Arc<dyn Quotas>,
    /// Knows the node's devices.
    pub devices: Arc<dyn Devices>,
}

impl Default for Sources {
    /// Kernel, sessions' own processes, and NVIDIA's kernel module.
    fn default() -> Self {
        Self {
            identity: Arc::new(KernelIdentity::default()),
            quotas: Arc::new(AsRegistered),
            devices: Arc::new(KernelDevices::default()),
        }
    }
}

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The Unix socket cannot be opened.
    #[error("cannot listen: {0}")]
    Bind(#[from] BindError),
    /// The service manager passed something other than the daemon's socket.
    #[error(transparent)]
    Passed(#[from] PassedError),
    /// The socket's directory cannot be created, or is not trusted.
    #[error("the directory of {socket}: {source}", socket = socket.display())]
    Folder {
        /// Path of the socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The TCP port cannot be served.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The state cannot be kept in the requested directory.
    #[error("the state in {folder}: {source}", folder = folder.display())]
    State {
        /// The directory.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused a basic resource, such as a thread.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Serves until a signal ends the daemon, then removes the socket. SIGHUP is ignored: there is nothing to reload.
///
/// # Errors
/// [`DaemonError`], before the first call is accepted.
pub fn run(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    allow_many_files();
    let system = |what| move |source| DaemonError::System { what, source };
    // Two threads: the second takes a call while the first is busy. More would only take turns.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("threads"))?;
    let served = runtime.block_on(serve(options, sources));
    // Pending calls end with their connections.
    runtime.shutdown_background();
    served
}

/// Raises the limit of open files as far as allowed: each served process takes at least two. On failure the current
/// limit allows fewer processes.
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
    let core = Core::new(connections, sources, beginning.as_ref(), policy);
    if let Some(way) = options.share {
        core.share_only(way);
    }
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
    // The socket is removed with the server, unless the service manager owns it.
    tokio::select! {
        never = server => match never {},
        never = remote => match never {},
        () = core.keep_time() => {}
        signal = ends.asked() => tracing::info!(signal, "ends"),
    }
    Ok(())
}

/// State of an earlier daemon. `None`: no state is kept.
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
