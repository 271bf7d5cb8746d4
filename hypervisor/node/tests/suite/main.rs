//! The node's part against a kubelet that is not there: it speaks as grpc-go does, byte for byte.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may stop where it fails"
)]

mod allocation;
mod at_once;
mod bad_options;
mod cluster;
mod contained;
mod dialects_at_once;
mod dra;
mod gpus;
mod health;
mod identity;
mod image_preloads;
mod init_containers;
mod killed;
mod kubelets_side;
mod names;
mod nri;
mod outages;
mod people;
mod permissions;
mod preflight;
mod registering;
mod support;
mod timed;
mod upgrade;
mod words;

#[path = "../../../../limiter/tests/suite/common/skipped.rs"]
mod skipped;
