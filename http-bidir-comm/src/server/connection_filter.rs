//! Decides which connections a [`PeerListener`](super::PeerListener) serves.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::json::ApiError;
use super::peer::Peer;

/// Admits or refuses each connection before anything is read from it.
pub trait ConnectionFilter: Send + 'static {
    /// State of an admitted connection until it begins.
    type Permit: Send + 'static;
    /// State of a connection until it is closed. Handlers get it as `Data<&Arc<Connection>>`.
    type Connection: Send + Sync + 'static;

    /// Admits or refuses a connection. Must not block: no other connection is accepted meanwhile.
    ///
    /// # Errors
    /// The answer that the caller gets before its connection is closed.
    fn admit(&self, peer: Peer) -> Result<Self::Permit, ApiError>;

    /// How long to delay an admitted connection, for callers that open too many.
    fn wait(_: &Self::Permit) -> Duration {
        Duration::ZERO
    }

    /// Begins an admitted connection, in its own task. May query the socket.
    fn begin(permit: Self::Permit, peer: Peer, socket: BorrowedFd<'_>) -> Self::Connection;
}

/// Admits every connection.
impl ConnectionFilter for () {
    type Permit = ();
    type Connection = ();

    fn admit(&self, _: Peer) -> Result<(), ApiError> {
        Ok(())
    }

    fn begin((): (), _: Peer, _: BorrowedFd<'_>) {}
}
