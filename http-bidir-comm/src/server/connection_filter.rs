//! Decides which connections are served.

use super::json::ApiError;
use super::peer::Peer;

/// Admits or refuses each connection before anything is read from it.
pub trait ConnectionFilter: Send + 'static {
    /// Held by a connection until it is closed.
    type Permit: Send + Unpin + 'static;

    /// Admits a connection.
    ///
    /// # Errors
    /// The answer to the caller, whose connection is then closed.
    fn admit(&self, peer: Peer) -> Result<Self::Permit, ApiError>;
}

/// Admits every connection.
impl ConnectionFilter for () {
    type Permit = ();

    fn admit(&self, _: Peer) -> Result<(), ApiError> {
        Ok(())
    }
}
