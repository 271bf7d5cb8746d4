//! A server's address; connects to it within a timeout and checks which user runs it.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The server is not trusted because another user runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {uid} runs it; expected root or user {own}")]
pub struct Stranger {
    /// The server's user id, in this process's user namespace.
    pub uid: u32,
    /// This process's effective user id.
    pub own: u32,
}

/// The kernel's overflow uid: stands for every user outside this process's user namespace.
const NOT_KNOWN: u32 = 65_534;

/// Trusts a server of root or of this process's effective user. Inside a user namespace, also trusts a server of a user
/// outside it if the socket is on a read-only mount: nobody inside the namespace could have created that socket.
fn believe(uid: u32, path: &Path) -> Result<(), Stranger> {
    let own = rustix::process::geteuid().as_raw();
    let map = || (uid == NOT_KNOWN).then(|| std::fs::read_to_string(UID_MAP).unwrap_or_default());
    let is_own = || uid == own && map().is_none_or(|map| names(&map, uid));
    let is_read_only = || {
        let flags = statvfs(path).map(|found| found.f_flag);
        flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY))
    };
    let is_outer = || map().is_some_and(|map| has_others(&map)) && is_read_only();
    if uid == 0 || is_own() || is_outer() { Ok(()) } else { Err(Stranger { uid, own }) }
}

const UID_MAP: &str = "/proc/self/uid_map";

/// Whether users exist outside the user namespace with this map. The initial namespace maps all users.
fn has_others(map: &str) -> bool {
    !map.is_empty() && !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether a user namespace's map contains this uid (user_namespaces(7)).
fn names(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(_), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        u64::from(uid).checked_sub(first).is_some_and(|at| at < count)
    })
}

/// A server's address.
#[derive(Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix stream socket. Its server must run as root or as this process's user.
    Unix(PathBuf),
    /// TCP without encryption, for one machine or a trusted network.
    Tcp {
        /// An IP address or a name. Resolving a name may take longer than a call's timeout.
        host: String,
        /// The port.
        port: u16,
        /// Sent as `Authorization: Bearer`.
        token: Option<String>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Tcp { host, port, .. } => write!(out, "tcp:{host}:{port}"),
        }
    }
}

// A derived implementation would show the token.
impl fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Endpoint {
    /// Connects within `timeout`; `None`: waits as long as the system does.
    pub(super) fn connect(&self, timeout: Option<Duration>) -> io::Result<OwnedFd> {
        match self {
            Self::Unix(path) => connect_unix(path, timeout),
            Self::Tcp { host, port, .. } => connect_tcp(host, *port, timeout),
        }
    }
}

fn connect_unix(path: &Path, timeout: Option<Duration>) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A connect waits if the server's backlog is full. The send timeout bounds that wait (unix(7), socket(7)
    // SO_SNDTIMEO).
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => {
                // nix, because rustix cannot represent pid 0: a server whose process is not visible in this pid
                // namespace.
                let server = getsockopt(&socket, PeerCredentials)?.uid();
                believe(server, path).map_err(|stranger| {
                    io::Error::new(io::ErrorKind::PermissionDenied, stranger)
                })?;
                return Ok(socket);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn connect_tcp(host: &str, port: u16, timeout: Option<Duration>) -> io::Result<OwnedFd> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        let connected = match timeout {
            Some(timeout) => TcpStream::connect_timeout(&address, timeout),
            None => TcpStream::connect(address),
        };
        match connected {
            Ok(stream) => {
                // Calls are small and each waits for its answer, so Nagle's algorithm would only delay them.
                stream.set_nodelay(true)?;
                return Ok(stream.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_server_is_root_s_or_one_s_own() {
        let own = rustix::process::geteuid().as_raw();
        let path = Path::new("/");
        assert_eq!(believe(0, path), Ok(()));
        assert_eq!(believe(own, path), Ok(()));
        let uid = own + 1;
        let words = believe(uid, path).unwrap_err().to_string();
        assert_eq!(words, format!("user {uid} runs it; expected root or user {own}"));
        assert_eq!(believe(NOT_KNOWN, path), Err(Stranger { uid: NOT_KNOWN, own }));
    }

    #[test]
    fn a_user_namespace_knows_whom_its_map_names() {
        assert!(names("         0          0 4294967295\n", NOT_KNOWN));
        assert!(!names("         0       1000          1\n", NOT_KNOWN));
        assert!(names("0 1000 1\n1 100000 65534\n", NOT_KNOWN));
        assert!(!names("", 0));
        assert!(!has_others("         0          0 4294967295\n") && !has_others(""));
        assert!(has_others("0 100000 65536\n"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn any_map_is_read(map in "([0-9]{0,25}[ \n]{0,2}){0,9}", uid in any::<u32>()) {
            let _ = names(&map, uid);
        }
    }
}
