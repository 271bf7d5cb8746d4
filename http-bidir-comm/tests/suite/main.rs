//! The client and the server over real sockets.
#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod any_bytes;
mod client;
mod round_trip;
