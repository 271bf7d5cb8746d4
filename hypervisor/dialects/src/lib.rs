//! Reads and writes what other systems for fractional GPUs in Kubernetes have defined: resources, annotations and their
//! formats. Used by the node agent, the scheduler extender and the webhook. Pure: no I/O, no clock.
//!
//! All dialects are rows of one [`table`]. A container's request is a [`Need`], the part of a GPU that a scheduler gave
//! it a [`Claim`], and the capacity of a node a list of [`Registered`] devices.

#![forbid(unsafe_code)]

pub mod choice;
pub mod claims;
pub mod gates;
pub mod names;
pub mod needs;
pub mod pods;
pub mod policy;
pub mod quantity;
pub mod registers;
pub mod table;
pub mod topology;
pub mod vgpu_rs;

pub use choice::Choice;
pub use claims::{Claim, PodClaims};
pub use names::{NamesError, ResourceNames};
pub use needs::{MemoryNeed, Need, NeedError, Share};
pub use policy::Policy;
pub use registers::Registered;
pub use table::{Annotations, Counts, Dialect, Resource};
pub use topology::Links;

/// Cores per GPU: one core is 1 % of a GPU's compute.
pub const CORES: u64 = 100;
