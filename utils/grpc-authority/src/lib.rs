//! Lets a Rust server of HTTP/2 be called by grpc-go over a Unix socket.
//!
//! grpc-go sends the socket's path as `:authority`, as it is or percent-encoded. Neither is an authority, so the
//! crate `h2` refuses the call. [`AuthorityStream`] stands between the socket and the server and writes
//! `localhost` in such a place. [`Rewriter`] is the same without I/O.

#![forbid(unsafe_code)]

mod block;
mod frame;
mod rewriter;
mod stream;

pub use block::{INSTEAD, MOST_BLOCK, MOST_LIST};
pub use rewriter::{AuthorityError, MOST_FRAMES, Rewriter};
pub use stream::AuthorityStream;
