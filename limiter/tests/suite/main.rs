//! The library in whole programs, on the simulated GPU.
//!
//! Tests that measure a share of real time are in `timed`: `.config/nextest.toml` gives them the machine to themselves.
//! Without nextest, run them one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod bad_input;
mod bus_errors;
mod callers;
mod cancel;
mod common;
mod house;
mod indices;
mod lists;
mod loader;
mod memory;
mod memory_ceiling;
mod observer;
mod older_drivers;
mod overcommit;
mod pointers;
mod preloads;
mod processes;
mod pure_crates;
mod quiet;
mod storm;
mod timed;
