//! Who a caller is.

use core::fmt;

use http_bidir_comm::server::{ApiError, Peer};
use poem::http::StatusCode;

/// Identifies the process at the other end of a connection, and its owner. Asked at each call, by
/// any thread, so it has to answer at once.
pub trait Identity: fmt::Debug + Send + Sync {
    /// Identifies the process that the kernel names.
    ///
    /// # Errors
    /// [`Unidentified`]: the call is refused.
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified>;
}

/// A process that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its process id in the daemon's pid namespace.
    pub pid: i32,
    /// The owner on whose behalf it calls.
    pub owner: Owner,
}

/// The owner of sessions. A process of another owner can neither join such a session by its name
/// nor see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The user, as the kernel states it. Connections, processes and sessions are counted by user.
    pub uid: u32,
    /// The pod, if processes of one user can have different owners.
    pub pod: Option<String>,
}

impl Owner {
    /// The owner that stands for a user of the node.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self { uid, pod: None }
    }

    /// Whether it sees all sessions: the node's root does, and so does the daemon's own user.
    pub(crate) fn sees_all(&self, daemon: u32) -> bool {
        self.pod.is_none() && (self.uid == 0 || self.uid == daemon)
    }
}

/// The caller cannot be identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} can not be identified: {reason}")]
pub struct Unidentified {
    /// The caller's process.
    pub pid: i32,
    /// Why.
    pub reason: String,
}

impl From<Unidentified> for ApiError {
    fn from(unidentified: Unidentified) -> Self {
        ApiError::new(StatusCode::FORBIDDEN, unidentified.to_string())
    }
}

/// A process belongs to its user, as the kernel states it.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelIdentity;

impl Identity for KernelIdentity {
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
        Ok(Caller { pid: peer.pid, owner: Owner::user(peer.uid) })
    }
}
