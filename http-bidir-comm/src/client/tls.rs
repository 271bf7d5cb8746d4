//! TLS over [`SocketTransport`], for [`BlockingHttpClient::over_tls`](super::BlockingHttpClient::over_tls).

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use super::transport::{SocketConnector, SocketTransport, TransportError};

/// The certificate authorities (CAs) that a client trusts.
#[derive(Clone)]
pub struct TrustedRoots(Arc<ClientConfig>);

/// Why a client cannot use TLS.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// The PEM text holds no readable certificate, or one that cannot be a trust anchor.
    #[error("it has no certificate; expected the CA's in PEM, beginning with 'BEGIN CERTIFICATE'")]
    NoCertificate,
    /// The host cannot be the subject of a certificate.
    #[error("'{0}' is not a host; expected an IP address or a name")]
    NoHost(String),
    /// rustls refused the configuration.
    #[error("TLS: {0}")]
    Unusable(rustls::Error),
}

impl fmt::Debug for TrustedRoots {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TrustedRoots").finish_non_exhaustive()
    }
}

impl TrustedRoots {
    /// Reads the CAs' certificates in PEM.
    ///
    /// # Errors
    /// [`ClientTlsError`]
    pub fn from_pem(certificates: &[u8]) -> Result<Self, ClientTlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(certificates) {
            let certificate = certificate.map_err(|_| ClientTlsError::NoCertificate)?;
            roots.add(certificate).map_err(|_| ClientTlsError::NoCertificate)?;
        }
        if roots.is_empty() {
            return Err(ClientTlsError::NoCertificate);
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(ClientTlsError::Unusable)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Connects to the client's only endpoint and performs the TLS handshake.
#[derive(Debug)]
pub(super) struct TlsConnector {
    sockets: SocketConnector,
    roots: TrustedRoots,
    host: ServerName<'static>,
}

impl TlsConnector {
    pub(super) fn new(
        sockets: SocketConnector,
        roots: TrustedRoots,
        host: &str,
    ) -> Result<Self, ClientTlsError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned());
        let host = name.map_err(|_| ClientTlsError::NoHost(host.to_owned()))?;
        Ok(Self { sockets, roots, host })
    }
}

impl Connector for TlsConnector {
    type Out = TlsTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<TlsTransport>, Error> {
        let Some(socket) = self.sockets.connect(details, chained)? else { return Ok(None) };
        let tls = ClientConnection::new(Arc::clone(&self.roots.0), self.host.clone());
        let mut tls = tls.map_err(|error| not_tls(&error))?;
        let mut socket = TransportAdapter::new(socket, details.current_time.clone());
        socket.set_timeout(details.timeout);
        tls.complete_io(&mut socket).map_err(failed)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(TlsTransport { buffers, stream: StreamOwned::new(tls, socket) }))
    }
}

/// A connected socket with TLS.
pub(super) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter<SocketTransport>>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TlsTransport").field("over", &self.stream.sock.inner()).finish()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        self.stream.write_all(output).map_err(failed)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let read = self.stream.read(self.buffers.input_append_buf()).map_err(failed)?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

/// Separates a TLS error from the socket's own error.
fn failed(error: io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => not_tls(tls),
        None => error.into(),
    }
}

/// Words a TLS error for people.
fn not_tls(error: &rustls::Error) -> Error {
    let problem = match error {
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS; connect without a CA".to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is not signed by the given CA; name the CA that signed it".to_owned(),
        rustls::Error::InvalidCertificate(_) => format!("its certificate is invalid: {error}"),
        other => format!("TLS: {other}"),
    };
    Error::Other(Box::new(TransportError::Tls(problem)))
}
