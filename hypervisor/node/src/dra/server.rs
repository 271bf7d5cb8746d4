//! The DRA driver's socket. The kubelet finds it by watching the directory, also after a restart.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use grpc_authority::AuthorityStream;
use tokio::net::UnixListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::{DRIVER, Driver};
use crate::NodeError;
use crate::options::OptionsError;
use crate::proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::proto::dra::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::proto::plugin_registration::registration_server::{Registration, RegistrationServer};
use crate::proto::plugin_registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// Subdirectory of the kubelet's directory in which it looks for sockets.
const FOLDER: &str = "plugins_registry";
/// The type of such a plugin, and the version of its API.
const TYPE: &str = "DRAPlugin";
const VERSION: &str = "v1.DRAPlugin";

/// The listening socket. Dropping it removes the file, by which the kubelet notices that the driver has gone.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
    }
}

impl Socket {
    pub(crate) fn in_folder(kubelet: &Path) -> Result<Self, NodeError> {
        let folder = kubelet.join(FOLDER);
        if let Err(source) = fs::read_dir(&folder) {
            return Err(OptionsError::Kubelet { folder, source }.into());
        }
        let path = folder.join(format!("{DRIVER}-reg.sock"));
        match bind(&path) {
            Ok(listener) => Ok(Self { path, listener: Some(listener) }),
            Err(source) => Err(NodeError::Listen { socket: path, source }),
        }
    }

    /// Answers the kubelet while the program runs.
    pub(crate) async fn serve(mut self, driver: Driver) -> NodeError {
        let ended = |source| NodeError::Listen { socket: self.path.clone(), source };
        let Some(listener) = self.listener.take() else {
            return ended(io::ErrorKind::NotConnected.into());
        };
        let callers = UnixListenerStream::new(listener).map(|one| one.map(AuthorityStream::new));
        let server = Server::builder()
            .add_service(RegistrationServer::new(driver.clone()))
            .add_service(DraPluginServer::new(driver));
        let served = server.serve_with_incoming(callers).await;
        ended(served.map_or_else(io::Error::other, |()| io::ErrorKind::UnexpectedEof.into()))
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // Left by an earlier run.
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        _ => {}
    }
    UnixListener::bind(path)
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: String::new(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!(driver = DRIVER, "registered");
        } else {
            tracing::warn!(driver = DRIVER, error, "the kubelet does not take the registration");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let answer = match self.prepare(&claim).await {
                Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
                Err(error) => {
                    let (namespace, name) = (&claim.namespace, &claim.name);
                    tracing::warn!(namespace, name, %error, "a claim is not prepared");
                    let error = format!("claim {namespace}/{name}: {error}");
                    NodePrepareResourceResponse { devices: Vec::new(), error }
                }
            };
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = match self.unprepare(&claim.uid).await {
                Ok(()) => String::new(),
                Err(error) => error.to_string(),
            };
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}
