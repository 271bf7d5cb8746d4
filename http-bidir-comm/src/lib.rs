//! Typed messages over HTTP/1.1, in both directions, between a server and clients on the same machine
//! or nearby.
//!
//! * A call is a `POST` with a JSON body, and its answer has a JSON body. A server's state is read by
//!   `GET`. A refused call is answered by a status of 400 or more and an [`ErrorBody`].
//! * A task goes from the server to a client, and its result comes back. The client asks, and the
//!   server answers when it has something to say: by a long poll, or by a stream of events.
//!
//! The crate knows nothing about the messages.
//!
//! * Feature `client`: `client::BlockingHttpClient` calls, `client::TaskClient` handles tasks.
//! * Feature `server`: serves Poem's routes with the caller's identity as the kernel states it, JSON
//!   with a size limit, and bounded waiting; `server::TaskServer` gives tasks.
//! * Features `client-tls` and `server-tls`: the same over TLS on TCP. Who does not call for it links none of it.
#![cfg_attr(all(feature = "client", feature = "server"), doc = "", doc = "---", doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
mod delivery;
#[cfg(feature = "server")]
pub mod server;

use serde::{Deserialize, Serialize};

pub use delivery::{BackOff, ClientName, NotAClientName, Refusal};

/// The largest body of a call: 16 KiB.
pub const CALL_LIMIT: usize = 16 * 1024;

/// The largest task, as JSON: 16 KiB. A result has to fit into a call ([`CALL_LIMIT`]) together with
/// what names its task, some 200 bytes.
pub const TASK_LIMIT: usize = 16 * 1024;

/// The largest answer to a call that a client reads: 64 KiB.
pub const BODY_LIMIT: usize = 64 * 1024;

/// The largest answer to a `GET` that a client reads: 64 MiB.
pub const STATE_LIMIT: usize = 64 * 1024 * 1024;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong with which value, and what would be accepted.
    #[serde(alias = "message")]
    pub error: String,
}
