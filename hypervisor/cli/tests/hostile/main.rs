//! `sluice` against programs and users that mean harm.
//!
//! Tests that measure real time are in `timed`: `.config/nextest.toml` runs them with the machine to themselves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod arguments;
mod folders;
mod leftovers;
mod limits_at_once;
mod loading;
mod ownership;
mod start;
mod status;
mod upgrade;

#[allow(dead_code, reason = "shared with the tests of `suite`")]
#[path = "../suite/support.rs"]
mod support;

#[allow(dead_code, reason = "shared with the tests of `suite`")]
#[path = "../suite/limit/program.rs"]
mod program;

mod other_users;
