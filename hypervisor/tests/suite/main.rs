//! The real daemon and the real client: weights, deaths, restarts and bad input.
//!
//! Tests that measure real time are in a module called `timed`. `.config/nextest.toml` gives them
//! the machine to themselves. Without nextest, they have to be run one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod bad_calls;
mod holders;
mod process;
mod programs;
mod sources;
mod start_and_end;
mod timed;
