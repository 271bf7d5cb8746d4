//! What a session may take of a GPU, without any I/O.
//!
//! * [`policy`]: how a compute share is meant, and who makes room for whom
//! * [`units`]: sizes, percentages and weights, as users write them
//! * [`uuid`]: the name of a device that holds everywhere
//! * [`bucket`]: the arithmetic of a time quota, which ledger and scheduler share
//! * [`env`]: the environment variables by which the parts find each other

#![forbid(unsafe_code)]

pub mod bucket;
pub mod env;
pub mod policy;
pub mod units;
pub mod uuid;

pub use policy::{Policy, Priority};
