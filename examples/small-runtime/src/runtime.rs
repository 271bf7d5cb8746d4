//! Runtime service: sandboxes and containers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::container as process;
use crate::proto::runtime_service_server::RuntimeService;
use crate::proto::*;

/// Address of every pod: there is no network.
const ADDRESS: &str = "10.77.0.2";

#[derive(Debug)]
struct Sandbox {
    config: PodSandboxConfig,
    ready: bool,
    created: i64,
}

#[derive(Debug)]
struct Container {
    sandbox: String,
    config: ContainerConfig,
    created: i64,
    started: i64,
    /// Time of the end, and exit status.
    finished: Option<(i64, i32)>,
    /// Ends the container.
    end: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Pods {
    last: u64,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
}

#[derive(Debug)]
pub(crate) struct Runtime {
    state: PathBuf,
    images: Option<PathBuf>,
    cdi: Vec<PathBuf>,
    pods: Arc<Mutex<Pods>>,
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn lock(pods: &Mutex<Pods>) -> MutexGuard<'_, Pods> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

fn none(what: &str, id: &str) -> Status {
    Status::not_found(format!("no {what} {id:?}"))
}

impl Pods {
    fn next(&mut self, what: &str) -> String {
        self.last += 1;
        format!("{what}-{}", self.last)
    }

    fn container(&mut self, id: &str) -> Result<&mut Container, Status> {
        self.containers.get_mut(id).ok_or_else(|| none("container", id))
    }

    fn sandbox(&mut self, id: &str) -> Result<&mut Sandbox, Status> {
        self.sandboxes.get_mut(id).ok_or_else(|| none("sandbox", id))
    }
}

impl Container {
    fn state(&self) -> i32 {
        let state = match (self.started, self.finished) {
            (0, _) => ContainerState::ContainerCreated,
            (_, None) => ContainerState::ContainerRunning,
            (_, Some(_)) => ContainerState::ContainerExited,
        };
        state.into()
    }
}

impl Sandbox {
    fn state(&self) -> i32 {
        let ready = self.ready;
        let state =
            if ready { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready };
        state.into()
    }
}

impl Runtime {
    pub(crate) fn new(state: PathBuf, images: Option<PathBuf>, cdi: Vec<PathBuf>) -> Self {
        Self { state, images, cdi, pods: Arc::default() }
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        lock(&self.pods)
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "small-runtime".to_owned(),
            runtime_version: "0.1.0".to_owned(),
            runtime_api_version: "v1alpha2".to_owned(),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let condition = |name: &str| RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..RuntimeCondition::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let status = Some(RuntimeStatus { conditions });
        Ok(Response::new(StatusResponse { status, ..StatusResponse::default() }))
    }

    async fn update_runtime_config(
        &self,
        _: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let config = request.into_inner().config.unwrap_or_default();
        let mut pods = self.pods();
        let id = pods.next("sandbox");
        pods.sandboxes.insert(id.clone(), Sandbox { config, ready: true, created: now() });
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id: id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let mut pods = self.pods();
        for container in pods.containers.values_mut().filter(|one| one.sandbox == id) {
            container.end = None;
        }
        if let Some(sandbox) = pods.sandboxes.get_mut(&id) {
            sandbox.ready = false;
        }
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let mut pods = self.pods();
        pods.containers.retain(|_, container| container.sandbox != id);
        pods.sandboxes.remove(&id);
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let mut pods = self.pods();
        let sandbox = pods.sandbox(&id)?;
        let status = PodSandboxStatus {
            id,
            metadata: sandbox.config.metadata.clone(),
            state: sandbox.state(),
            created_at: sandbox.created,
            network: Some(PodSandboxNetworkStatus {
                ip: ADDRESS.to_owned(),
                ..PodSandboxNetworkStatus::default()
            }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            ..PodSandboxStatus::default()
        };
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(status),
            ..PodSandboxStatusResponse::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let pods = self.pods();
        let fits = |(id, sandbox): &(&String, &Sandbox)| {
            (filter.id.is_empty() || filter.id == **id)
                && filter.state.as_ref().is_none_or(|state| state.state == sandbox.state())
                && filter
                    .label_selector
                    .iter()
                    .all(|(k, v)| sandbox.config.labels.get(k) == Some(v))
        };
        let items = pods.sandboxes.iter().filter(fits).map(|(id, sandbox)| PodSandbox {
            id: id.clone(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox.state(),
            created_at: sandbox.created,
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            ..PodSandbox::default()
        });
        Ok(Response::new(ListPodSandboxResponse { items: items.collect() }))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        let CreateContainerRequest { pod_sandbox_id, config, .. } = request.into_inner();
        let mut pods = self.pods();
        pods.sandbox(&pod_sandbox_id)?;
        let id = pods.next("container");
        let container = Container {
            sandbox: pod_sandbox_id,
            config: config.unwrap_or_default(),
            created: now(),
            started: 0,
            finished: None,
            end: None,
        };
        pods.containers.insert(id.clone(), container);
        Ok(Response::new(CreateContainerResponse { container_id: id }))
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        let (end, ended) = oneshot::channel();
        let mut child = {
            let mut pods = self.pods();
            let container = pods.container(&id)?;
            let name = &container.config.metadata.clone().unwrap_or_default().name;
            let output = self.state.join(format!("{name}.out"));
            let image = container.config.image.clone().unwrap_or_default().image;
            let image = self.images.as_ref().map(|images| images.join(image));
            let started = process::Container {
                config: &container.config,
                users: None,
                bundle: &self.state.join(&id),
                output: &output,
                image: image.as_deref().filter(|image| image.is_dir()),
                cdi: &self.cdi,
            };
            let child = started.start();
            let child = child.map_err(|error| Status::internal(error.to_string()))?;
            (container.started, container.end) = (now(), Some(end));
            child
        };
        let pods = Arc::clone(&self.pods);
        tokio::spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status,
                // Asked to end, or forgotten.
                _ = ended => {
                    _ = child.start_kill();
                    child.wait().await
                }
            };
            let code = status.ok().and_then(|status| status.code()).unwrap_or(137);
            if let Some(container) = lock(&pods).containers.get_mut(&id) {
                container.finished = Some((now(), code));
            }
        });
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        self.pods().container(&request.into_inner().container_id)?.end = None;
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        self.pods().containers.remove(&request.into_inner().container_id);
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let pods = self.pods();
        let fits = |(id, one): &(&String, &Container)| {
            (filter.id.is_empty() || filter.id == **id)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == one.sandbox)
                && filter.state.as_ref().is_none_or(|state| state.state == one.state())
                && filter.label_selector.iter().all(|(k, v)| one.config.labels.get(k) == Some(v))
        };
        let containers = pods.containers.iter().filter(fits).map(|(id, one)| {
            let image = one.config.image.clone();
            crate::proto::Container {
                id: id.clone(),
                pod_sandbox_id: one.sandbox.clone(),
                metadata: one.config.metadata.clone(),
                image_ref: image.clone().unwrap_or_default().image,
                image,
                state: one.state(),
                created_at: one.created,
                labels: one.config.labels.clone(),
                annotations: one.config.annotations.clone(),
            }
        });
        Ok(Response::new(ListContainersResponse { containers: containers.collect() }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let mut pods = self.pods();
        let one = pods.container(&id)?;
        let image = one.config.image.clone();
        let (finished_at, exit_code) = one.finished.unwrap_or_default();
        let reason = match one.finished {
            None => "",
            Some((_, 0)) => "Completed",
            Some(_) => "Error",
        };
        let status = ContainerStatus {
            id,
            metadata: one.config.metadata.clone(),
            state: one.state(),
            created_at: one.created,
            started_at: one.started,
            finished_at,
            exit_code,
            image_ref: image.clone().unwrap_or_default().image,
            image,
            reason: reason.to_owned(),
            labels: one.config.labels.clone(),
            annotations: one.config.annotations.clone(),
            mounts: one.config.mounts.clone(),
            ..ContainerStatus::default()
        };
        Ok(Response::new(ContainerStatusResponse {
            status: Some(status),
            ..ContainerStatusResponse::default()
        }))
    }

    async fn list_container_stats(
        &self,
        _: Request<ListContainerStatsRequest>,
    ) -> Result<Response<ListContainerStatsResponse>, Status> {
        Ok(Response::new(ListContainerStatsResponse::default()))
    }
}
