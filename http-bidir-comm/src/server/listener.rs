//! A Unix socket at a path, owned by one server at a time. Its connections know their peers.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use poem::http::uri::Scheme;
use poem::listener::{Acceptor, Listener};
use poem::web::{LocalAddr, RemoteAddr};
use tokio::net::{UnixListener, UnixStream};

use super::connection_filter::ConnectionFilter;
use super::hang_up::HangUp;
use super::json::ApiError;
use super::peer::Peer;

/// Wait this long after a failed accept, instead of spinning. The usual cause is a lack of
/// descriptors.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Why a socket could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server is running there.
    #[error("{path} is in use by a running server")]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something there is not a socket; it is left alone.
    #[error("{path} exists and is not a socket")]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The path in question.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A bound Unix socket. Dropping it, or the acceptor it becomes, removes the socket from its path.
#[derive(Debug)]
pub struct PeerListener<F = ()> {
    listener: UnixListener,
    path: OwnedPath,
    filter: F,
}

impl PeerListener {
    /// Binds `path` and gives the socket the permission bits `mode`. A dead server's socket is
    /// replaced. Must be called inside a Tokio runtime.
    ///
    /// A lock on `<path>.lock` ensures that only one server owns a path. The lock file stays there.
    ///
    /// # Errors
    /// [`BindError::InUse`] if a server answers there or holds the lock; the others as they say.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, BindError> {
        let io = |source| BindError::Io { path: path.to_owned(), source };
        let in_use = || BindError::InUse { path: path.to_owned() };
        let lock = lock_beside(path).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use()),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if StdUnixStream::connect(path).is_ok() => return Err(in_use()),
            Ok(_) => fs::remove_file(path).map_err(io)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let listener = UnixListener::bind(path).map_err(io)?;
        let path = OwnedPath { path: path.to_owned(), _lock: lock };
        fs::set_permissions(&path.path, Permissions::from_mode(mode)).map_err(io)?;
        Ok(Self { listener, path, filter: () })
    }

    /// Serves only the connections that `filter` admits.
    pub fn with_filter<F: ConnectionFilter>(self, filter: F) -> PeerListener<F> {
        PeerListener { listener: self.listener, path: self.path, filter }
    }
}

impl<F: ConnectionFilter> Listener for PeerListener<F> {
    type Acceptor = PeerAcceptor<F>;

    async fn into_acceptor(self) -> io::Result<PeerAcceptor<F>> {
        let local = LocalAddr(self.listener.local_addr()?.into());
        Ok(PeerAcceptor { listener: self.listener, local, filter: self.filter, _path: self.path })
    }
}

/// Accepts connections and records the [`Peer`] of each.
#[derive(Debug)]
pub struct PeerAcceptor<F = ()> {
    listener: UnixListener,
    local: LocalAddr,
    filter: F,
    _path: OwnedPath,
}

impl<F: ConnectionFilter> Acceptor for PeerAcceptor<F> {
    type Io = HangUp<UnixStream, F::Permit>;

    fn local_addr(&self) -> Vec<LocalAddr> {
        vec![self.local.clone()]
    }

    async fn accept(&mut self) -> io::Result<(Self::Io, LocalAddr, RemoteAddr, Scheme)> {
        loop {
            let accepted = self.listener.accept().await;
            let (stream, _) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                    return Err(error);
                }
            };
            let credentials = stream.peer_cred()?;
            let peer = Peer { pid: credentials.pid().unwrap_or(0), uid: credentials.uid() };
            match self.filter.admit(peer) {
                Ok(permit) => {
                    let stream = HangUp::new(stream, permit);
                    return Ok((stream, self.local.clone(), peer.to_address(), Scheme::HTTP));
                }
                Err(refusal) => tell(&stream, &refusal),
            }
        }
    }
}

/// Tells the caller why it is not served, if that can be sent at once, without waiting.
fn tell(stream: &UnixStream, refusal: &ApiError) {
    let _ = stream.try_write(&refusal.last_words());
}

/// The socket's path, for as long as this server owns it.
#[derive(Debug)]
struct OwnedPath {
    path: PathBuf,
    _lock: File,
}

impl Drop for OwnedPath {
    fn drop(&mut self) {
        // The lock is held, so this cannot be a successor's socket. A failure needs no action.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock_beside(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend_from_slice(b".lock");
    let lock = PathBuf::from(<std::ffi::OsStr as OsStrExt>::from_bytes(&name));
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock)
}
