//! Lets grpc-go call a Rust HTTP/2 server over a Unix socket.
//!
//! grpc-go sends the socket's path as `:authority`, plain or percent-encoded. Neither is a valid authority, so the
//! crate `h2` refuses the call. [`AuthorityStream`] wraps the accepted connection and replaces such an authority by
//! `localhost`. [`Rewriter`] does the same without I/O.

#![forbid(unsafe_code)]

mod block;
mod frame;
mod rewriter;
mod stream;

pub use block::{INSTEAD, MOST_BLOCK, MOST_LIST};
pub use rewriter::{AuthorityError, MOST_FRAMES, Rewriter};
pub use stream::AuthorityStream;
