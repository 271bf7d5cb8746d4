//! `sluice status` and `sluice limit` on running programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

#[path = "../sluice_support/mod.rs"]
mod sluice_support;

mod memory;
mod preloaded;
mod program;
mod refused;
mod share;
mod status;
