//! TLS on a TCP port: a listener that wraps [`BoundedTcpListener`].

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use poem::http::StatusCode;
use poem::web::RemoteAddr;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::{Accept, TlsAcceptor, server};

use super::json::ApiError;
use super::listener::Listener;
use super::tcp_listener::{BoundedTcpListener, Place};

/// First byte of every TLS connection: the content type of a handshake record (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Bytes read from a caller that does not speak TLS: unread input would reset the connection and lose the answer.
const DRAINED: usize = 16 * 1024;

/// A server's certificate chain and private key. Clones share them.
#[derive(Clone)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// No certificate could be read.
    #[error(
        "it has no certificate; expected PEM that begins with 'BEGIN CERTIFICATE', the server's own first"
    )]
    NoCertificate,
    /// No private key could be read.
    #[error("it has no private key; expected PEM that begins with 'BEGIN PRIVATE KEY'")]
    NoKey,
    /// Certificate and key do not match, or are of an unsupported type.
    #[error("certificate and key: {0}; expected the key of the first certificate")]
    Unusable(rustls::Error),
}

// A derived implementation could show the key.
impl std::fmt::Debug for ServerTls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Reads a certificate chain, the server's own certificate first, and a private key in PEM. TLS 1.3; sessions are
    /// not resumed.
    ///
    /// # Errors
    /// [`ServerTlsError`]
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, ServerTlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or(ServerTlsError::NoCertificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| ServerTlsError::NoKey)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(ServerTlsError::Unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(ServerTlsError::Unusable)?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// Replaces certificate and key by those of `by`, for all clones. Connections accepted from now on use them.
    pub fn renew(&self, by: &Self) {
        let by = by.current();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = by;
    }

    fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A bound TCP port with TLS.
#[derive(Debug)]
pub struct TlsListener {
    listener: BoundedTcpListener,
    tls: ServerTls,
}

impl BoundedTcpListener {
    /// Requires TLS of every caller. A caller that speaks plain HTTP gets an error in plain HTTP and is disconnected.
    #[must_use]
    pub fn with_tls(self, tls: ServerTls) -> TlsListener {
        TlsListener { listener: self, tls }
    }
}

impl Listener for TlsListener {
    type Stream = TlsStream;
    type Permit = Place;
    type Connection = OwnedSemaphorePermit;

    async fn accept(&mut self) -> (TlsStream, RemoteAddr, Place) {
        // A caller over the limit is disconnected without an answer: it would not understand plain HTTP.
        let (stream, caller, permit) = self.listener.next(|_, _| {}).await;
        let tls = self.tls.current();
        (TlsStream(State::Silent(stream, tls)), caller, permit)
    }

    fn wait(place: &Place) -> Duration {
        BoundedTcpListener::wait(place)
    }

    fn begin(place: Place, _: &TlsStream) -> OwnedSemaphorePermit {
        place.permit
    }
}

/// A connection with TLS. The handshake happens while the first call is read, so the timeout for a call's head bounds
/// it.
pub struct TlsStream(State);

enum State {
    /// No byte has arrived.
    Silent(TcpStream, Arc<ServerConfig>),
    Handshake(Box<Accept<TcpStream>>),
    Open(Box<server::TlsStream<TcpStream>>),
    /// The handshake has failed.
    Over,
}

type Opened<'a> = Pin<&'a mut server::TlsStream<TcpStream>>;

impl TlsStream {
    /// The open stream; performs the handshake first.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Opened<'_>>> {
        if let State::Silent(stream, _) = &self.0 {
            let begins = ready!(poll_first(stream, context));
            if let State::Silent(stream, tls) = mem::replace(&mut self.0, State::Over) {
                if begins? != HANDSHAKE {
                    tell_plain(&stream);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                self.0 = State::Handshake(Box::new(TlsAcceptor::from(tls).accept(stream)));
            }
        }
        if let State::Handshake(accept) = &mut self.0 {
            let opened = ready!(Pin::new(&mut **accept).poll(context));
            self.0 = State::Over;
            self.0 = State::Open(Box::new(opened?));
        }
        match &mut self.0 {
            State::Open(stream) => Poll::Ready(Ok(Pin::new(stream))),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// The first byte that a caller sends, without consuming it.
fn poll_first(stream: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<u8>> {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let found = ready!(stream.poll_peek(context, &mut buffer))?;
    match byte.first() {
        Some(&first) if found > 0 => Poll::Ready(Ok(first)),
        _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Tells a caller that speaks plain HTTP to use TLS.
fn tell_plain(stream: &TcpStream) {
    let problem = "this port speaks TLS; use https and the CA of the server's certificate";
    let _ = stream.try_read(&mut [0; DRAINED]);
    let _ = stream.try_write(&ApiError::new(StatusCode::BAD_REQUEST, problem).last_words());
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Open(stream) => Pin::new(stream).poll_flush(context),
            // Nothing was written before the handshake.
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Open(stream) => Pin::new(stream).poll_shutdown(context),
            _ => Poll::Ready(Ok(())),
        }
    }
}
