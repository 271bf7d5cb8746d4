//! ureq's transport over the sockets that [`Endpoint::connect`] opens.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::socket::Endpoint;

/// Buffered output is sent at the latest at this many bytes.
const HELD_BACK: usize = 16 * 1024;

/// Errors that ureq's own type does not distinguish.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// A connection could not be made.
    #[error(transparent)]
    NoConnection(io::Error),
    /// A kept connection was found closed at its next use.
    #[error("the kept-alive connection had been closed: {0}")]
    Stale(io::Error),
    /// The server's certificate is not accepted, or the server does not speak TLS.
    #[cfg_attr(not(feature = "client-tls"), expect(dead_code, reason = "TLS is not set up"))]
    #[error("{0}")]
    Tls(String),
}

/// Whether a call failed only because its kept connection had been closed.
pub(super) fn is_stale(error: &Error) -> bool {
    let Error::Other(other) = error else { return false };
    matches!(other.downcast_ref(), Some(TransportError::Stale(_)))
}

/// Resolves every name to a placeholder: the endpoint is known, and ureq's own resolver would start a thread.
#[derive(Debug)]
pub(super) struct AnyAddress;

impl Resolver for AnyAddress {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        Ok(addresses)
    }
}

/// Connects to the client's only endpoint.
#[derive(Debug)]
pub(super) struct SocketConnector {
    endpoint: Arc<Endpoint>,
}

impl SocketConnector {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint }
    }
}

impl Connector for SocketConnector {
    type Out = SocketTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<SocketTransport>, Error> {
        let limit = limit_of(details.timeout)?;
        match self.endpoint.connect(limit) {
            Ok(socket) => Ok(Some(SocketTransport {
                socket,
                buffers: LazyBuffers::new(
                    details.config.input_buffer_size(),
                    details.config.output_buffer_size(),
                ),
                owner: std::process::id(),
                exchange: Exchange::First,
                unsent: Vec::new(),
                send_failure: None,
                receive_limit: None,
                send_limit: None,
            })),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Error::Timeout(details.timeout.reason))
            }
            Err(error) => Err(Error::Other(Box::new(TransportError::NoConnection(error)))),
        }
    }
}

/// Progress of a connection. A failure counts as stale, not as broken, only if the connection has worked before and
/// nothing of the current answer has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// The first call.
    First,
    /// Part of the current answer has arrived.
    Answered,
    /// A further call, after a complete answer.
    Again,
}

/// A connected stream socket.
pub(super) struct SocketTransport {
    socket: OwnedFd,
    buffers: LazyBuffers,
    /// Id of the process that connected. A forked child must not use its parent's connection.
    owner: u32,
    exchange: Exchange,
    /// ureq passes head and body separately. They are sent together, which wakes the server once instead of twice.
    unsent: Vec<u8>,
    /// Why a send failed. The server may have answered before it closed, for example because the request is too large,
    /// so this is reported only if no answer comes.
    send_failure: Option<Errno>,
    /// Timeouts last set on the socket, cached to save system calls.
    receive_limit: Option<Duration>,
    send_limit: Option<Duration>,
}

impl fmt::Debug for SocketTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SocketTransport").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl SocketTransport {
    fn broken(&self, error: io::Error) -> Error {
        if self.exchange == Exchange::Again {
            Error::Other(Box::new(TransportError::Stale(error)))
        } else {
            Error::Io(error)
        }
    }

    fn limit(&mut self, side: Timeout, limit: Option<Duration>) -> Result<(), Error> {
        let set =
            if side == Timeout::Recv { &mut self.receive_limit } else { &mut self.send_limit };
        if *set != limit {
            // Zero would mean no timeout.
            let at_least = limit.map(|limit| limit.max(Duration::from_micros(1)));
            set_socket_timeout(&self.socket, side, at_least).map_err(io::Error::from)?;
            *set = limit;
        }
        Ok(())
    }
}

impl SocketTransport {
    fn flush(&mut self, timeout: NextTimeout) -> Result<(), Error> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let deadline = Deadline::of(timeout.for_write())?;
        let mut sent = 0;
        while sent < self.unsent.len() {
            let left = deadline.left()?;
            self.limit(Timeout::Send, left)?;
            let rest = self.unsent.get(sent..).unwrap_or_default();
            // NOSIGNAL: a closed peer must not kill the host program by SIGPIPE.
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => {
                    self.send_failure = Some(error);
                    break;
                }
            }
        }
        self.unsent.clear();
        Ok(())
    }
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.exchange == Exchange::Answered {
            self.exchange = Exchange::Again;
        }
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        if self.send_failure.is_some() {
            return Ok(());
        }
        self.unsent.extend_from_slice(output);
        if self.unsent.len() < HELD_BACK { Ok(()) } else { self.flush(timeout) }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.flush(timeout)?;
        let deadline = Deadline::of(timeout.for_read())?;
        loop {
            let left = deadline.left()?;
            self.limit(Timeout::Recv, left)?;
            let received = recv(&self.socket, self.buffers.input_append_buf(), RecvFlags::empty());
            match received {
                Ok((0, _)) => {
                    return match (self.send_failure, self.exchange) {
                        (Some(error), _) => Err(self.broken(error.into())),
                        (None, Exchange::Again) => {
                            Err(self.broken(io::ErrorKind::UnexpectedEof.into()))
                        }
                        (None, Exchange::First | Exchange::Answered) => Ok(false),
                    };
                }
                Ok((count, _)) => {
                    self.exchange = Exchange::Answered;
                    self.buffers.input_appended(count);
                    return Ok(true);
                }
                // Interrupted by a signal of the host program, or timed out; the deadline tells which.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(self.broken(error.into())),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        // Open: nothing to read, not even the end of the stream.
        let mut byte = [0u8];
        let quiet = recv(&self.socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(quiet, Err(Errno::AGAIN))
            && self.send_failure.is_none()
            && self.owner == std::process::id()
    }
}

fn limit_of(timeout: NextTimeout) -> Result<Option<Duration>, Error> {
    if timeout.after.is_not_happening() {
        return Ok(None);
    }
    if timeout.after.is_zero() {
        return Err(Error::Timeout(timeout.reason));
    }
    Ok(Some(*timeout.after))
}

/// When an operation must be complete, and the timeout to report otherwise.
struct Deadline {
    at: Option<Instant>,
    timeout: NextTimeout,
}

impl Deadline {
    fn of(timeout: NextTimeout) -> Result<Self, Error> {
        let at = limit_of(timeout)?.and_then(|limit| Instant::now().checked_add(limit));
        Ok(Self { at, timeout })
    }

    fn left(&self) -> Result<Option<Duration>, Error> {
        let Some(at) = self.at else { return Ok(None) };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Error::Timeout(self.timeout.reason)) } else { Ok(Some(left)) }
    }
}
