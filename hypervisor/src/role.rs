//! `hypervisor node`, `hypervisor scheduler` and `hypervisor webhook`: the same program in its roles for Kubernetes.

use std::io;
use std::path::Path;
use std::pin::Pin;

use ::node::{NodeError, Options};
use observer::NvmlSource;
use protocol::reports::DoctorReport;
use tokio::runtime::{Builder, Runtime};

use crate::end::Ends;

/// Why the role ends.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// It cannot do its work.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It cannot do its work.
    #[error(transparent)]
    Extender(#[from] extender::ExtenderError),
    /// It cannot do its work.
    #[error(transparent)]
    Webhook(#[from] webhook::WebhookError),
    /// The cluster cannot be read.
    #[error(transparent)]
    Explain(#[from] extender::ExplainError),
    /// The system refuses what every program needs.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Offers the GPUs that NVML shows until a signal asks to end.
///
/// # Errors
/// [`RoleError`].
pub fn run_node(options: &Options, nvml: Option<&Path>) -> Result<(), RoleError> {
    run(async |end| Ok(::node::serve(options, source(nvml), end).await?))
}

/// Serves kube-scheduler until a signal asks to end.
///
/// # Errors
/// [`RoleError`].
pub fn run_extender(options: &extender::Options) -> Result<(), RoleError> {
    run(async |end| Ok(extender::serve(options, end).await?))
}

/// Completes and checks pods for API servers until a signal requests the end.
///
/// # Errors
/// [`RoleError`].
pub fn run_webhook(options: &webhook::Options) -> Result<(), RoleError> {
    run(async |end| Ok(webhook::serve(options, end).await?))
}

/// Nodes and pods of a cluster, as they are now.
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

/// Looks at all that the node's part needs, and changes nothing.
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
