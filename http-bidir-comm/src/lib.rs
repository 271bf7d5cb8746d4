//! Typed messages over HTTP/1.1 between a server and callers on the same machine or near it.
//!
//! A call is a `POST` with a JSON body, answered by a JSON body; what a server tells of itself is had
//! by `GET`. A call that is not granted is answered by a status of 400 or more and [`ErrorBody`]. Whatever has to reach the caller without
//! its asking is delivered by a long poll: the caller asks and the server answers when there is
//! something to say. The crate knows nothing of what is said.
//!
//! * feature `client`: `BlockingHttpClient`, over a Unix socket or TCP;
//! * feature `server`: for Poem, the caller's identity as the kernel states it, JSON with a size
//!   limit, and bounded waiting.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod server;

use serde::{Deserialize, Serialize};

/// The most bytes that the body of a call, or of the answer to one, may have: 64 KiB.
pub const BODY_LIMIT: usize = 64 * 1024;

/// The most bytes of a `GET`'s answer that a client reads: 64 MiB.
pub const STATE_LIMIT: usize = 64 * 1024 * 1024;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong with which value, and what would be accepted.
    pub error: String,
}
