//! The daemon over TCP: whoever has the token may read what the token's owner may see.
//!
//! Nobody attests who is at the other end, and no process there can be watched or share memory. So
//! no process registers here, and nothing is changed.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use http_bidir_comm::server::{ApiError, BearerToken, BoundedTcpListener, WeakToken};
use poem::http::header::{CONNECTION, HeaderValue};
use poem::http::{Method, StatusCode};
use poem::{Endpoint, Request, Response};

use super::identity::{Caller, Owner};

/// Connections at once.
const CONNECTIONS: usize = 32;
/// A longer token is none.
const LONGEST_TOKEN: u64 = 4096;

/// Where to listen, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address. Nothing is encrypted: it should be one of this machine.
    pub address: SocketAddr,
    /// Where the token is.
    pub token: TokenSource,
}

/// Where the token is.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// In a file.
    File(PathBuf),
    /// It is this one, from the variable [`TOKEN_VARIABLE`]. Its bearer calls as the daemon's own user.
    Variable(String),
}

/// The variable that holds the token where no file does. Processes of the daemon's user and root can read it.
pub const TOKEN_VARIABLE: &str = "SLUICE_TOKEN";

// A derived implementation would show the token.
impl std::fmt::Debug for TokenSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => out.debug_tuple("File").field(path).finish(),
            Self::Variable(_) => out.write_str("Variable"),
        }
    }
}

/// Why a daemon does not listen on TCP.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The token's file cannot be read.
    #[error("the token in {file}: {source}", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others can read the token, or have written it.
    #[error(
        "the token in {file}: it belongs to user {uid} and has mode {mode:03o}: a file of user {own} \
         or root that nobody else may read (mode 600) is accepted",
        file = file.display()
    )]
    NotSecret {
        /// The file.
        file: PathBuf,
        /// Its user.
        uid: u32,
        /// Its permission bits.
        mode: u32,
        /// The daemon's user.
        own: u32,
    },
    /// The token is too easy to guess, too long, or no text.
    #[error("the token in {file}: {source}", file = file.display())]
    Weak {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: WeakToken,
    },
    /// The same of the variable.
    #[error("the token in {TOKEN_VARIABLE}: {0}")]
    WeakVariable(WeakToken),
    /// The address cannot be used.
    #[error("can not listen: {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// A token, and on whose behalf its bearer calls: the user that the file belongs to.
#[derive(Clone, Debug)]
pub(super) struct Token {
    token: BearerToken,
    owner: Owner,
}

impl Token {
    /// Reads the token.
    pub(super) fn of(source: &TokenSource) -> Result<Self, RemoteError> {
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
        let file = || path.to_owned();
        let unreadable = |source| RemoteError::Unreadable { file: file(), source };
        let open = File::open(path).map_err(unreadable)?;
        let found = open.metadata().map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        let (uid, mode) = (found.uid(), found.mode() & 0o777);
        if !(uid == own || uid == 0) || mode & 0o077 != 0 || !found.is_file() {
            return Err(RemoteError::NotSecret { file: file(), uid, mode, own });
        }
        let mut text = String::new();
        open.take(LONGEST_TOKEN).read_to_string(&mut text).map_err(unreadable)?;
        let token = BearerToken::new(text.trim_end_matches(['\n', '\r']))
            .map_err(|source| RemoteError::Weak { file: file(), source })?;
        Ok(Self { token, owner: Owner::user(uid) })
    }

    /// Lets only those pass to `endpoint` who have the token, and only to read.
    pub(super) fn guard<E: Endpoint>(self, endpoint: E) -> Guarded<E> {
        Guarded { token: self, endpoint }
    }
}

/// Binds the address, and says what that means.
pub(super) fn listen(address: SocketAddr) -> Result<BoundedTcpListener, RemoteError> {
    let bind = |source| RemoteError::Bind { address, source };
    let listener = BoundedTcpListener::bind(address, CONNECTIONS).map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    tracing::info!(%address, "the state can be read with the token");
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the token and the answers go over the network unencrypted");
    }
    Ok(listener)
}

/// After a wrong token the connection is over: another try costs another one of the few.
pub(super) async fn hang_up_on_strangers(answer: poem::Result<Response>) -> poem::Result<Response> {
    let mut answer = answer?;
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

pub(super) struct Guarded<E> {
    token: Token,
    endpoint: E,
}

impl<E: Endpoint> Endpoint for Guarded<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        let refuse = |status, problem| Err(ApiError::new(status, problem).into());
        if request.method() != Method::GET {
            let problem = "over TCP the state can only be read: a process registers, and limits are \
                           changed, over the daemon's Unix socket";
            return refuse(StatusCode::FORBIDDEN, problem);
        }
        if !self.token.token.is_in(request.headers()) {
            let problem =
                "the token is missing or wrong: `Authorization: Bearer` with it is accepted";
            return refuse(StatusCode::UNAUTHORIZED, problem);
        }
        request.extensions_mut().insert(Caller::new(0, self.token.owner));
        self.endpoint.call(request).await
    }
}
