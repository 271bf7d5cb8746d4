//! The limiter against hostile programs, neighbours and daemons, on the simulated GPU.
//!
//! Tests that measure real time are in `timed`: `.config/nextest.toml` gives them the machine to themselves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod cut_pages;
mod daemons;
mod environment;
mod first_contexts;
mod liveness;
mod patching;
mod refusals;
mod timed;

#[allow(dead_code, reason = "shared with the tests of `suite`")]
#[path = "../suite/common/mod.rs"]
mod common;
