//! Client of the kubelet's PodResources API, which lists pods with their devices. Connects for each call, since a
//! restarted kubelet has a new socket.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Code;
use tonic::transport::{Channel, Endpoint as Peer};

use dialects::ResourceNames;

use crate::chain::chain;
use crate::proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::pod_resources::{
    AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest, PodResources,
};

/// The socket's path in the kubelet's directory.
const SOCKET: &str = "pod-resources/kubelet.sock";
/// Timeout of the kubelet's answer.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Longest answer, as in the kubelet's own client: many memory units need more than gRPC's default of 4 MiB.
const MOST_BYTES: usize = 16 << 20;

/// Why the kubelet gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodResourcesError {
    /// The socket cannot be connected.
    #[error("{socket}: {reason}", socket = socket.display())]
    Connect { socket: PathBuf, reason: String },
    /// The kubelet returned an error.
    #[error("the kubelet's PodResources: {0}")]
    Refused(String),
    /// This version has no such call, or it is disabled.
    #[error("the kubelet's PodResources: it does not have this call")]
    NotThere,
    /// The timeout has passed.
    #[error("the kubelet's PodResources: no answer within {} s", ANSWERS_WITHIN.as_secs())]
    Silent,
}

/// A client for one kubelet.
#[derive(Clone, Debug)]
pub(crate) struct PodResourcesApi {
    socket: PathBuf,
    names: ResourceNames,
}

impl PodResourcesApi {
    /// For the kubelet with this directory. `names`: the cluster's resource names.
    pub(crate) fn of(kubelet: &Path, names: ResourceNames) -> Self {
        Self { socket: kubelet.join(SOCKET), names }
    }

    /// Replaces the cluster's resource names by the original ones, and drops resources of others.
    fn read(&self, devices: &mut Vec<ContainerDevices>) {
        devices.retain_mut(|one| {
            let own = self.names.read(&one.resource_name).map(ToOwned::to_owned);
            own.map(|own| one.resource_name = own).is_some()
        });
    }

    /// All pods with their containers' devices.
    pub(crate) async fn list(&self) -> Result<Vec<PodResources>, PodResourcesError> {
        let answer = self.ask(async |mut kubelet| kubelet.list(ListPodResourcesRequest {}).await);
        let mut pods = answer.await?.pod_resources;
        let containers = pods.iter_mut().flat_map(|pod| &mut pod.containers);
        containers.for_each(|container| self.read(&mut container.devices));
        Ok(pods)
    }

    /// The devices that the kubelet may allocate.
    pub(crate) async fn allocatable(&self) -> Result<Vec<ContainerDevices>, PodResourcesError> {
        let answer = self.ask(async |mut kubelet| {
            kubelet.get_allocatable_resources(AllocatableResourcesRequest {}).await
        });
        let mut devices = answer.await?.devices;
        self.read(&mut devices);
        Ok(devices)
    }

    async fn ask<T, A>(
        &self,
        call: impl FnOnce(PodResourcesListerClient<Channel>) -> A,
    ) -> Result<T, PodResourcesError>
    where
        A: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let lost = |error: tonic::transport::Error| PodResourcesError::Connect {
            socket: self.socket.clone(),
            reason: chain(error),
        };
        let answer = async {
            let peer =
                Peer::from_shared(format!("unix:{}", self.socket.display())).map_err(lost)?;
            let channel = peer.connect().await.map_err(lost)?;
            let kubelet =
                PodResourcesListerClient::new(channel).max_decoding_message_size(MOST_BYTES);
            match call(kubelet).await {
                Ok(answer) => Ok(answer.into_inner()),
                Err(status) if status.code() == Code::Unimplemented => {
                    Err(PodResourcesError::NotThere)
                }
                Err(status) => Err(PodResourcesError::Refused(status.message().to_owned())),
            }
        };
        let answered = tokio::time::timeout(ANSWERS_WITHIN, answer).await;
        answered.unwrap_or(Err(PodResourcesError::Silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pod_resources::pod_resources_lister_server::{
        PodResourcesLister, PodResourcesListerServer,
    };
    use crate::proto::pod_resources::{AllocatableResourcesResponse, ListPodResourcesResponse};
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};

    /// A kubelet that returns this many ids in one message, or an error.
    struct Kubelet(Result<usize, Code>);

    impl Kubelet {
        fn devices(&self) -> Result<Vec<ContainerDevices>, Status> {
            let many = self.0.map_err(|code| Status::new(code, "as the test says"))?;
            let device_ids = (0..many).map(|at| format!("{:0>60}", at)).collect();
            Ok(vec![ContainerDevices { resource_name: "r".to_owned(), device_ids }])
        }
    }

    #[tonic::async_trait]
    impl PodResourcesLister for Kubelet {
        async fn list(
            &self,
            _: Request<ListPodResourcesRequest>,
        ) -> Result<Response<ListPodResourcesResponse>, Status> {
            self.devices()?;
            let name = "pod".to_owned();
            let pod_resources = vec![PodResources { name, ..PodResources::default() }];
            Ok(Response::new(ListPodResourcesResponse { pod_resources }))
        }

        async fn get_allocatable_resources(
            &self,
            _: Request<AllocatableResourcesRequest>,
        ) -> Result<Response<AllocatableResourcesResponse>, Status> {
            Ok(Response::new(AllocatableResourcesResponse { devices: self.devices()? }))
        }
    }

    async fn answers(
        kubelet: Kubelet,
    ) -> (Result<usize, PodResourcesError>, Result<usize, PodResourcesError>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pod-resources")).unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let server = Server::builder().add_service(PodResourcesListerServer::new(kubelet));
        let serves = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        let api = PodResourcesApi::of(folder.path(), ResourceNames::default());
        let pods = api.list().await.map(|pods| pods.len());
        let allocatable = api.allocatable().await.map(|parts| parts[0].device_ids.len());
        serves.abort();
        (pods, allocatable)
    }

    #[tokio::test]
    async fn pods_and_what_may_be_given_out_also_in_a_long_message() {
        // More than gRPC's default limit of 4 MiB.
        assert_eq!(answers(Kubelet(Ok(100_000))).await, (Ok(1), Ok(100_000)));
    }

    #[tokio::test]
    async fn a_kubelet_that_does_not_tell() {
        let not_there = PodResourcesError::NotThere;
        let found = answers(Kubelet(Err(Code::Unimplemented))).await;
        assert_eq!(found, (Err(not_there.clone()), Err(not_there)));
        let (pods, _) = answers(Kubelet(Err(Code::Internal))).await;
        assert_eq!(pods, Err(PodResourcesError::Refused("as the test says".to_owned())));
        let folder = tempfile::tempdir().unwrap();
        let nobody = PodResourcesApi::of(folder.path(), ResourceNames::default())
            .list()
            .await
            .unwrap_err()
            .to_string();
        assert!(nobody.contains(SOCKET) && nobody.contains("No such file"), "{nobody}");
    }
}
