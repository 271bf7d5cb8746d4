//! The daemon against callers that mean harm.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod calls;
mod connections;
mod described;
mod flood;
mod gates;
mod log;
mod remote;
mod signals;
mod sockets;

#[path = "../../../http-bidir-comm/tests/suite/authority.rs"]
mod authority;
#[path = "../suite/call.rs"]
mod call;
#[allow(dead_code, reason = "shared with the tests of `suite`")]
#[path = "../suite/process.rs"]
mod process;
