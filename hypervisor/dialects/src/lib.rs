//! What existing systems for fractions of GPUs in Kubernetes mean by their names: resources, annotations, and the texts
//! in these. Pure: no I/O, no clock.
//!
//! All dialects are rows of one [`table`]. What a container asks for by one of them is a [`Need`]; where a scheduler put
//! it is a [`Claim`]; what a node has to give is a list of [`Registered`] devices.

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

/// Cores of a GPU: hundredths of its time.
pub const CORES: u64 = 100;
