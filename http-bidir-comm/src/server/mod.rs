//! The server side: serves Poem's routes, including long polls.
//!
//! A waiting handler is dropped when its caller disconnects or stops waiting. Cleanup belongs in an [`OnDrop`] that
//! lives as long as the wait.

mod bearer_token;
mod connection_filter;
mod counted_body;
mod json;
mod line;
mod listener;
mod path_lock;
mod peer;
mod prompt_reader;
mod serve;
mod tcp_listener;
#[cfg(feature = "server-tls")]
mod tls;
mod waiting;

pub use bearer_token::{BearerToken, WeakToken};
pub use connection_filter::ConnectionFilter;
pub use counted_body::{BodyMemory, CountedBody};
pub use json::{Answer, AnswerKept, ApiError, Body, error_to_json, kept_body};
pub use line::{Line, Lines, Pace};
pub use listener::{BindError, Listener, PeerListener};
pub use peer::Peer;
pub use serve::serve;
pub use tcp_listener::{BoundedTcpListener, Place};
#[cfg(feature = "server-tls")]
pub use tls::{ServerTls, ServerTlsError, TlsListener, TlsStream};
pub use waiting::{OnDrop, wait_up_to};
