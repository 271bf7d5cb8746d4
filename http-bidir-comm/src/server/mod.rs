//! The answering side: serves Poem's routes to callers on a Unix socket that wait.
//!
//! A handler that waits is dropped when its caller goes away or stops waiting. Anything to undo
//! then belongs in an [`OnDrop`] that lives as long as the wait.

mod connection_filter;
mod json;
mod listener;
mod path_lock;
mod peer;
mod prompt_reader;
mod serve;
mod waiting;

pub use connection_filter::ConnectionFilter;
pub use json::{Answer, AnswerKept, ApiError, Body, error_to_json};
pub use listener::{BindError, PeerListener};
pub use peer::Peer;
pub use serve::serve;
pub use waiting::{OnDrop, wait_up_to};
