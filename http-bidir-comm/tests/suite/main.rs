//! The client and the server over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod any_bytes;
mod authority;
mod client;
mod round_trip;
mod tls;
