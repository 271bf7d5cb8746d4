//! Typed calls over HTTP/1.1 between a server and its clients, on one machine or a trusted network.
//!
//! A call is a `POST` or `PUT` with a JSON body, and its answer has a JSON body. The server may delay an answer until
//! it has something to report (long polling), so it reaches its clients, too. A server's state is read by `GET`. A
//! refused call is answered with a status of 400 or more and an [`ErrorBody`]. The crate knows nothing about the
//! messages.
//!
//! * Feature `client`: `client::BlockingHttpClient`.
//! * Feature `server`: serves Poem's routes; the kernel identifies the caller, JSON bodies have a size limit, and waits
//!   are bounded.
//! * Features `client-tls` and `server-tls`: TLS on TCP.
#![cfg_attr(all(feature = "client", feature = "server"), doc = "", doc = "---", doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod server;

use serde::{Deserialize, Serialize};

/// Largest body of a call: 16 KiB.
pub const CALL_LIMIT: usize = 16 * 1024;

/// Largest answer to a call that a client reads: 64 KiB.
pub const BODY_LIMIT: usize = 64 * 1024;

/// Largest answer to a `GET` that a client reads: 64 MiB.
pub const STATE_LIMIT: usize = 64 * 1024 * 1024;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong with which value, and what would be accepted.
    #[serde(alias = "message")]
    pub error: String,
}
