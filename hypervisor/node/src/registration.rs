//! A plugin's socket, and its registration with the kubelet.
//!
//! A kubelet that starts deletes the sockets of all plugins, creates its own anew and knows no plugin. If a list stream
//! breaks, the kubelet does not reopen it. Both cases are detected by polling, and solved by registering again.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use grpc_authority::AuthorityStream;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint as Peer, Server};

use crate::NodeError;
use crate::chain::chain;
use crate::plugin::{Offer, Plugin, Watched};
use crate::proto::device_plugin_server::DevicePluginServer;
use crate::proto::registration_client::RegistrationClient;
use crate::proto::{RegisterRequest, VERSION};

/// The kubelet's socket, in the same directory.
pub(crate) const KUBELET: &str = "kubelet.sock";
/// How often to poll.
const LOOK: Duration = Duration::from_millis(250);
/// How long after a registration the kubelet may take to ask for the list.
const ASKS_WITHIN: Duration = Duration::from_secs(5);
/// Timeout of a registration.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Pause after a failed registration.
const AGAIN: Duration = Duration::from_secs(1);

/// Identifies a file while it exists. Inode numbers are reused, so the time of the last status change is included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { device: found.dev(), inode: found.ino(), changed })
    }
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Create the plugin's socket, which has gone.
    Listen,
    /// Register: the kubelet does not know the plugin (any more).
    Register(FileId),
    Wait,
}

/// What polling has found.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Whether the plugin's socket is still in place.
    listens: bool,
    /// The kubelet's socket, if it exists.
    kubelet: Option<FileId>,
    /// The kubelet's socket at the last registration, and the time since.
    registered: Option<(FileId, Duration)>,
    /// Whether the kubelet has the list stream open.
    watched: bool,
}

fn next(known: &Known) -> Step {
    let Known { listens, kubelet, registered, watched } = *known;
    if !listens {
        return Step::Listen;
    }
    let Some(kubelet) = kubelet else { return Step::Wait };
    match registered {
        Some((before, ago)) if before == kubelet && (watched || ago < ASKS_WITHIN) => Step::Wait,
        _ => Step::Register(kubelet),
    }
}

/// A resource with the paths of its socket and the kubelet's.
#[derive(Debug)]
pub(crate) struct Endpoint {
    offer: Offer,
    socket: PathBuf,
    kubelet: PathBuf,
}

/// The plugin while it listens. Dropping it removes the socket and ends the list streams.
#[derive(Debug)]
struct Listening {
    socket: PathBuf,
    id: FileId,
    watched: Watched,
    server: tokio::task::JoinHandle<()>,
    _over: watch::Sender<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.server.abort();
        // Another process may have replaced the socket.
        if FileId::of(&self.socket) == Some(self.id) {
            _ = fs::remove_file(&self.socket);
        }
    }
}

impl Endpoint {
    pub(crate) fn new(offer: Offer, plugins: &Path) -> Self {
        let socket = plugins.join(offer.resource.socket());
        Self { offer, socket, kubelet: plugins.join(KUBELET) }
    }

    /// Listens and stays registered. Returns only if it cannot listen.
    pub(crate) async fn keep(self) -> NodeError {
        loop {
            match self.listen() {
                Ok(listening) => self.stay_registered(&listening).await,
                Err(source) => return NodeError::Listen { socket: self.socket, source },
            }
        }
    }

    fn listen(&self) -> io::Result<Listening> {
        // Left by an earlier run.
        match fs::symlink_metadata(&self.socket) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(&self.socket)?,
            _ => {}
        }
        let listener = UnixListener::bind(&self.socket)?;
        let id = FileId::of(&self.socket).ok_or(io::ErrorKind::NotFound)?;
        let (over, ended) = watch::channel(());
        let watched = Watched::default();
        let plugin = Plugin { offer: self.offer.clone(), watched: watched.clone(), over: ended };
        let callers = UnixListenerStream::new(listener).map(|one| one.map(AuthorityStream::new));
        let resource = self.offer.resource.name;
        let server = tokio::spawn(async move {
            let service = DevicePluginServer::new(plugin);
            let served = Server::builder().add_service(service).serve_with_incoming(callers).await;
            if let Err(error) = served {
                tracing::error!(resource, %error, "the plugin's server has ended");
            }
        });
        Ok(Listening { socket: self.socket.clone(), id, watched, server, _over: over })
    }

    /// Returns when the plugin's socket has gone.
    async fn stay_registered(&self, listening: &Listening) {
        let resource = self.offer.resource.name;
        let mut registered: Option<(FileId, Instant)> = None;
        let mut told = None;
        loop {
            let known = Known {
                listens: FileId::of(&self.socket) == Some(listening.id)
                    && !listening.server.is_finished(),
                kubelet: FileId::of(&self.kubelet),
                registered: registered.map(|(id, at)| (id, at.elapsed())),
                watched: listening.watched.any(),
            };
            match next(&known) {
                Step::Listen => {
                    tracing::info!(resource, "the plugin's socket has gone: makes it anew");
                    return;
                }
                Step::Register(kubelet) => match self.register().await {
                    Ok(()) => {
                        told = None;
                        registered = Some((kubelet, Instant::now()));
                        tracing::info!(resource, "registered");
                    }
                    Err(reason) => {
                        // Logs each reason once: this may last.
                        if told.as_ref() != Some(&reason) {
                            tracing::warn!(resource, %reason, "the kubelet does not take the registration");
                        }
                        told = Some(reason);
                        tokio::time::sleep(AGAIN).await;
                    }
                },
                Step::Wait => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn register(&self) -> Result<(), String> {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.offer.resource.socket(),
            resource_name: self.offer.name.clone(),
            options: Some(self.offer.options()),
        };
        let call = async {
            let peer =
                Peer::from_shared(format!("unix:{}", self.kubelet.display())).map_err(chain)?;
            let channel = peer.connect().await.map_err(chain)?;
            let answer = RegistrationClient::new(channel).register(request).await;
            answer.map(|_| ()).map_err(|status| status.message().to_owned())
        };
        let answered = tokio::time::timeout(ANSWERS_WITHIN, call).await;
        answered.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWERS_WITHIN.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: FileId = FileId { device: 1, inode: 2, changed: (3, 4) };
    const ANOTHER: FileId = FileId { changed: (3, 5), ..KUBELET };
    const STEADY: Known = Known {
        listens: true,
        kubelet: Some(KUBELET),
        registered: Some((KUBELET, Duration::from_secs(3600))),
        watched: true,
    };

    #[test]
    fn a_plugin_that_is_watched_waits() {
        assert_eq!(next(&STEADY), Step::Wait);
        let young = Some((KUBELET, Duration::from_secs(1)));
        assert_eq!(next(&Known { registered: young, watched: false, ..STEADY }), Step::Wait);
        assert_eq!(next(&Known { kubelet: None, ..STEADY }), Step::Wait);
    }

    #[test]
    fn a_kubelet_that_does_not_know_the_plugin_is_told() {
        assert_eq!(next(&Known { registered: None, ..STEADY }), Step::Register(KUBELET));
        assert_eq!(next(&Known { kubelet: Some(ANOTHER), ..STEADY }), Step::Register(ANOTHER));
        assert_eq!(next(&Known { watched: false, ..STEADY }), Step::Register(KUBELET));
    }

    #[test]
    fn a_socket_that_has_gone_comes_first() {
        let gone = Known { listens: false, ..STEADY };
        assert_eq!(next(&gone), Step::Listen);
        assert_eq!(next(&Known { kubelet: None, registered: None, ..gone }), Step::Listen);
    }
}
