//! `sluice` as a user runs it, on the simulated GPU.
//!
//! Tests that measure real time are in a module called `timed`. `.config/nextest.toml` gives them
//! the machine to themselves. Without nextest, they have to be run one at a time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

#[path = "../../../../http-bidir-comm/tests/suite/authority.rs"]
mod authority;
mod containers;
mod freeze;
mod inject;
mod limit;
#[path = "../../../../limiter/tests/suite/common/machine.rs"]
#[allow(dead_code, reason = "the limiter's tests use more of it")]
mod machine;
mod people;
mod profiles;
mod remote;
mod run;
#[path = "../../../../limiter/tests/suite/common/skipped.rs"]
mod skipped;
mod support;
mod timed;
mod top;
mod version;
mod vocabulary;
