//! A server's address, and connecting to it within a given time.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A server's address.
#[derive(Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix stream socket.
    Unix(PathBuf),
    /// TCP without encryption: for one machine or a trusted network.
    Tcp {
        /// An IP address or a name. Looking up a name may take longer than a call's timeout.
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
    /// Connects within `timeout`; `None`: without a time limit.
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
    // If the server's queue is full, connecting waits for space in it. The send timeout limits that
    // (unix(7), socket(7) SO_SNDTIMEO).
    set_socket_timeout(&socket, Timeout::Send, timeout)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
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
                // Calls are small and each waits for its answer, so nothing must be held back.
                stream.set_nodelay(true)?;
                return Ok(stream.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
