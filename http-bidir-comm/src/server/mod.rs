//! The answering side: what a Poem server needs for callers on a Unix socket that wait.
//!
//! A handler that waits is dropped when its caller goes away or stops waiting. Anything to undo
//! then belongs in an [`OnDrop`] that lives as long as the wait.

mod connection_filter;
mod hang_up;
mod json;
mod listener;
mod peer;
mod waiting;

pub use connection_filter::ConnectionFilter;
pub use hang_up::HangUp;
pub use json::{Answer, ApiError, Body, error_to_json};
pub use listener::{BindError, PeerAcceptor, PeerListener};
pub use peer::Peer;
pub use waiting::{OnDrop, wait_up_to};
