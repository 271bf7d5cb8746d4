//! `hypervisor node` and `hypervisor scheduler`: the same program in its roles for Kubernetes.

use std::io;
use std::path::Path;
use std::pin::Pin;

use ::node::{NodeError, Options};
use observer::NvmlSource;

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
    let source = Box::new(nvml.map_or_else(NvmlSource::default, NvmlSource::at));
    run(async |end| Ok(::node::serve(options, source, end).await?))
}

/// Serves kube-scheduler until a signal asks to end.
///
/// # Errors
/// [`RoleError`].
pub fn run_extender(options: &extender::Options) -> Result<(), RoleError> {
    run(async |end| Ok(extender::serve(options, end).await?))
}

type End = Pin<Box<dyn Future<Output = ()> + Send>>;

fn run(serve: impl AsyncFnOnce(End) -> Result<(), RoleError>) -> Result<(), RoleError> {
    let system = |what| move |source| RoleError::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("threads"))?;
    let served = runtime.block_on(async {
        let mut ends = Ends::new().map_err(system("signal handlers"))?;
        let end = async move {
            let signal = ends.asked().await;
            tracing::info!(signal, "ends");
        };
        serve(Box::pin(end)).await
    });
    runtime.shutdown_background();
    served
}
