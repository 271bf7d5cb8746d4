//! Tests of the crate's interface: directories, pages under all kinds of damage, leases, processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod any_bytes;
mod cut_short;
mod damage;
mod directory;
mod gate_page;
mod hostile;
mod leases;
mod node_page;
mod page;
mod process;
mod stage;
mod together;
