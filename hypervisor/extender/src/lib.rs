//! `hypervisor scheduler`: an extender for kube-scheduler, which knows nodes but not their GPUs.
//!
//! `filter` keeps the nodes whose GPUs have room, by nodes' registrations and pods' claims (`placement`); `prioritize`
//! ranks them by the pod's policy. `preempt` completes kube-scheduler's choice of victims. `bind` chooses the GPUs and
//! writes them together with the node's name. `filter` and `bind` respect the ResourceQuotas of the pod's namespace.

#![forbid(unsafe_code)]

mod binder;
mod cluster;
mod explain;
mod lease;
mod nodes;
mod quota;
mod shared;
mod victims;
mod waiting;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dialects::gates::{FeatureGates, Gate};
use dialects::{Dialect, ResourceNames};
use http_bidir_comm::server::{AnswerKept, BodyMemory, BoundedTcpListener, CountedBody};
use poem::http::StatusCode;
use poem::web::Data;
use poem::{EndpointExt, Route, get, handler, post};
use tokio::sync::OwnedSemaphorePermit;

use self::binder::Binder;
use self::cluster::Reading;
pub use self::explain::{ExplainError, Placed, Simulated, Snapshot, Source, Terms, Why};
use self::lease::Leadership;
pub use self::lease::{LeaseName, LeaseNameError};
use self::shared::Shared;
use self::wire::{
    BindArguments, BindResult, FilterArguments, FilterResult, HostPriority, PreemptionArguments,
    PreemptionResult,
};

/// Default address: that of VGPU-Manager's extender, which schedulers are configured for.
pub const LISTEN: &str = "127.0.0.1:3456";
/// Limit of one request body, and of all together, in bytes. Full node objects have a few KiB each.
const MOST_BYTES: u32 = 64 << 20;
/// kube-scheduler binds up to 16 pods at once.
const CONNECTIONS: usize = 64;
/// How long calls may take to finish when the program ends.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

const NOT_READY: &str = "it has not heard of all nodes, pods and quotas yet";

/// The options of the extender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The dialects whose resource names pods may use.
    pub dialects: Vec<Dialect>,
    /// The feature gates.
    pub gates: FeatureGates,
    /// The cluster's resource names.
    pub names: ResourceNames,
    /// Kubeconfig for the API server. `None`: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The Lease for leader election. `None`: there is one extender.
    pub lease: Option<LeaseName>,
}

/// Why the extender cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    /// Other machines could bind pods.
    #[error(
        "--listen {0}: whoever can call it can bind pods; expected an address of this machine alone, such as {LISTEN}"
    )]
    Open(SocketAddr),
    /// No dialect is selected.
    #[error("no dialect is chosen; expected vgpu-manager, volcano or hami")]
    NoDialect,
    /// Nodes do not register GPUs in this dialect.
    #[error(
        "--dialects {0}: its pods have a scheduler of their own; expected vgpu-manager, volcano or hami"
    )]
    OtherScheduler(&'static str),
    /// There is no client for the API server.
    #[error(transparent)]
    Api(#[from] api_server::ConnectError),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

#[derive(Clone)]
struct Extender {
    cluster: Shared,
    binder: Binder,
}

/// The dialects with registrations. Warns about others, because the node agent may use the same list.
fn schedulable(dialects: &[Dialect]) -> Result<Arc<[Dialect]>, ExtenderError> {
    let says = |dialect: &Dialect| dialect.annotations().register.is_some();
    let (own, others): (Vec<Dialect>, Vec<Dialect>) =
        dialects.iter().partition(|dialect| says(dialect));
    if let (true, Some(other)) = (own.is_empty(), others.first()) {
        return Err(ExtenderError::OtherScheduler(other.name()));
    }
    for other in others {
        tracing::warn!(dialect = other.name(), "its pods have a scheduler of their own");
    }
    Ok(own.into())
}

/// Serves until `end` resolves.
///
/// # Errors
/// [`ExtenderError`]
pub async fn serve(options: &Options, end: impl Future<Output = ()>) -> Result<(), ExtenderError> {
    if !options.listen.ip().is_loopback() {
        return Err(ExtenderError::Open(options.listen));
    }
    if options.dialects.is_empty() {
        return Err(ExtenderError::NoDialect);
    }
    let dialects = schedulable(&options.dialects)?;
    let client = api_server::client(options.kubeconfig.as_deref()).await?;
    let address = options.listen;
    let listen = |source| ExtenderError::Listen { address, source };
    let listener = BoundedTcpListener::bind(address, CONNECTIONS).map_err(listen)?;
    tracing::info!(address = %listener.local_addr().map_err(listen)?, "listens");
    let links = options.gates.is_open(Gate::GpuTopology);
    let (cluster, woken) = Shared::new(Reading { dialects, links, names: options.names.clone() });
    let leadership = options
        .lease
        .clone()
        .map(|name| Leadership::new(client.clone(), name, &address.to_string(), cluster.clone()));
    let binder = Binder {
        client: client.clone(),
        cluster: cluster.clone(),
        leadership: leadership.clone(),
        serial: options.gates.is_open(Gate::SerialBindNode),
    };
    let memory = BodyMemory::new(MOST_BYTES, MOST_BYTES);
    let routes = Route::new()
        .at("/scheduler/filter", post(filter))
        .at("/scheduler/prioritize", post(prioritize))
        .at("/scheduler/preempt", post(preempt))
        .at("/scheduler/bind", post(bind))
        .at("/healthz", get(healthy))
        .at("/readyz", get(ready))
        .data(Extender { cluster: cluster.clone(), binder })
        .data(memory.clone());
    let calls_have_ended = async {
        end.await;
        // Calls that take longer are aborted.
        _ = tokio::time::timeout(ENDS_WITHIN, memory.all_free()).await;
    };
    let keep_lease = async {
        match &leadership {
            Some(leadership) => leadership.keep().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        never = http_bidir_comm::server::serve(listener, routes) => match never {},
        () = calls_have_ended => {}
        () = cluster.keep_nodes(client.clone()) => {}
        () = cluster.keep_pods(client.clone()) => {}
        () = cluster.keep_quotas(client.clone()) => {}
        () = cluster.keep_time() => {}
        () = shared::wake(client.clone(), woken) => {}
        () = keep_lease => {}
    }
    if let Some(leadership) = leadership {
        leadership.give_back().await;
    }
    Ok(())
}

impl Extender {
    async fn filter(&self, mut wanted: FilterArguments) -> FilterResult {
        if let Some(leadership) = &self.binder.leadership
            && let Err(error) = leadership.take().await
        {
            self.cluster.lock().waiting.withhold(&wanted.pod);
            return FilterResult { error: error.to_string(), ..FilterResult::default() };
        }
        let is_by_name = wanted.node_names.is_some();
        let names = wanted.take_names();
        let whys = {
            let mut cluster = self.cluster.lock();
            if !cluster.is_ready() {
                cluster.waiting.put_off(&wanted.pod);
                let error = NOT_READY.to_owned();
                return FilterResult { error, ..FilterResult::default() };
            }
            cluster.refusals(&wanted.pod, &names, Instant::now())
        };
        let nodes = wanted.nodes.filter(|_| !is_by_name).map(|mut nodes| {
            let mut each = whys.iter();
            nodes.items.retain(|_| each.next().is_some_and(Option::is_none));
            nodes
        });
        let (mut left, mut failed_nodes) = (Vec::new(), Vec::new());
        for (name, why) in names.into_iter().zip(whys) {
            match why {
                None => left.push(name),
                Some(why) => failed_nodes.push((name, why)),
            }
        }
        let node_names = is_by_name.then_some(left);
        FilterResult { nodes, node_names, failed_nodes, error: String::new() }
    }

    fn prioritize(&self, mut wanted: FilterArguments) -> Vec<HostPriority> {
        let names = wanted.take_names();
        let scores = self.cluster.lock().scores(&wanted.pod, &names);
        let one = |(host, score): (String, u64)| HostPriority { host, score };
        names.into_iter().zip(scores).map(one).collect()
    }
}

#[handler]
async fn filter(
    CountedBody(wanted, place): CountedBody<FilterArguments>,
    extender: Data<&Extender>,
) -> AnswerKept<FilterResult, OwnedSemaphorePermit> {
    AnswerKept(extender.filter(wanted).await, place)
}

#[handler]
async fn prioritize(
    CountedBody(wanted, place): CountedBody<FilterArguments>,
    extender: Data<&Extender>,
) -> AnswerKept<Vec<HostPriority>, OwnedSemaphorePermit> {
    AnswerKept(extender.prioritize(wanted), place)
}

#[handler]
async fn preempt(
    CountedBody(wanted, place): CountedBody<PreemptionArguments>,
    extender: Data<&Extender>,
) -> AnswerKept<PreemptionResult, OwnedSemaphorePermit> {
    let (pod, proposed) = wanted.proposed();
    let node_name_to_meta_victims = extender.cluster.lock().preempt(&pod, proposed);
    AnswerKept(PreemptionResult { node_name_to_meta_victims }, place)
}

#[handler]
async fn bind(
    CountedBody(wanted, place): CountedBody<BindArguments>,
    extender: Data<&Extender>,
) -> AnswerKept<BindResult, OwnedSemaphorePermit> {
    let error = match extender.binder.bind(&wanted).await {
        Ok(()) => String::new(),
        Err(why) => {
            let (pod, reason) = (&wanted.pod_name, why.to_string());
            tracing::warn!(pod, reason, "not bound");
            reason
        }
    };
    AnswerKept(BindResult { error }, place)
}

#[handler]
fn healthy() -> &'static str {
    "ok"
}

#[handler]
async fn ready(extender: Data<&Extender>) -> (StatusCode, &'static str) {
    match extender.cluster.lock().is_ready() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, NOT_READY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_a_scheduler_of_their_own_are_left_to_it() {
        let both = [Dialect::VgpuRs, Dialect::Hami];
        assert_eq!(*schedulable(&both).unwrap(), [Dialect::Hami]);
        let said = schedulable(&[Dialect::VgpuRs]).unwrap_err().to_string();
        assert!(said.starts_with("--dialects vgpu-rs: its pods have a scheduler"), "{said}");
    }
}
