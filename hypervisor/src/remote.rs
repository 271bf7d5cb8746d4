//! The state over TCP, read-only: callers with the token see what the token's owner may see.
//!
//! Nobody attests the process at the other end, and it cannot be watched or share memory. So no process registers here,
//! and nothing can be changed.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use http_bidir_comm::server::{
    self, BearerToken, BoundedTcpListener, Pace, ServerTls, ServerTlsError, WeakToken,
};
use poem::http::header::{CONNECTION, HeaderValue};
use poem::http::{Method, StatusCode};
use poem::{Endpoint, EndpointExt, Request, Response};

use super::api::{error_to_problem, turned_away};
use super::identity::{Caller, Owner};
use super::pacing::Paced;

/// Most concurrent connections.
const CONNECTIONS: usize = 32;
/// Rate of new connections: a TLS handshake costs CPU time before the caller is known.
const OPENED: Pace = Pace { each_second: 100, at_once: 100 };
/// Longest token file, in bytes.
const LONGEST_TOKEN: u64 = 4096;
/// Longest certificate or key file, in bytes.
const LONGEST_PEM: u64 = 1 << 20;

/// Settings of the TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address to listen on. Without `tls` it should be a loopback address: nothing is encrypted.
    pub address: SocketAddr,
    /// Where to read the token.
    pub token: TokenSource,
    /// Certificate and key; `None`: no TLS.
    pub tls: Option<TlsFiles>,
}

/// PEM files with the daemon's certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate, followed by those that lead to the CA.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Where to read the token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// In a file.
    File(PathBuf),
    /// The token itself, from the variable [`TOKEN_VARIABLE`]. Its bearer counts as the daemon's own user.
    Variable(String),
}

/// The variable with the token, if no file is named. Processes of the daemon's user and of root can read it.
pub const TOKEN_VARIABLE: &str = ::limits::env::TOKEN;

// A derived implementation would show the token.
impl std::fmt::Debug for TokenSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => out.debug_tuple("File").field(path).finish(),
            Self::Variable(_) => out.write_str("Variable"),
        }
    }
}

/// Why the TCP port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A file cannot be read.
    #[error("the {what} in {file}: {source}", file = file.display())]
    Unreadable {
        /// Kind of the file's content.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another user can read the secret, or owns the file.
    #[error(
        "the {what} in {file}: owned by user {uid} with mode {mode:03o}; expected a file of user {own} or root with \
         mode 600",
        file = file.display()
    )]
    NotSecret {
        /// Kind of the file's content.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// Owner of the file.
        uid: u32,
        /// Its permission bits.
        mode: u32,
        /// The daemon's user.
        own: u32,
    },
    /// The token is too weak, too long, or not text.
    #[error("the token in {file}: {source}", file = file.display())]
    Weak {
        /// The file.
        file: PathBuf,
        /// What is wrong with the token.
        source: WeakToken,
    },
    /// The token in the variable is too weak.
    #[error("the token in {TOKEN_VARIABLE}: {0}")]
    WeakVariable(WeakToken),
    /// Certificate and key cannot be used for TLS.
    #[error("TLS by {certificate} and {key}: {source}", certificate = files.certificate.display(), key = files.key.display())]
    Tls {
        /// The files.
        files: TlsFiles,
        /// What is wrong with them.
        source: ServerTlsError,
    },
    /// The address cannot be bound.
    #[error("cannot listen: {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// A token, and the user as whom its bearer calls: the file's owner.
#[derive(Clone, Debug)]
struct Token {
    token: BearerToken,
    owner: Owner,
}

impl Token {
    /// Reads the token.
    fn of(source: &TokenSource) -> Result<Self, RemoteError> {
        match source {
            TokenSource::File(path) => Self::read(path),
            TokenSource::Variable(text) => {
                let owner = Owner::user(rustix::process::geteuid().as_raw());
                let token = BearerToken::new(text).map_err(RemoteError::WeakVariable)?;
                Ok(Self { token, owner })
            }
        }
    }

    /// Reads a file with a token in one line.
    fn read(path: &Path) -> Result<Self, RemoteError> {
        let (text, uid) = secret("token", path, LONGEST_TOKEN)?;
        let token = BearerToken::new(text.trim_end_matches(['\n', '\r']))
            .map_err(|source| RemoteError::Weak { file: path.to_owned(), source })?;
        Ok(Self { token, owner: Owner::user(uid) })
    }

    /// Wraps `endpoint`: only callers with the token pass, and only to read.
    fn guard<E: Endpoint>(self, endpoint: E) -> Guarded<E> {
        Guarded { token: self, endpoint }
    }
}

/// Reads a secret from a file that nobody else can read; returns it and the file's owner.
fn secret(what: &'static str, path: &Path, longest: u64) -> Result<(String, u32), RemoteError> {
    let file = || path.to_owned();
    let unreadable = |source| RemoteError::Unreadable { what, file: file(), source };
    let open = File::open(path).map_err(unreadable)?;
    let found = open.metadata().map_err(unreadable)?;
    let own = rustix::process::geteuid().as_raw();
    let (uid, mode) = (found.uid(), found.mode() & 0o777);
    if !(uid == own || uid == 0) || mode & 0o077 != 0 || !found.is_file() {
        return Err(RemoteError::NotSecret { what, file: file(), uid, mode, own });
    }
    let mut text = String::new();
    open.take(longest).read_to_string(&mut text).map_err(unreadable)?;
    Ok((text, uid))
}

impl TlsFiles {
    fn read(&self) -> Result<ServerTls, RemoteError> {
        let unreadable = |source| {
            let file = self.certificate.clone();
            RemoteError::Unreadable { what: "certificate", file, source }
        };
        let mut certificate = Vec::new();
        let open = File::open(&self.certificate).map_err(unreadable)?;
        open.take(LONGEST_PEM).read_to_end(&mut certificate).map_err(unreadable)?;
        let (key, _) = secret("key", &self.key, LONGEST_PEM)?;
        ServerTls::from_pem(&certificate, key.as_bytes())
            .map_err(|source| RemoteError::Tls { files: self.clone(), source })
    }
}

/// A bound port and its token.
#[derive(Debug)]
pub(super) struct RemoteListener {
    listener: BoundedTcpListener,
    tls: Option<ServerTls>,
    token: Token,
}

impl RemoteListener {
    /// Reads the secrets, binds the address, and warns if nothing is encrypted.
    pub(super) fn bind(remote: &Remote) -> Result<Self, RemoteError> {
        let token = Token::of(&remote.token)?;
        let tls = remote.tls.as_ref().map(TlsFiles::read).transpose()?;
        let bind = |source| RemoteError::Bind { address: remote.address, source };
        let listener = BoundedTcpListener::bind(remote.address, CONNECTIONS).map_err(bind)?;
        let listener = listener.with_pace(OPENED);
        let address = listener.local_addr().map_err(bind)?;
        let encrypted = tls.is_some();
        tracing::info!(encrypted, %address, "serving the state to callers with the token");
        if !encrypted && !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "the token and the answers cross the network unencrypted; use --tls-cert and --tls-key to encrypt them"
            );
        }
        Ok(Self { listener, tls, token })
    }

    /// Serves `routes` to callers with the token. Never returns.
    pub(super) async fn serve(self, routes: impl Endpoint + 'static) -> Infallible {
        let read = self.token.guard(routes);
        let read = Paced::new(read.catch_all_error(error_to_problem).after(hang_up_on_strangers));
        match self.tls {
            Some(tls) => server::serve(self.listener.with_tls(tls), read).await,
            None => server::serve(self.listener, read).await,
        }
    }
}

/// Closes the connection after a wrong token: each further attempt needs another of the few connections.
async fn hang_up_on_strangers(answer: poem::Result<Response>) -> poem::Result<Response> {
    let mut answer = answer?;
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

struct Guarded<E> {
    token: Token,
    endpoint: E,
}

impl<E: Endpoint> Endpoint for Guarded<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        if request.method() != Method::GET {
            let problem = "the daemon is read-only over TCP: register processes and change limits over its Unix socket";
            let accepted = "GET over TCP; other calls over the Unix socket";
            return Err(turned_away(StatusCode::FORBIDDEN, problem, accepted));
        }
        if !self.token.token.is_in(request.headers()) {
            let problem = "the token is missing or wrong; expected `Authorization: Bearer TOKEN`";
            let accepted = "the header `Authorization: Bearer` with the daemon's token";
            return Err(turned_away(StatusCode::UNAUTHORIZED, problem, accepted));
        }
        request.extensions_mut().insert(Caller::new(0, self.token.owner));
        self.endpoint.call(request).await
    }
}
