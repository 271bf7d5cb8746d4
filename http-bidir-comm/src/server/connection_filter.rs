//! Decides which connections are served.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::json::ApiError;
use super::peer::Peer;

/// Admits or refuses each connection before anything is read from it.
pub trait ConnectionFilter: Send + 'static {
    /// Given to a connection that is admitted.
    type Permit: Send + 'static;
    /// Held by a connection until it is closed. Handlers of its calls find it by
    /// `Data<&Arc<Connection>>`.
    type Connection: Send + Sync + 'static;

    /// Admits a connection. Others wait meanwhile.
    ///
    /// # Errors
    /// The answer to the caller, whose connection is then closed.
    fn admit(&self, peer: Peer) -> Result<Self::Permit, ApiError>;

    /// How long it waits before it begins: its caller opens too many.
    fn wait(_: &Self::Permit) -> Duration {
        Duration::ZERO
    }

    /// Begins an admitted connection, in a task of its own. Its socket may be asked for more.
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
