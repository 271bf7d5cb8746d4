//! Tests of the public interface.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "says which case is skipped")]

mod conformance;
#[cfg(target_arch = "x86_64")]
mod doubles;
