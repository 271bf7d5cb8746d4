//! The real daemon and the real client: weights, deaths, restarts and bad input.
//!
//! What measures real time is in a module called `timed`: `.config/nextest.toml` gives those tests the machine, and
//! whoever runs them without it runs them one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod bad_calls;
mod holders;
mod hostile;
mod process;
mod programs;
mod sources;
mod start_and_end;
mod timed;
