//! The Kubernetes roles of this program: `hypervisor node`, `hypervisor scheduler` and `hypervisor webhook`. `main`
//! calls this.

use std::io;
use std::path::Path;
use std::pin::Pin;

use ::node::{NodeError, Options};
use observer::NvmlSource;
use protocol::reports::DoctorReport;
use tokio::runtime::{Builder, Runtime};

use crate::end::Ends;

/// Why a role ends.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// The node agent failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The scheduler extender failed.
    #[error(transparent)]
    Extender(#[from] extender::ExtenderError),
    /// The webhook failed.
    #[error(transparent)]
    Webhook(#[from] webhook::WebhookError),
    /// The cluster could not be read.
    #[error(transparent)]
    Explain(#[from] extender::ExplainError),
    /// The system refused a basic resource, such as a thread.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Runs the node agent, which offers the GPUs that NVML shows, until a signal ends it.
///
/// # Errors
/// [`RoleError`].
pub fn run_node(options: &Options, nvml: Option<&Path>) -> Result<(), RoleError> {
    run(async |end| Ok(::node::serve(options, source(nvml), end).await?))
}

/// Runs the extender of kube-scheduler until a signal ends it.
///
/// # Errors
/// [`RoleError`].
pub fn run_extender(options: &extender::Options) -> Result<(), RoleError> {
    run(async |end| Ok(extender::serve(options, end).await?))
}

/// Runs the webhook, which completes and checks pods for API servers, until a signal ends it.
///
/// # Errors
/// [`RoleError`].
pub fn run_webhook(options: &webhook::Options) -> Result<(), RoleError> {
    run(async |end| Ok(webhook::serve(options, end).await?))
}

/// Reads the current nodes and pods of a cluster.
///
/// # Errors
/// [`RoleError`].
pub fn snapshot(source: &extender::Source) -> Result<extender::Snapshot, RoleError> {
    let runtime = runtime()?;
    let seen = runtime.block_on(extender::Snapshot::of(source));
    runtime.shutdown_background();
    Ok(seen?)
}

type End = Pin<Box<dyn Future<Output = ()> + Send>>;

fn run(serve: impl AsyncFnOnce(End) -> Result<(), RoleError>) -> Result<(), RoleError> {
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let handlers = |source| RoleError::System { what: "signal handlers", source };
        let mut ends = Ends::new().map_err(handlers)?;
        let end = async move {
            let signal = ends.asked().await;
            tracing::info!(signal, "ends");
        };
        serve(Box::pin(end)).await
    });
    runtime.shutdown_background();
    served
}

/// Checks everything that the node agent needs, without changing anything.
///
/// # Errors
/// [`RoleError`].
pub fn check_node(options: &Options, nvml: Option<&Path>) -> Result<DoctorReport, RoleError> {
    let runtime = runtime()?;
    let report = ::node::check(options, source(nvml), runtime.handle());
    runtime.shutdown_background();
    Ok(report)
}

fn runtime() -> Result<Runtime, RoleError> {
    let threads = |source| RoleError::System { what: "threads", source };
    Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(threads)
}

fn source(nvml: Option<&Path>) -> Box<NvmlSource> {
    Box::new(nvml.map_or_else(NvmlSource::default, NvmlSource::at))
}
