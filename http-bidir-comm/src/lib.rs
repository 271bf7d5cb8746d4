//! Typed calls over HTTP/1.1 between a server and clients on the same machine or nearby.
//!
//! A call is a `POST` with a JSON body, and its answer has a JSON body. An answer may be kept back until the server has
//! something to say (long polling): so a server reaches its clients, too. A server's state is read by `GET`. A refused
//! call is answered by a status of 400 or more and an [`ErrorBody`]. The crate knows nothing about the messages.
//!
//! * Feature `client`: `client::BlockingHttpClient`.
//! * Feature `server`: serves Poem's routes with the caller's identity as the kernel states it, JSON
//!   with a size limit, and bounded waiting.
//! * Features `client-tls` and `server-tls`: the same over TLS on TCP.
#![cfg_attr(all(feature = "client", feature = "server"), doc = "", doc = "---", doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod server;

use serde::{Deserialize, Serialize};

/// The largest body of a call: 16 KiB.
pub const CALL_LIMIT: usize = 16 * 1024;

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
