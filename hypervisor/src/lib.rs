//! `hypervisor daemon`: decides who may use a GPU when, for the programs of one node.
//!
//! Programs call over a Unix socket (`protocol`). They register, and ask for leases by long poll.
//! The scheduler decides. This crate connects it to callers, clocks and the ends of processes.
//! [`Sources`] tells who calls, what a session may have and which devices exist. In use are the
//! kernel's word on the socket's other end, what a session's processes say, and what NVIDIA's kernel
//! module shows.

#![forbid(unsafe_code)]

mod clock;
mod connection_quota;
mod core;
mod devices;
mod end;
mod gate_pages;
mod identity;
mod limits;
pub mod log;
mod node;
mod process_exit;
mod quotas;
mod refused;
mod routes;
mod socket_folder;
mod status_quota;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http_bidir_comm::server::{BindError, PeerListener};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use ::limits::{ComputeLimit, GpuId};
pub use devices::{AnyDevice, Devices, Existence, KernelDevices};
pub use identity::{Caller, Identity, KernelIdentity, Owner, Unidentified};
pub use quotas::{AsRegistered, Asked, Quotas};

use self::connection_quota::{ConnectionAdmission, ConnectionQuota};
use self::core::Core;
use self::end::Ends;
use scheduler::Tuning;

/// How a daemon is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; `None`: at the default place.
    pub socket: Option<PathBuf>,
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
            identity: Arc::new(KernelIdentity),
            quotas: Arc::new(AsRegistered),
            devices: Arc::new(KernelDevices::default()),
        }
    }
}

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket cannot be opened.
    #[error("can not listen: {0}")]
    Bind(#[from] BindError),
    /// The socket's folder cannot be made, or cannot be trusted.
    #[error("the folder of {socket}: {source}", socket = socket.display())]
    Folder {
        /// The socket.
        socket: PathBuf,
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
        tracing::warn!(?current, %error, "few processes can be served: no more files may be open");
    }
}

async fn serve(options: &Options, sources: Sources) -> Result<(), DaemonError> {
    let mut ends =
        Ends::new().map_err(|source| DaemonError::System { what: "signal handlers", source })?;
    let modes = socket_folder::modes();
    let (socket, prepared) = match &options.socket {
        Some(socket) => (socket.clone(), socket_folder::check(socket)),
        None => {
            let socket = socket_folder::default_socket().unwrap_or_default();
            let prepared = socket_folder::prepare(&socket, modes.folder);
            (socket, prepared)
        }
    };
    prepared.map_err(|source| DaemonError::Folder { socket: socket.clone(), source })?;
    let connections = ConnectionQuota::of_this_process();
    let listener = PeerListener::bind(&socket, modes.socket)?
        .with_filter(ConnectionAdmission(Arc::clone(&connections)));
    let core = Core::new(Tuning::default(), connections, sources);
    tracing::info!(socket = %socket.display(), "serving");
    let server = http_bidir_comm::server::serve(listener, routes::routes(core.clone()));
    // The socket is removed with the server.
    tokio::select! {
        never = server => match never {},
        () = core.keep_time() => {}
        signal = ends.asked() => tracing::info!(signal, "ends"),
    }
    Ok(())
}
