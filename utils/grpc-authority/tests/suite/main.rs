//! Tests of the whole crate.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod frames;
mod grpc_go;
mod hostile;
mod properties;
mod refused;
mod stream;
