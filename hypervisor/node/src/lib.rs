//! `hypervisor node`: offers fractions of a node's GPUs to its kubelet.
//!
//! The kubelet knows each resource as a name and a list of ids. A [`dialects`] row says under which name an existing
//! system offers which amount; all rows draw on one [`pool`] of GPUs. Each resource has a device plugin on a Unix
//! socket, which is registered with the kubelet, and again after the kubelet has restarted.

#![forbid(unsafe_code)]

mod allocations;
mod amounts;
mod chain;
mod cluster;
mod cordon;
mod device_files;
mod dra;
mod driver_libraries;
mod events;
mod hidden;
mod host;
mod identity;
mod image_preloads;
mod injection;
mod libraries;
mod live;
mod mounted;
mod nri;
mod often;
mod options;
mod outcomes;
mod owner;
mod people;
mod permissions;
mod placing;
mod plugin;
mod pod_resources;
pub mod pool;
mod preflight;
pub mod proto;
mod registers;
mod registration;
mod resolver;
mod seen;
mod starting;
mod words;

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dialects::gates::Gate;
use dialects::{Dialect, Resource};
use limits::GpuId;
use observer::{Blind, Source};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use cluster::ClusterOptions;
pub use image_preloads::{
    CDI, COMMAND, HookError, HookFileError, ImageError, ImagePreloads, ListError, install_hook,
    keep_image_preloads,
};
pub use injection::{InjectionError, InstallError, install};
pub use nri::NRI;
pub use options::{
    ALLOCATIONS, DAEMON, DeviceList, DeviceListError, KUBELET, LIBRARY, Options, OptionsError,
};
pub use permissions::{PERMISSIONS, Permission};
pub use preflight::check;

use self::allocations::Allocations;
use self::cluster::{Cluster, Meaning};
use self::device_files::DeviceFiles;
use self::dra::{CdiFolder, Driver, Socket};
use self::hidden::Hidden;
use self::image_preloads::HookFile;
use self::injection::Injection;
use self::people::People;
use self::plugin::Offer;
use self::pod_resources::PodResourcesApi;
use self::pool::{Gpu, Pool, PoolError};
use self::registration::Endpoint;
use self::resolver::Resolver;
use self::seen::Seen;

/// How long the first reading of the devices may take.
const FIRST_LOOK: Duration = Duration::from_secs(20);

/// Why `hypervisor node` cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An option is invalid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Containers cannot be made to load the limiter.
    #[error(transparent)]
    Injection(#[from] InjectionError),
    /// The hook for images' preloads cannot be set up.
    #[error(transparent)]
    Hook(#[from] HookFileError),
    /// The driver's libraries cannot be mounted.
    #[error("--devices mounts: {0}")]
    Driver(String),
    /// The thread that reads the devices has ended.
    #[error("the observer of the devices has ended")]
    Silent,
    /// The devices cannot be offered.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The directory of allocations cannot be used.
    #[error("the allocations in {folder}: {source}", folder = folder.display())]
    Allocations {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process uses the directory of allocations.
    #[error("another `hypervisor node` uses {folder}", folder = folder.display())]
    AlreadyRuns {
        /// The folder of allocations.
        folder: PathBuf,
    },
    /// A plugin's socket cannot be created.
    #[error("cannot listen on {socket}: {source}", socket = socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The API server's configuration cannot be read.
    #[error(transparent)]
    Cluster(#[from] api_server::ConnectError),
    /// A thread cannot be started.
    #[error("threads: {0}")]
    Threads(io::Error),
}

/// Offers the devices that `source` shows, until `end` resolves. Then it removes its sockets; allocations stay with
/// their containers.
///
/// # Errors
/// [`NodeError`], for invalid options, directories or devices. A missing kubelet or GPU is no error: it waits.
pub async fn serve(
    options: &Options,
    source: Box<dyn Source>,
    end: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let resources = options.resources()?;
    let plugins = options.plugin_folder()?;
    let info = Arc::new(options.gpu_info()?);
    injection::check(&options.library)?;
    let (allocations, _lock) = Allocations::take(&options.allocations, &options.library)?;
    let preload = allocations
        .write_preload()
        .map_err(|source| NodeError::Allocations { folder: options.allocations.clone(), source })?;
    let injection = Injection::new(options.library.clone(), preload, options.daemon.clone());
    let hook = options.image_preloads.as_ref().map(|ImagePreloads { cdi, program }| {
        HookFile::new(cdi, program, &options.allocations).map(Arc::new)
    });
    let hook = hook.transpose()?;
    let allocations = Arc::new(allocations);
    let (see, mut seen) = mpsc::unbounded_channel();
    let mut sight = Seen::default();
    let (healthy, declared) = std::sync::mpsc::channel();
    let take = move |news| {
        declared.try_iter().for_each(|gpu| sight.declare_healthy(gpu));
        _ = see.send(sight.take(news));
    };
    let _watch = observer::Watch::start(source, take).map_err(NodeError::Threads)?;
    let pool_of = |gpus| {
        let pool = Pool::new(gpus, options.split, options.memory_factor);
        let pool = pool.scaled(options.scaling).informed(Arc::clone(&info));
        pool.connected(options.gates.is_open(Gate::GpuTopology))
    };
    let mut end = std::pin::pin!(end);
    let mut last = tokio::select! {
        () = &mut end => return Ok(()),
        gpus = first_gpus(&mut seen) => Ok(gpus?),
    };
    // Starts with what the previous run knew, since the API server may be unreachable.
    let cordon_file = observer::cordon::beside(&options.daemon);
    let before = options.cluster.as_ref().and_then(|_| observer::cordon::read(&cordon_file).ok());
    let (cordon, mut cordoned) = watch::channel(before.unwrap_or_default());
    let first = pool_of(last.clone().unwrap_or_default()).cordoned(cordoned.borrow().clone());
    let driver = driver_folder(options)?;
    for resource in &resources {
        first.check(resource)?;
    }
    tell(&first);
    let (news, pool) = watch::channel(Arc::new(first));
    tell_unknown(&pool.borrow(), &options.dialects);
    for (gate, why) in options.gates.idle() {
        tracing::warn!(gate, why, "the feature gate has no effect here");
    }
    let dialects: Arc<[Dialect]> = options.dialects.clone().into();
    let mut tasks: JoinSet<NodeError> = JoinSet::new();
    let cluster = match &options.cluster {
        None => None,
        Some(cluster) => {
            let reschedule = options.gates.is_open(Gate::Reschedule);
            let (own, names) = (Arc::clone(&dialects), options.names.clone());
            let meaning = Meaning { dialects: own, names, factor: options.memory_factor };
            let (cluster, keep) = Cluster::of(cluster, meaning, reschedule, cordon.clone()).await?;
            tasks.spawn(async { match keep.await {} });
            let (own, form) = (Arc::clone(&dialects), options.hami);
            let registers = registers::keep(cluster.clone(), pool.clone(), own, form);
            tasks.spawn(async { match registers.await {} });
            let people = People {
                cluster: cluster.clone(),
                allocations: Arc::clone(&allocations),
                pool: pool.clone(),
                dialects: Arc::clone(&dialects),
                socket: options.daemon.as_path().into(),
                daemon: injection.daemon_inside().into(),
                healthy,
            };
            tasks.spawn(async { match people.keep().await {} });
            Some(cluster)
        }
    };
    if let Some(cdi) = &options.dra {
        let claims = Driver {
            cluster: cluster.clone().ok_or(OptionsError::DraWithoutCluster)?,
            pool: pool.clone(),
            allocations: Arc::clone(&allocations),
            injection: injection.clone(),
            files: DeviceFiles::default(),
            devices: options.devices,
            libraries: driver.clone(),
            cdi: CdiFolder(cdi.clone()),
            prepared: Arc::default(),
        };
        let socket = Socket::in_folder(&options.kubelet)?;
        tasks.spawn(socket.serve(claims.clone()));
        let publish = claims.clone().publish();
        tasks.spawn(async { match publish.await {} });
        tasks.spawn(async { match claims.tell_usage().await {} });
    }
    if let Some(socket) = &options.nri {
        let plugin = nri::Plugin {
            socket: socket.clone(),
            pool: pool.clone(),
            allocations: Arc::clone(&allocations),
            injection: injection.clone(),
            cluster: cluster.clone(),
        };
        let forget = plugin.clone().forget_claims();
        tasks.spawn(async { match forget.await {} });
        tasks.spawn(async { match plugin.keep().await {} });
    }
    let (hide, hidden) = watch::channel(Arc::default());
    tasks.spawn(keep_hidden(Arc::clone(&allocations), pool.clone(), resources.clone(), hide));
    let resolver = Resolver {
        kubelet: PodResourcesApi::of(&options.kubelet, options.names.clone()),
        allocations: Arc::clone(&allocations),
        pool: pool.clone(),
        resources: resources.clone().into(),
        daemon: injection.daemon_inside().into(),
        cluster,
        dialects,
        inits: Arc::default(),
    };
    let (own, now) = (options.library.clone(), resolver.clone());
    tasks.spawn(async { match libraries::keep(own, now).await {} });
    for resource in resources.clone() {
        let offer = Offer {
            name: options.names.written(resource.name).to_owned(),
            resource,
            pool: pool.clone(),
            allocations: Arc::clone(&allocations),
            files: DeviceFiles::default(),
            devices: options.devices,
            driver: driver.clone(),
            injection: injection.clone(),
            hook: hook.clone(),
            resolver: resolver.clone(),
            hidden: hidden.clone(),
        };
        let endpoint = Endpoint::new(offer, &plugins);
        tasks.spawn(endpoint.keep());
    }
    let follow = async {
        loop {
            tokio::select! {
                now = seen.recv() => last = now.ok_or(NodeError::Silent)?,
                Ok(()) = cordoned.changed() => tell_daemon(&cordon_file, &cordoned.borrow()),
            }
            // While no GPU can be seen, none can be allocated.
            let next = match &last {
                Ok(gpus) => pool_of(gpus.clone()),
                Err(blind) => {
                    let dark = news.borrow().without_health();
                    // Logs once: it retries every few seconds.
                    if **news.borrow() != dark {
                        tracing::warn!(%blind, "no GPU can be seen: all are offered as unhealthy");
                    }
                    dark
                }
            };
            let next = next.cordoned(cordoned.borrow().clone());
            for resource in &resources {
                next.check(resource)?;
            }
            news.send_if_modified(|present| {
                let differs = **present != next;
                if differs {
                    tell(&next);
                    *present = Arc::new(next);
                }
                differs
            });
        }
    };
    let watch_over = resolver.keep();
    let ended = tokio::select! {
        never = watch_over => match never {},
        () = &mut end => Ok(()),
        fault = follow => fault,
        Some(ended) = tasks.join_next() => match ended {
            Ok(fault) => Err(fault),
            Err(panicked) => Err(NodeError::Threads(io::Error::other(panicked))),
        },
    };
    // Each task removes its socket as it ends.
    tasks.shutdown().await;
    ended
}

/// Waits for a GPU: a DaemonSet also runs on nodes without one, and on nodes whose driver is loaded later.
async fn first_gpus(
    seen: &mut mpsc::UnboundedReceiver<Result<Vec<Gpu>, Blind>>,
) -> Result<Vec<Gpu>, NodeError> {
    let mut told = None;
    loop {
        let why = match tokio::time::timeout(FIRST_LOOK, seen.recv()).await {
            Ok(None) => return Err(NodeError::Silent),
            Ok(Some(Ok(gpus))) if gpus.is_empty() => "the driver shows none".to_owned(),
            Ok(Some(Ok(gpus))) => return Ok(gpus),
            Ok(Some(Err(blind))) => blind.to_string(),
            Err(_) => format!("the driver has not answered for {} s", FIRST_LOOK.as_secs()),
        };
        // Logs each reason once: this may last.
        if told.as_ref() != Some(&why) {
            tracing::warn!(
                why,
                "no GPU can be seen: waits for one; --nvml names the driver's NVML"
            );
            told = Some(why);
        }
    }
}

/// Writes the file from which the daemon reads the cordoned GPUs.
fn tell_daemon(file: &Path, cordoned: &BTreeSet<GpuId>) {
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| observer::cordon::write(file, cordoned)) {
        tracing::warn!(file = %file.display(), %error, "the daemon is not told of cordoned GPUs");
    }
}

/// The directory of the driver's libraries, if they are to be mounted.
fn driver_folder(options: &Options) -> Result<Option<PathBuf>, NodeError> {
    if options.devices != DeviceList::Mounts {
        return Ok(None);
    }
    let found = driver_libraries::find(options.driver.as_deref());
    let folder = found.map_err(|error| NodeError::Driver(error.to_string()))?;
    tracing::info!(folder = %folder.display(), "mounts the driver's libraries");
    Ok(Some(folder))
}

/// Keeps the hidden ids of each resource up to date.
async fn keep_hidden(
    allocations: Arc<Allocations>,
    mut pool: watch::Receiver<Arc<Pool>>,
    resources: Vec<Resource>,
    hide: watch::Sender<Arc<Hidden>>,
) -> NodeError {
    let mut changes = allocations.changes();
    loop {
        let now = Arc::clone(&pool.borrow_and_update());
        changes.borrow_and_update();
        let hidden = allocations.hidden(&now, &resources);
        hide.send_if_modified(|present| {
            let differs = **present != hidden;
            if differs {
                *present = Arc::new(hidden);
            }
            differs
        });
        let changed = tokio::select! {
            changed = pool.changed() => changed,
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return NodeError::Silent;
        }
    }
}

/// Warns of GPUs with unknown TFLOPS, on which `tflops-limit` has no effect.
fn tell_unknown(pool: &Pool, dialects: &[Dialect]) {
    let unknown = pool.gpus().iter().filter(|gpu| pool.milli_tflops(gpu).is_none());
    for gpu in unknown.filter(|_| dialects.contains(&Dialect::VgpuRs)) {
        let (id, product) = (gpu.id, gpu.product.as_str());
        tracing::warn!(gpu = %id, product, "not in --gpu-info: tflops-limit limits nothing on it");
    }
}

fn tell(pool: &Pool) {
    for gpu in pool.gpus() {
        let (id, healthy, memory) = (gpu.id, gpu.healthy, gpu.memory_mib);
        tracing::info!(gpu = %id, healthy, memory_mib = memory, "offers");
    }
}
