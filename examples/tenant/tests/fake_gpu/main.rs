//! `tenant` on the simulated GPU. Build its driver libraries first: `cargo build -p fake-cuda -p fake-nvml`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod ahead;
mod collective;
mod copy;
mod dense;
mod mem;
mod node;
mod server;
