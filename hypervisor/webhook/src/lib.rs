//! `hypervisor webhook`: completes pods that request GPUs before they are created, and refuses those that could not run,
//! with what would be accepted.
//!
//! API servers call `/mutate` and `/validate` over TLS. The rules are in [`admission`], which is pure. Certificates are
//! read from files, or issued here and shared by replicas in a Secret.

#![forbid(unsafe_code)]

pub mod admission;
mod certificates;
mod files;
mod review;
mod self_issued;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_bidir_comm::server::{
    AnswerKept, BodyMemory, BoundedTcpListener, CountedBody, ServerTls, error_to_json,
};
use poem::http::StatusCode;
use poem::http::header::CONNECTION;
use poem::web::Data;
use poem::{EndpointExt, IntoResponse, Response, Route, get, handler, post};
use tokio::sync::OwnedSemaphorePermit;

pub use self::admission::Rules;
pub use self::certificates::Rotation;
pub use self::files::FilesError;

use self::files::Files;
use self::review::{Review, Reviewed};
use self::self_issued::{Known, SelfIssued};

/// Default address.
pub const LISTEN: &str = "0.0.0.0:8443";
/// Default name of the Secret, the Service and the webhook configurations.
pub const NAME: &str = "sluice-webhook";
/// Time from the request to end until connections are refused: API servers learn of the end within seconds.
pub const LINGER: Duration = Duration::from_secs(5);
/// Longest body of a call: API servers accept objects of up to 3 MiB.
const CALL: u32 = 4 << 20;
/// Bytes of all bodies at once.
const MOST_BYTES: u32 = 64 << 20;
/// A Job may create hundreds of pods at once.
const CONNECTIONS: usize = 512;
/// Time for calls in flight to finish when the program ends.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Options of the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Options for pods that request GPUs.
    pub rules: Rules,
    /// Source of the TLS certificate.
    pub certificates: Certificates,
    /// When certificates are replaced.
    pub rotation: Rotation,
    /// Time from the request to end until connections are refused.
    pub linger: Duration,
}

/// Source of the TLS certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// Files that something else renews, such as cert-manager, which also tells API servers to trust them.
    Files {
        /// The chain in PEM, the server's certificate first.
        certificate: PathBuf,
        /// The private key in PEM.
        key: PathBuf,
    },
    /// Issued by the webhook itself.
    SelfIssued {
        /// Namespace of the Service and the Secret.
        namespace: String,
        /// Name of the Service, the Secret and the webhook configurations.
        name: String,
        /// Kubeconfig for the API server. `None`: the pod's service account.
        kubeconfig: Option<PathBuf>,
    },
}

/// Why the webhook cannot run.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// No dialect is selected.
    #[error("no dialect is chosen; expected vgpu-manager, volcano, hami or vgpu-rs")]
    NoDialect,
    /// There is no client for the API server.
    #[error(transparent)]
    Api(#[from] api_server::ConnectError),
    /// The certificate files cannot be used.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The address cannot be used.
    #[error("--listen {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// Serves until `end` is there.
///
/// # Errors
/// [`WebhookError`]
pub async fn serve(options: &Options, end: impl Future<Output = ()>) -> Result<(), WebhookError> {
    if options.rules.dialects.is_empty() {
        return Err(WebhookError::NoDialect);
    }
    let mut keeper = Keeper::new(&options.certificates, options.rotation).await?;
    let address = options.listen;
    let listen = |source| WebhookError::Listen { address, source };
    let listener = BoundedTcpListener::bind(address, CONNECTIONS).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let webhook = Webhook { rules: Arc::new(options.rules.clone()), ends: Arc::default() };
    let (memory, ends) = (BodyMemory::new(MOST_BYTES, CALL), Arc::clone(&webhook.ends));
    let calls_have_ended = async {
        end.await;
        ends.store(true, Ordering::Relaxed);
        tokio::time::sleep(options.linger).await;
        // Calls that take longer are aborted.
        _ = tokio::time::timeout(ENDS_WITHIN, memory.all_free()).await;
    };
    let routes = Route::new()
        .at("/mutate", post(mutate))
        .at("/validate", post(validate))
        .at("/healthz", get(healthy))
        .at("/readyz", get(ready))
        .data(webhook)
        .data(memory.clone())
        .catch_all_error(error_to_json)
        .after(close_connection);
    let poll = options.rotation.poll;
    let serving = async {
        let tls = keeper.first(poll).await?;
        tracing::info!(%address, "listens");
        tokio::select! {
            never = http_bidir_comm::server::serve(listener.with_tls(tls.clone()), routes) => match never {},
            () = keeper.keep(&tls, poll) => Ok(()),
        }
    };
    tokio::select! {
        served = serving => served,
        () = calls_have_ended => Ok(()),
    }
}

/// Keeps the certificate up to date.
enum Keeper {
    Files(Files),
    SelfIssued(Box<SelfIssued>, Box<Known>),
}

impl Keeper {
    async fn new(certificates: &Certificates, rotation: Rotation) -> Result<Self, WebhookError> {
        match certificates {
            Certificates::Files { certificate, key } => {
                Ok(Self::Files(Files::new(certificate, key)))
            }
            Certificates::SelfIssued { namespace, name, kubeconfig } => {
                let client = api_server::client(kubeconfig.as_deref()).await?;
                let (namespace, name) = (namespace.clone(), name.clone());
                let own = SelfIssued { client, namespace, name, rotation };
                Ok(Self::SelfIssued(Box::new(own), Box::default()))
            }
        }
    }

    /// The first certificate. Files have to exist; the API server is waited for.
    async fn first(&mut self, poll: Duration) -> Result<ServerTls, WebhookError> {
        let mut is_lost = false;
        loop {
            match self {
                Self::Files(files) => {
                    if let Some(tls) = files.refresh()? {
                        return Ok(tls);
                    }
                }
                Self::SelfIssued(own, known) => match own.refresh(known).await {
                    Ok(Some(tls)) => return Ok(tls),
                    Ok(None) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut is_lost, true) {
                            tracing::warn!(%error, "no certificate yet");
                        }
                    }
                },
            }
            tokio::time::sleep(poll.min(FIRST_POLL)).await;
        }
    }

    /// Renews the certificate, forever.
    async fn keep(&mut self, tls: &ServerTls, poll: Duration) {
        let mut is_lost = false;
        loop {
            tokio::time::sleep(poll).await;
            let found = match self {
                Self::Files(files) => files.refresh().map_err(|error| error.to_string()),
                Self::SelfIssued(own, known) => {
                    own.refresh(known).await.map_err(|error| error.to_string())
                }
            };
            let before = std::mem::replace(&mut is_lost, found.is_err());
            match found {
                Ok(Some(renewed)) => {
                    tls.renew(&renewed);
                    tracing::info!("serves a new certificate");
                }
                Ok(None) => {}
                Err(error) if !before => {
                    tracing::warn!(error, "cannot refresh the certificate");
                }
                Err(_) => {}
            }
        }
    }
}

/// Longest interval of checks while there is no certificate.
const FIRST_POLL: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Webhook {
    rules: Arc<Rules>,
    ends: Arc<AtomicBool>,
}

type Answered = AnswerKept<Reviewed, OwnedSemaphorePermit>;

#[handler]
async fn mutate(
    CountedBody(review, place): CountedBody<Review>,
    webhook: Data<&Webhook>,
) -> poem::Result<Answered> {
    let request = review.request;
    let patch = admission::defaults(&request.object, &webhook.rules);
    let reviewed = Reviewed::patched(request.uid, &patch);
    let reviewed = reviewed.map_err(poem::error::InternalServerError)?;
    Ok(AnswerKept(reviewed, place))
}

#[handler]
async fn validate(
    CountedBody(review, place): CountedBody<Review>,
    webhook: Data<&Webhook>,
) -> Answered {
    let request = review.request;
    let rules = &webhook.rules;
    let checked = admission::check(&request.object, rules);
    let checked = checked.map_err(|refusal| rules.names.in_words(refusal.to_string()));
    if let Err(reason) = &checked {
        let metadata = &request.object.metadata;
        let name = metadata.name.as_ref().or(metadata.generate_name.as_ref());
        let namespace = &request.namespace;
        tracing::info!(namespace, name, reason, "a pod is refused");
    }
    AnswerKept(Reviewed::checked(request.uid, checked), place)
}

/// A reused connection would stay with one replica and one certificate, and could be closed just as it is reused.
async fn close_connection(answer: poem::Result<Response>) -> poem::Result<Response> {
    Ok(answer?.with_header(CONNECTION, "close").into_response())
}

#[handler]
fn healthy() -> &'static str {
    "ok"
}

#[handler]
fn ready(webhook: Data<&Webhook>) -> (StatusCode, &'static str) {
    match webhook.ends.load(Ordering::Relaxed) {
        false => (StatusCode::OK, "ok"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "about to end"),
    }
}
