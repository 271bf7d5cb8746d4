//! The kubelet as one who tells of pods.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use node::proto::pod_resources::pod_resources_lister_server::PodResourcesLister;
use node::proto::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use tonic::{Request, Response, Status};

/// What it lists, and how it answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods {
    list: Arc<Mutex<Vec<PodResources>>>,
    /// It says no.
    pub(crate) refuses: Arc<AtomicBool>,
    /// Each answer takes so many milliseconds.
    pub(crate) takes_ms: Arc<AtomicU32>,
    /// How often it was asked.
    pub(crate) asked: Arc<AtomicU32>,
}

impl Pods {
    /// A pod is being admitted: it is listed, and its container has nothing.
    pub(crate) fn admit(&self, pod: &str, container: &str) {
        self.give(pod, container, "", &[]);
    }

    /// A container has got these ids, beside those that it has.
    pub(crate) fn give(&self, pod: &str, container: &str, resource: &str, ids: &[String]) {
        let mut list = self.list.lock().unwrap();
        let at = list.iter().position(|one| one.name == pod).unwrap_or_else(|| {
            let namespace = "default".to_owned();
            list.push(PodResources { name: pod.to_owned(), namespace, containers: vec![] });
            list.len() - 1
        });
        let containers = &mut list[at].containers;
        let at = containers.iter().position(|one| one.name == container).unwrap_or_else(|| {
            containers.push(ContainerResources { name: container.to_owned(), devices: vec![] });
            containers.len() - 1
        });
        // As newer kubelets: each id by itself.
        containers[at].devices.extend(ids.iter().map(|id| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: vec![id.clone()],
        }));
    }

    /// A pod has ended.
    pub(crate) fn end(&self, pod: &str) {
        self.list.lock().unwrap().retain(|one| one.name != pod);
    }

    async fn answers(&self) -> Result<(), Status> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        let takes = self.takes_ms.load(Ordering::Acquire);
        tokio::time::sleep(Duration::from_millis(takes.into())).await;
        if self.refuses.load(Ordering::Acquire) {
            return Err(Status::internal("not now"));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.answers().await?;
        let pod_resources = self.list.lock().unwrap().clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    /// As Kubernetes 1.20 answers.
    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("unknown method GetAllocatableResources"))
    }
}
