//! The device plugin of one resource: the gRPC service that the kubelet calls.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use limits::GpuId;
use placement::PodRefusal;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::allocations::{AllocateError, Allocations, Waiting};
use crate::device_files::{DeviceFiles, FilesError};
use crate::driver_libraries::{self, DriverError};
use crate::hidden::Hidden;
use crate::identity::{Containers, Holder};
use crate::image_preloads::{self, HookFile};
use crate::injection::Injection;
use crate::options::DeviceList;
use crate::owner::{Owned, Owner};
use crate::placing::Request as Wanted;
use crate::pool::{Allocation, Pool, PoolError, UnitId};
use crate::proto::device_plugin_server::DevicePlugin;
use crate::proto::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty, HEALTHY,
    ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo, UNHEALTHY,
};
use crate::resolver::{Resolver, Settled, Undecided};
use dialects::Resource;
use k8s_openapi::api::core::v1::Pod;

/// Minimum time between two lists of a resource: the kubelet reads all ids each time.
const LISTS_APART: Duration = Duration::from_millis(250);
/// The same of units of cores and memory: there are tens of thousands.
const UNITS_APART: Duration = Duration::from_secs(1);
/// What NVIDIA's CDI file calls a GPU.
pub(crate) const CDI: &str = "nvidia.com/gpu";
/// Tells NVIDIA's container runtime to add nothing, because the devices come otherwise.
pub(crate) const NONE_VISIBLE: &str = "void";
/// Tells NVIDIA's container runtime which GPUs to make visible.
pub(crate) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Why a container has no limits yet.
const UNLISTED: &str = "the kubelet lists no container with these ids, and no pod has an init container that asks for them: its CUDA calls fail";
const UNCLEAR: &str = "the API server does not show yet which of the pod's containers it is";
/// How long a container's start waits for the API server to show which container it is, and how often to look.
const CLEAR_WITHIN: Duration = Duration::from_secs(2);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// The variable that tells a container the key of its allocation.
pub(crate) const ALLOCATION: &str = "SLUICE_ALLOCATION";

/// A resource, and the state from which it is offered.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) resource: Resource,
    /// Its name in this cluster.
    pub(crate) name: String,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) files: DeviceFiles,
    pub(crate) devices: DeviceList,
    /// The directory of the driver's libraries, if they are mounted.
    pub(crate) driver: Option<PathBuf>,
    pub(crate) injection: Injection,
    /// The hook that keeps images' preload lists, if enabled.
    pub(crate) hook: Option<Arc<HookFile>>,
    pub(crate) resolver: Resolver,
    /// The ids of each resource that must not be allocated.
    pub(crate) hidden: watch::Receiver<Arc<Hidden>>,
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Pod(#[from] PodRefusal),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
    #[error("the container must not start: {0}")]
    Undecided(#[from] Undecided),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let said = refusal.to_string();
        match refusal {
            Refusal::Pool(PoolError::UnknownId { .. } | PoolError::NoIds | PoolError::Twice(_)) => {
                Self::invalid_argument(said)
            }
            Refusal::Pool(_)
            | Refusal::Pod(_)
            | Refusal::Files(_)
            | Refusal::Driver(_)
            | Refusal::Undecided(_)
            | Refusal::Allocate(AllocateError::Taken { .. }) => Self::failed_precondition(said),
            Refusal::Folder(_) | Refusal::Allocate(AllocateError::Folder(_)) => {
                Self::internal(said)
            }
        }
    }
}

impl Offer {
    pub(crate) fn options(&self) -> DevicePluginOptions {
        let places = self.resource.counts.is_place();
        DevicePluginOptions {
            pre_start_required: places,
            get_preferred_allocation_available: places,
        }
    }

    fn list(&self, pool: &Pool, hidden: &Hidden) -> ListAndWatchResponse {
        let hidden = hidden.get(self.resource.name);
        let is_hidden = |id: &UnitId| hidden.is_some_and(|ids| ids.binary_search(id).is_ok());
        // Thousands of ids share a few GPUs, so the GPU's text is formatted once.
        let mut written: Option<(GpuId, String, Option<TopologyInfo>)> = None;
        let near = |node: u32| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] };
        let device = |(id, healthy): (UnitId, bool)| {
            let (_, gpu, topology) = match &mut written {
                Some(known) if known.0 == id.gpu => known,
                other => other.insert((id.gpu, id.gpu.to_string(), pool.numa(id.gpu).map(near))),
            };
            let is_there = healthy && !is_hidden(&id);
            let health = if is_there { HEALTHY } else { UNHEALTHY }.to_owned();
            Device { id: id.written(gpu), health, topology: topology.clone() }
        };
        ListAndWatchResponse { devices: pool.ids(self.resource.counts).map(device).collect() }
    }

    fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool.borrow())
    }

    /// The device files for the response. None with CDI, whose file lists them.
    fn device_files(&self, allocation: &Allocation) -> Result<Vec<PathBuf>, FilesError> {
        match self.devices {
            DeviceList::Files | DeviceList::Mounts => self.files.of(&allocation.gpus),
            DeviceList::Cdi => Ok(Vec::new()),
        }
    }

    /// The response for one container.
    fn container(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let allocation = self.pool().allocate(&self.resource, ids)?;
        // Places bring all that a container needs of its GPUs. Cores and memory are only counted by the kubelet.
        if !self.resource.counts.is_place() {
            return Ok(ContainerAllocateResponse::default());
        }
        let files = self.device_files(&allocation)?;
        let libraries = self.driver.as_deref().map(driver_libraries::mounts).transpose()?;
        self.allocations.allocate(&self.resource, &allocation)?;
        let folder = self.allocations.of(&allocation.key);
        let hook = self.hook.as_ref().filter(|hook| hook.is_there());
        let own = hook.map(|_| image_preloads::of(&folder));
        let session = self.allocations.session_of(&allocation.key);
        let mut mounts = self.injection.mounts((&folder, &session), own.as_deref())?;
        mounts.extend(libraries.into_iter().flatten());
        let Allocation { key, gpus, .. } = allocation;
        let visible: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let device = |file: &PathBuf| DeviceSpec {
            container_path: path(file),
            host_path: path(file),
            permissions: "rw".to_owned(),
        };
        tracing::info!(resource = self.resource.name, key = key.as_str(), gpus = ?visible, "allocates");
        let (seen, cdi_devices) = match self.devices {
            DeviceList::Files => (visible.join(","), Vec::new()),
            DeviceList::Mounts => (NONE_VISIBLE.to_owned(), Vec::new()),
            DeviceList::Cdi => {
                let named = visible.iter().map(|gpu| CdiDevice { name: format!("{CDI}={gpu}") });
                (NONE_VISIBLE.to_owned(), named.collect())
            }
        };
        Ok(ContainerAllocateResponse {
            envs: HashMap::from([
                (VISIBLE.to_owned(), seen),
                (ALLOCATION.to_owned(), key.as_str().to_owned()),
            ]),
            mounts,
            devices: files.iter().map(device).collect(),
            annotations: hook.map(|_| image_preloads::annotation()).into_iter().collect(),
            cdi_devices,
        })
    }
}

impl Offer {
    /// Handles the start of a container with these ids. Returns the container whose limits are already written, if any.
    fn start(&self, ids: &[String]) -> Result<(Waiting, Option<Holder>), Refusal> {
        let allocation = self.pool().allocated(&self.resource, ids)?;
        self.device_files(&allocation)?;
        // Writes the CDI file if a reboot has removed it: the kubelet still requests its device.
        _ = self.hook.as_ref().map(|hook| hook.is_there());
        let decided = self.allocations.start(&self.resource, &allocation)?;
        let Allocation { key, ids, gpus } = allocation;
        let ids = ids.iter().map(ToString::to_string).collect();
        let resource = self.resource.name.to_owned();
        Ok((Waiting { key, resource, ids, gpus, starts: true }, decided))
    }
}

/// Counts the open list streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched(Arc<AtomicUsize>);

impl Watched {
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn one_more(&self) -> OneWatched {
        self.0.fetch_add(1, Ordering::AcqRel);
        OneWatched(self.clone())
    }
}

struct OneWatched(Watched);

impl Drop for OneWatched {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An open list stream.
struct Watching {
    offer: Offer,
    pool: watch::Receiver<Arc<Pool>>,
    hidden: watch::Receiver<Arc<Hidden>>,
    over: watch::Receiver<()>,
    /// The last list sent, and when.
    told: Option<(Arc<Pool>, Arc<Hidden>, Instant)>,
    _watched: OneWatched,
}

impl Watching {
    /// Whether the list is unchanged. Hidden ids of other resources do not matter.
    fn is_told(&self, pool: &Arc<Pool>, hidden: &Hidden) -> bool {
        let name = self.offer.resource.name;
        self.told.as_ref().is_some_and(|(known, before, _)| {
            Arc::ptr_eq(known, pool) && before.get(name) == hidden.get(name)
        })
    }

    /// Waits until the list differs from the last one sent. `None`: the stream ends.
    async fn next(&mut self) -> Option<ListAndWatchResponse> {
        loop {
            let pool = Arc::clone(&self.pool.borrow_and_update());
            let hidden = Arc::clone(&self.hidden.borrow_and_update());
            if self.is_told(&pool, &hidden) {
                tokio::select! {
                    _ = self.over.changed() => return None,
                    changed = self.pool.changed() => changed.ok()?,
                    changed = self.hidden.changed() => changed.ok()?,
                }
                continue;
            }
            let is_place = self.offer.resource.counts.is_place();
            let apart = if is_place { LISTS_APART } else { UNITS_APART };
            let due = self.told.as_ref().map(|(.., told)| *told + apart);
            if let Some(due) = due.filter(|due| *due > Instant::now()) {
                tokio::select! {
                    _ = self.over.changed() => return None,
                    () = tokio::time::sleep_until(due) => {}
                }
                // The state may have changed meanwhile.
                continue;
            }
            let list = self.offer.list(&pool, &hidden);
            self.told = Some((pool, hidden, Instant::now()));
            return Some(list);
        }
    }
}

/// The gRPC service on one socket.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) offer: Offer,
    pub(crate) watched: Watched,
    /// Closed when the socket is given up, which ends its list streams.
    pub(crate) over: watch::Receiver<()>,
}

impl Plugin {
    /// Runs `work`, which blocks on files, outside of the serving threads.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Offer) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let offer = self.offer.clone();
        let done = tokio::task::spawn_blocking(move || work(&offer)).await;
        let done = done.map_err(|ended| Status::internal(ended.to_string()))?;
        done.map(Response::new).map_err(|refusal| self.refused(refusal))
    }
}

type Lists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Lists;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(self.offer.options()))
    }

    /// Sends all ids at once, and again after each change.
    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        let watching = Watching {
            offer: self.offer.clone(),
            pool: self.offer.pool.clone(),
            hidden: self.offer.hidden.clone(),
            over: self.over.clone(),
            told: None,
            _watched: self.watched.one_more(),
        };
        let lists =
            unfold(
                watching,
                |mut watching| async move { Some((Ok(watching.next().await?), watching)) },
            );
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let pool = self.offer.pool();
        let resource = &self.offer.resource;
        let mut all = Ok(Vec::new());
        for request in &request.get_ref().container_requests {
            let count = usize::try_from(request.allocation_size).unwrap_or_default();
            let to = self.offer.resolver.recipient(Wanted { resource, count }).await;
            let hidden = Arc::clone(&self.offer.hidden.borrow());
            let hidden = hidden.get(resource.name);
            let available = request.available_device_i_ds.iter();
            // The kubelet may not know yet that these are hidden.
            let available: Vec<String> = available
                .filter(|id| match (hidden, UnitId::read(id)) {
                    (Some(hidden), Some(id)) => hidden.binary_search(&id).is_err(),
                    _ => true,
                })
                .cloned()
                .collect();
            let must = &request.must_include_device_i_ds;
            all = all.and_then(|mut all: Vec<_>| {
                let chosen = pool.preferred(resource, &available, must, count, &to?)?;
                let device_i_ds = chosen.iter().map(ToString::to_string).collect();
                all.push(ContainerPreferredAllocationResponse { device_i_ds });
                Ok::<_, Refusal>(all)
            });
        }
        let container_responses = all.map_err(|refusal| self.refused(refusal))?;
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let work = move |offer: &Offer| {
            let all = asked.iter().map(|one| offer.container(&one.devices_i_ds));
            Ok(AllocateResponse { container_responses: all.collect::<Result<_, Refusal>>()? })
        };
        self.apart(work).await
    }

    /// Writes the limits before the container starts, unless written since `Allocate`. All of its resources are
    /// allocated by now, and the kubelet lists it. If the kubelet does not answer, the limits are written later, and
    /// the container's first CUDA call waits for them.
    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids = request.into_inner().devices_i_ds;
        let (waiting, decided) = self.apart(move |offer| offer.start(&ids)).await?.into_inner();
        let key = waiting.key.clone();
        let late = self.settle(waiting, decided).await?;
        if let Some(reason) = late {
            let key = key.as_str();
            tracing::warn!(key, reason, "a container starts and waits for its limits");
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

impl Plugin {
    /// Writes the limits of a container that is about to start. `decided`: the container whose limits are already
    /// written. Returns the reason if they are delayed.
    async fn settle(
        &self,
        waiting: Waiting,
        decided: Option<Holder>,
    ) -> Result<Option<String>, Status> {
        let resolver = &self.offer.resolver;
        let (containers, asked) = match resolver.ask().await {
            Ok(answer) => answer,
            Err(_) if decided.is_some() => return Ok(None),
            Err(reason) => return Ok(Some(reason.to_string())),
        };
        if let Some(before) = decided {
            let pod = resolver.pod_of(&before).await;
            let is_open = |pod: &Arc<Pod>| resolver.may_be_another(&waiting, pod, &before);
            let started = match pod.as_ref().filter(|pod| is_open(pod)) {
                Some(_) => self.starts_again(&waiting, &containers, &before).await?,
                None => {
                    let checked = containers.check_holder(&waiting.ids, &before);
                    checked.map_err(|why| self.refused(Undecided::from(why).into()))?;
                    Some(pod)
                }
            };
            if let Some(pod) = started {
                if let Some(pod) = pod {
                    let waiting = waiting.clone();
                    let work = move |offer: &Offer| {
                        let started = offer.resolver.starts(&waiting, &pod, &before);
                        started.map_err(|error| Undecided::from(error).into())
                    };
                    self.apart(work).await?;
                }
                return Ok(None);
            }
        }
        let (containers, until) = (Arc::new(containers), Instant::now() + CLEAR_WITHIN);
        let outcome = loop {
            let outcomes = resolver.settle(vec![waiting.clone()], &containers, asked).await;
            let Some(outcome) = outcomes.into_iter().next() else { return Ok(None) };
            let is_unclear = matches!(outcome.settled, Ok(Settled::Unclear));
            if !is_unclear || Instant::now() >= until {
                break outcome;
            }
            tokio::time::sleep(LOOKED_AT_EVERY).await;
        };
        match outcome.settled {
            Ok(Settled::Decided) => Ok(None),
            Ok(Settled::Unlisted) => Ok(Some(UNLISTED.to_owned())),
            Ok(Settled::Unclear) => Ok(Some(UNCLEAR.to_owned())),
            Err(Undecided::Cluster(reason)) => Ok(Some(reason)),
            Err(why) => {
                let whose = outcome.pod.zip(outcome.holder);
                if let Some((cluster, (pod, holder))) = resolver.cluster.as_ref().zip(whose) {
                    cluster.refused(&pod, &holder.container, &why.to_string());
                }
                Err(self.refused(why.into()))
            }
        }
    }

    /// The pod, if the starting container is the one whose limits are written. If not, removes those limits and returns
    /// `None`.
    async fn starts_again(
        &self,
        waiting: &Waiting,
        containers: &Containers,
        before: &Holder,
    ) -> Result<Option<Option<Arc<Pod>>>, Status> {
        match self.offer.resolver.owner(waiting, containers).await {
            Ok(Owned::By(Owner { holder, pod, .. })) if holder == *before => Ok(Some(pod)),
            _ => {
                let waiting = waiting.clone();
                self.apart(move |offer| Ok(offer.allocations.vacate(&waiting)?)).await?;
                Ok(None)
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> Status {
        tracing::warn!(resource = self.offer.resource.name, %refusal, "refuses a container");
        refusal.into()
    }
}
