//! Sources of connections for [`serve`](super::serve), and the Unix socket among them: bound to a path by one server at
//! a time, with peers identified by the kernel.

use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use poem::web::RemoteAddr;
use rustix::fs::{Mode, chmod, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};

use super::connection_filter::ConnectionFilter;
use super::json::ApiError;
use super::path_lock::{LockRefused, PathLock};
use super::peer::Peer;

/// Pause after a failed accept, usually for lack of file descriptors, instead of spinning.
pub(super) const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Longest socket path (unix(7), `sun_path`) without the terminating zero.
const LONGEST_PATH: usize = 107;

/// Where [`serve`](super::serve) gets its connections.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// State of an accepted connection until it begins.
    type Permit: Send + 'static;
    /// State of a connection until it is closed. Handlers get it as `Data<&Arc<Connection>>`.
    type Connection: Send + Sync + 'static;

    /// The next connection and its caller's address. Must not wait for anything that the caller sends: no other
    /// connection is accepted meanwhile.
    fn accept(&mut self) -> impl Future<Output = (Self::Stream, RemoteAddr, Self::Permit)> + Send;

    /// How long to delay a connection, for callers that open too many.
    fn wait(_: &Self::Permit) -> Duration {
        Duration::ZERO
    }

    /// Begins a connection, in its own task.
    fn begin(permit: Self::Permit, stream: &Self::Stream) -> Self::Connection;
}

/// Why a socket could not be bound. Nothing was created or changed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server runs at this path.
    #[error("{path} is in use by a running server")]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The existing file is not a stream socket; it is left alone.
    #[error("{path} exists and is not a server's socket")]
    NotASocket {
        /// The path in question.
        path: PathBuf,
    },
    /// The existing lock file is not a lock of this user; it is left alone.
    #[error(
        "{path} exists and is not a lock of user {uid}; expected an empty file of that user with one name",
        uid = geteuid().as_raw()
    )]
    NotALock {
        /// The path of the lock.
        path: PathBuf,
    },
    /// The path names no file.
    #[error("{path:?} is not a socket path")]
    NoName {
        /// The given path.
        path: PathBuf,
    },
    /// The path is too long for a socket.
    #[error("{}… has {length} bytes; expected at most {LONGEST_PATH}", beginning(path))]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Length in bytes.
        length: usize,
    },
    /// The directory does not exist.
    #[error("{path}: the directory {folder} does not exist")]
    NoFolder {
        /// The socket's path.
        path: PathBuf,
        /// The directory.
        folder: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The path of the failed operation.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The first characters of a path that is too long to show.
fn beginning(path: &Path) -> String {
    path.display().to_string().chars().take(80).collect()
}

/// A bound Unix socket. Dropping it removes the socket from its path.
#[derive(Debug)]
pub struct PeerListener<F = ()> {
    listener: UnixListener,
    filter: F,
    /// `None`: another process, such as systemd, owns the path.
    _path: Option<OwnedPath>,
}

impl PeerListener {
    /// Binds `path` and gives the socket the permission bits `mode`. Replaces the socket of a dead server. Must be
    /// called inside a Tokio runtime.
    ///
    /// A lock on `<path>.lock` ensures that only one server owns the path. The lock file is removed together with the
    /// socket.
    ///
    /// # Errors
    /// [`BindError::InUse`] if a server answers there or holds the lock; otherwise another [`BindError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, BindError> {
        let io = |source| BindError::Io { path: path.to_owned(), source };
        check(path)?;
        // Checked before the lock is created, so that a refusal leaves no file behind.
        look(path)?;
        let lock = PathLock::take(path).map_err(|refused| match refused {
            LockRefused::Taken => BindError::InUse { path: path.to_owned() },
            LockRefused::NotALock(lock) => BindError::NotALock { path: lock },
            LockRefused::Io(source) => io(source),
        })?;
        // From here on no server that respects the lock changes this path.
        if look(path)? == Found::Remains {
            fs::remove_file(path).map_err(io)?;
        }
        let socket = bound(path, mode).map_err(|error| io(error.into()))?;
        let path = OwnedPath::new(path, lock).map_err(io)?;
        let listener = std::os::unix::net::UnixListener::from(socket);
        let listener = UnixListener::from_std(listener).map_err(io)?;
        Ok(Self { listener, filter: (), _path: Some(path) })
    }

    /// Serves a listening socket that another process, such as systemd, has bound to `path`. The path is not removed on
    /// drop. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// [`BindError::NotASocket`] if the socket does not listen; [`BindError::Io`].
    pub fn passed(
        listener: std::os::unix::net::UnixListener,
        path: &Path,
    ) -> Result<Self, BindError> {
        let io = |source| BindError::Io { path: path.to_owned(), source };
        if !socket_acceptconn(&listener).map_err(|error| io(error.into()))? {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        listener.set_nonblocking(true).map_err(io)?;
        let listener = UnixListener::from_std(listener).map_err(io)?;
        Ok(Self { listener, filter: (), _path: None })
    }

    /// Serves only the connections that `filter` admits.
    pub fn with_filter<F: ConnectionFilter>(self, filter: F) -> PeerListener<F> {
        PeerListener { listener: self.listener, filter, _path: self._path }
    }
}

impl<F: ConnectionFilter> Listener for PeerListener<F> {
    type Stream = UnixStream;
    type Permit = (F::Permit, Peer);
    type Connection = F::Connection;

    /// The next connection that the filter admits.
    async fn accept(&mut self) -> (UnixStream, RemoteAddr, Self::Permit) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                continue;
            };
            let Ok(credentials) = stream.peer_cred() else { continue };
            let peer = Peer { pid: credentials.pid().unwrap_or(0), uid: credentials.uid() };
            match self.filter.admit(peer) {
                Ok(permit) => return (stream, peer.to_address(), (permit, peer)),
                Err(refusal) => tell(&stream, &refusal),
            }
        }
    }

    fn wait((permit, _): &Self::Permit) -> Duration {
        F::wait(permit)
    }

    fn begin((permit, peer): Self::Permit, stream: &UnixStream) -> F::Connection {
        F::begin(permit, peer, stream.as_fd())
    }
}

/// Sends the refusal if that is possible without waiting.
fn tell(stream: &UnixStream, refusal: &ApiError) {
    let _ = stream.try_write(&refusal.last_words());
}

/// Checks the path's length, file name and directory.
fn check(path: &Path) -> Result<(), BindError> {
    let length = path.as_os_str().len();
    if length > LONGEST_PATH {
        return Err(BindError::TooLong { path: path.to_owned(), length });
    }
    let ends_in_a_name = path
        .file_name()
        .is_some_and(|name| path.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes()));
    if !ends_in_a_name && !path.is_dir() {
        return Err(BindError::NoName { path: path.to_owned() });
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(BindError::NoFolder { path: path.to_owned(), folder: folder.to_owned() })
        }
        _ => Ok(()),
    }
}

/// What exists at a path that may be bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The socket of a dead server.
    Remains,
}

fn look(path: &Path) -> Result<Found, BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(io(error)),
    }
    let call = || {
        // Without waiting: the backlog of a hung server may be full.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    match call() {
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) => Ok(Found::Remains),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        // A datagram socket.
        Err(Errno::PROTOTYPE) => Err(BindError::NotASocket { path: path.to_owned() }),
        Err(error) => Err(io(error.into())),
    }
}

fn bound(path: &Path, mode: u32) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let mode = Mode::from_raw_mode(mode);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // bind creates the file with this mode minus the umask, so the socket is never more accessible than `mode`.
    fchmod(&socket, mode)?;
    bind(&socket, &address)?;
    let listening = chmod(path, mode).and_then(|()| listen(&socket, BACKLOG));
    if let Err(error) = listening {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// The socket's path while this server owns it; removed on drop.
#[derive(Debug)]
struct OwnedPath {
    path: PathBuf,
    /// Device and inode of the socket.
    file: (u64, u64),
    // Dropped after the socket's removal.
    _lock: PathLock,
}

impl OwnedPath {
    fn new(path: &Path, lock: PathLock) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), file: (found.dev(), found.ino()), _lock: lock })
    }
}

impl Drop for OwnedPath {
    fn drop(&mut self) {
        // Somebody may have removed socket and lock by hand, and started another server.
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
