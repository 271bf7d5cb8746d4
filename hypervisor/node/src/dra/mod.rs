//! The DRA driver: publishes GPUs as devices of a ResourceSlice, and prepares claims when the kubelet asks.
//!
//! A claim is a session: all containers that use it share its limits. Its limits are stored as an allocation, like
//! those of a device plugin's container, from which a restart continues. The allocation is complete before the kubelet
//! is answered.

mod allocated;
mod cdi;
mod claim;
mod publish;
mod server;
mod slice;
mod usage;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use api_server::{CallError, answered, segment};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;
use tokio::sync::{Notify, watch};

pub(crate) use self::allocated::{Allocated, Devices};
pub(crate) use self::cdi::CdiFolder;
use self::cdi::Edits;
use self::claim::{ClaimError, Planned};
pub(crate) use self::server::Socket;
use crate::allocations::{Allocations, Decision, Grantor, WriteError};
use crate::chain::chain;
use crate::cluster::{ANSWERS_WITHIN, Cluster};
use crate::device_files::{DeviceFiles, FilesError};
use crate::driver_libraries::{self, DriverError};
use crate::injection::Injection;
use crate::options::DeviceList;
use crate::plugin::{ALLOCATION, CDI, NONE_VISIBLE, VISIBLE};
use crate::pool::Pool;
use crate::proto::dra::{Claim, Device};

/// The driver's name in claims and classes.
pub(crate) const DRIVER: &str = "gpu.sluice.dev";
/// The API version of the parameters in a claim's configuration.
pub(crate) const API_VERSION: &str = "gpu.sluice.dev/v1";

/// The state from which claims are prepared and published.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) cluster: Cluster,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) injection: Injection,
    pub(crate) files: DeviceFiles,
    pub(crate) devices: DeviceList,
    /// The directory of NVIDIA's libraries, if they are mounted.
    pub(crate) libraries: Option<PathBuf>,
    pub(crate) cdi: CdiFolder,
    /// Notified when a claim has been prepared.
    pub(crate) prepared: Arc<Notify>,
}

#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("{0:?} is no UID; expected letters, digits and dashes")]
    Uid(String),
    #[error(
        "the API server has no claim {0}; expected one in status.allocation of which this node has devices"
    )]
    NoClaim(String),
    #[error("{0}")]
    ApiServer(String),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Libraries(#[from] DriverError),
    #[error("the claim's CDI file: {0}")]
    Cdi(io::Error),
    #[error("the claim's allocation: {0}")]
    Folder(io::Error),
    #[error("preparing has ended: {0}")]
    Ended(tokio::task::JoinError),
}

/// The type of a DRA object, read as JSON because the API version built against is older.
pub(crate) fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("resource.k8s.io", "v1", kind), plural)
}

impl Driver {
    fn claims(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = kind("ResourceClaim", "resourceclaims");
        Api::namespaced_with(self.cluster.client(), &segment(namespace), &kind)
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Value>, CallError> {
        let (claims, name) = (self.claims(namespace), segment(name));
        let found = answered(ANSWERS_WITHIN, claims.get_opt(&name)).await?;
        Ok(found.and_then(|claim| serde_json::to_value(claim).ok()))
    }

    /// Prepares a claim. Idempotent.
    async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        let Claim { namespace, uid, name } = asked.clone();
        if !CdiFolder::takes(&uid) {
            return Err(PrepareError::Uid(uid));
        }
        let found = self.claim(&namespace, &name).await;
        let found = found.map_err(|error| PrepareError::ApiServer(chain(error)))?;
        let claim = found.ok_or_else(|| PrepareError::NoClaim(format!("{namespace}/{name}")))?;
        let own = self.clone();
        let work = move || own.write(claim, &uid);
        let devices = tokio::task::spawn_blocking(work).await.map_err(PrepareError::Ended)??;
        self.prepared.notify_one();
        Ok(devices)
    }

    /// Does the file work of [`Self::prepare`]; blocks.
    fn write(&self, claim: Value, uid: &str) -> Result<Vec<Device>, PrepareError> {
        let pool = Arc::clone(&self.pool.borrow());
        let granted = self.allocations.granted(Grantor::Claim);
        let again = granted.iter().any(|(owner, _)| owner == uid);
        let planned = claim::plan(claim, uid, (self.cluster.name(), &pool), again)?;
        let Planned { holder, pod, parts, devices } = planned;
        let edits = self.files_of(&devices)?;
        let daemon = self.injection.daemon_inside();
        let claim = Some(holder.container.clone());
        let decision = Decision::in_full(holder, pod, parts, daemon);
        let decision = Decision { claim, ..decision };
        let key = self.allocations.grant(Grantor::Claim, (uid, ""), &decision)?;
        let (folder, session) = (self.allocations.of(&key), self.allocations.session_of(&key));
        let mut mounts =
            self.injection.mounts((&folder, &session), None).map_err(PrepareError::Folder)?;
        mounts.extend(
            self.libraries
                .as_deref()
                .map(driver_libraries::mounts)
                .transpose()?
                .into_iter()
                .flatten(),
        );
        let visible = match self.devices {
            DeviceList::Files => {
                let gpus = decision.parts.iter().map(|part| part.gpu.to_string());
                gpus.collect::<Vec<_>>().join(",")
            }
            DeviceList::Mounts | DeviceList::Cdi => NONE_VISIBLE.to_owned(),
        };
        let variables = vec![(VISIBLE, visible), (ALLOCATION, key.as_str().to_owned())];
        let edits = Edits { variables, mounts, files: edits };
        let (own, names) = self.cdi.write(uid, &edits).map_err(PrepareError::Cdi)?;
        tracing::info!(claim = %decision.holder, key = key.as_str(), "prepared");
        let one = |((device, gpu), files): (_, Option<String>)| {
            let device: Allocated = device;
            let by_nvidia = (self.devices == DeviceList::Cdi).then(|| format!("{CDI}={gpu}"));
            Device {
                request_names: vec![device.main_request().to_owned()],
                pool_name: device.pool,
                device_name: device.device,
                cdi_device_ids: by_nvidia.into_iter().chain(files).chain([own.clone()]).collect(),
                share_id: device.share_id,
            }
        };
        Ok(devices.into_iter().zip(names).map(one).collect())
    }

    /// Device files by CDI device name, for each device a name unique in the claim.
    fn files_of(
        &self,
        devices: &[(Allocated, limits::GpuId)],
    ) -> Result<Vec<(String, Vec<PathBuf>)>, FilesError> {
        let one = |(at, (_, gpu)): (usize, &(_, limits::GpuId))| {
            let files = match self.devices {
                DeviceList::Files | DeviceList::Mounts => self.files.of(&[*gpu])?,
                DeviceList::Cdi => Vec::new(),
            };
            Ok((at.to_string(), files))
        };
        devices.iter().enumerate().map(one).collect()
    }

    /// Releases a claim. A claim that was never prepared is no error.
    async fn unprepare(&self, uid: &str) -> Result<(), PrepareError> {
        if !CdiFolder::takes(uid) {
            return Err(PrepareError::Uid(uid.to_owned()));
        }
        let (own, uid) = (self.clone(), uid.to_owned());
        let work = move || {
            own.cdi.remove(&uid).map_err(PrepareError::Cdi)?;
            let released = own.allocations.take_back(Grantor::Claim, |owner| owner == uid);
            released.map_err(PrepareError::Folder)
        };
        tokio::task::spawn_blocking(work).await.map_err(PrepareError::Ended)?
    }
}
