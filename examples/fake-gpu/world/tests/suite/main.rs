//! Tests of a node in virtual time.

#![allow(clippy::expect_used, reason = "a test may stop where it fails")]

mod deaths;
mod devices;
mod long_work;
mod mixes;
mod seeds;
mod shares;
