//! Tests of the public interface.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod conformance;
mod doubles;
mod patch;
