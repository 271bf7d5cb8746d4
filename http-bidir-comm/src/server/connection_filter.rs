//! Which connections are served.

use super::json::ApiError;
use super::peer::Peer;

/// Decides about each connection before anything is read from it.
pub trait ConnectionFilter: Send + 'static {
    /// What a connection holds until it has been closed.
    type Permit: Send + Unpin + 'static;

    /// Whether it is served.
    ///
    /// # Errors
    /// What the caller is told; its connection is closed then.
    fn admit(&self, peer: Peer) -> Result<Self::Permit, ApiError>;
}

/// Serves everybody.
impl ConnectionFilter for () {
    type Permit = ();

    fn admit(&self, _: Peer) -> Result<(), ApiError> {
        Ok(())
    }
}
