//! The calling process, as identified by the kernel.

use poem::http::StatusCode;
use poem::web::RemoteAddr;
use poem::{Addr, FromRequest, Request, RequestBody};

use super::json::ApiError;

/// Address scheme that marks a connection of a [`PeerListener`](super::PeerListener).
const SCHEME: &str = "unix-peer";

/// The process that connected, at the time of the connect (unix(7), SO_PEERCRED); the caller cannot forge it. An
/// extractor for handlers: refuses with status 403 a caller that did not come through [`super::serve`] or whose process
/// is not visible from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in the server's pid namespace.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
}

impl Peer {
    pub(super) fn to_address(self) -> RemoteAddr {
        RemoteAddr(Addr::custom(SCHEME, format!("{}:{}", self.pid, self.uid)))
    }

    pub(super) fn from_address(address: &RemoteAddr) -> Option<Self> {
        let Addr::Custom(SCHEME, text) = &address.0 else { return None };
        let (pid, uid) = text.split_once(':')?;
        let peer = Self { pid: pid.parse().ok()?, uid: uid.parse().ok()? };
        // 0: the process is not visible in the server's pid namespace.
        (peer.pid > 0).then_some(peer)
    }
}

impl<'a> FromRequest<'a> for Peer {
    async fn from_request(request: &'a Request, _: &mut RequestBody) -> poem::Result<Self> {
        Self::from_address(request.remote_addr()).ok_or_else(|| {
            let message = "the calling process is unknown; call over the Unix socket, from a process that the server \
                           can see";
            ApiError::new(StatusCode::FORBIDDEN, message).into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_carries_the_peer() {
        let peer = Peer { pid: 42, uid: 1000 };
        assert_eq!(Peer::from_address(&peer.to_address()), Some(peer));
        let unseen = Peer { pid: 0, uid: 1000 };
        assert_eq!(Peer::from_address(&unseen.to_address()), None);
        for other in ["", "1", "1:", ":1", "1:2:3", "-4:0"] {
            let address = RemoteAddr(Addr::custom(SCHEME, other.to_owned()));
            assert_eq!(Peer::from_address(&address), None, "{other}");
        }
        assert_eq!(Peer::from_address(&RemoteAddr(Addr::custom("tcp", "1:2"))), None);
    }
}
