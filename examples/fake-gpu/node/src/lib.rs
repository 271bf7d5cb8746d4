//! The simulated GPU node: devices shared by every process of the machine, in one mapped file. Used by the simulated
//! driver, the simulated NVML, and `fake-world`.
//!
//! A discrete-event simulation that any process can advance. The queues of all processes are in the shared file. Each
//! call first advances the simulation to the current time, under one robust lock. There is no server, and no thread
//! except one in each process whose streams wait for or write values in its memory, because a store is not a call
//! ([`values`]). Results depend only on the clock, never on when a process calls.
//!
//! * [`layout`] is the shared data; [`schedule`], [`queue`], [`held`] and [`groups`] are the rules (pure: time is an
//!   argument); [`memory`] and [`usage`] are the accounts.
//! * [`faults`] are injected by tests. [`older`] has the functions that older drivers lack.
//! * [`blocks`] are shared memory, and [`shared`] their contents.
//! * [`node`] maps the file, takes the lock, reads the clock and sleeps. [`values`] reads a process's memory. These
//!   modules need `unsafe`, and so does [`layout`] for its zeroes.

pub mod asked;
pub mod blocks;
pub mod config;
pub mod faults;
pub mod groups;
pub mod held;
pub mod identity;
pub mod layout;
pub mod memory;
pub mod node;
pub mod older;
pub mod process;
pub mod queue;
pub mod schedule;
pub mod shared;
pub mod usage;
pub mod values;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use node::{Node, NodeError};
