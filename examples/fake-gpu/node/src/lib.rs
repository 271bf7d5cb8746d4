//! The simulated GPU node: devices shared by every process of the machine, kept in one mapped file.
//!
//! It is a discrete-event simulation that any process can advance. The queues of all processes are
//! in the shared file. Each call first advances the simulation to the current time, under one
//! robust lock. There is no server, and no thread but one in each process whose streams wait for
//! values in its memory or write them: a store is not a call ([`values`]). Results depend on the clock alone, never on when
//! a process called.
//!
//! * [`layout`] is the shared data, [`schedule`], [`queue`], [`held`] and [`groups`] are the rules
//!   (pure: time is an argument), [`memory`] and [`usage`] the accounts.
//! * [`faults`] are what tests make happen to devices. [`older`] is what older drivers lack.
//! * [`blocks`] are memory that several processes hold, [`shared`] has its contents.
//! * [`node`] maps the file, takes the lock, reads the clock and sleeps. [`values`] reads a
//!   process's memory. These modules, and [`layout`] for its zeroes, need `unsafe`.

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
