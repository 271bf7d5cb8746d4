//! The node's daemon and the user's command.

#![forbid(unsafe_code)]

pub mod daemon;
pub mod sluice;
