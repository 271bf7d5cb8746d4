//! `sluice` as a user meets it, on the simulated GPU.
//!
//! What measures real time is in a module called `timed`: `.config/nextest.toml` gives those tests the machine, and
//! whoever runs them without it runs them one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod limit;
mod run;
mod support;
mod timed;
