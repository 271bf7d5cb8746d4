//! The real daemon and the real client: weights, deaths, restarts and bad input.
//!
//! Tests that measure real time are in a module called `timed`. `.config/nextest.toml` gives them
//! the machine to themselves. Without nextest, they have to be run one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod api_calls;
mod bad_calls;
mod call;
#[allow(dead_code, reason = "shared with the benchmark")]
#[path = "../crowd/mod.rs"]
mod crowd;
mod holders;
mod load;
mod metrics;
mod observer;
mod process;
mod programs;
mod restarts;
mod service;
#[path = "../../../limiter/tests/suite/common/skipped.rs"]
mod skipped;
mod sources;
mod start_and_end;
mod timed;
