//! The simulated driver as a program sees it. Tests that measure time are in `timed`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capture;
mod collectives;
mod copies;
mod driver_memory;
mod graph_memory;
mod host_calls;
mod memory;
mod processes;
mod references;
mod shape;
mod sharing;
mod stream_memory;
mod support;
mod timed;
