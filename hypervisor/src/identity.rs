//! Who is speaking.

use core::fmt;

use http_bidir_comm::server::{ApiError, Peer};
use poem::http::StatusCode;

/// Tells who is at the other end of a connection, and on whose behalf. Asked with each call, by any
/// thread: it has to answer at once.
pub trait Identity: fmt::Debug + Send + Sync {
    /// Who the process is that the kernel names.
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
    /// On whose behalf it speaks.
    pub owner: Owner,
}

/// Whom sessions belong to: nobody joins another owner's session by its name, or sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The user, as the kernel states it. How many connections, processes and sessions are served is
    /// counted by it.
    pub uid: u32,
    /// The pod, where processes of one user are of several owners.
    pub pod: Option<String>,
}

impl Owner {
    /// A user of the node.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self { uid, pod: None }
    }

    /// Whether it sees everybody's sessions: the node's root does, and the daemon's own user.
    pub(crate) fn sees_all(&self, daemon: u32) -> bool {
        self.pod.is_none() && (self.uid == 0 || self.uid == daemon)
    }
}

/// Nobody can say who the caller is.
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

/// A process speaks for its user, as the kernel states it.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelIdentity;

impl Identity for KernelIdentity {
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
        Ok(Caller { pid: peer.pid, owner: Owner::user(peer.uid) })
    }
}
