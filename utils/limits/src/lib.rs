//! What a session may take of a GPU. This crate has no I/O.
//!
//! * [`Limits`]: what a session may take of one device, with no value left open: its [`memory`] and
//!   its [`compute`] time
//! * [`request`]: what a user asks for, with the name of each setting; how it is checked and merged
//!   with the present limits
//! * [`policy`]: what a compute share means, and which sessions make room for others
//! * [`units`]: sizes, percentages and weights, as users write them
//! * [`gpu`]: the identity of a GPU
//! * [`shown`]: text that others have chosen, for a terminal
//! * [`bucket`]: the arithmetic of a time quota, used by ledger and scheduler
//! * [`recent`]: how much of a device's time was used in the last seconds
//! * [`turns`]: how a device's time is dealt out, for the daemon and for a session's own account
//! * [`session_name`]: the names of sessions' folders, and what of them may be printed
//! * [`mod@env`]: the environment variables by which the parts find each other

#![forbid(unsafe_code)]

pub mod bucket;
pub mod compute;
pub mod env;
pub mod error;
pub mod gpu;
pub mod memory;
pub mod named;
pub mod policy;
pub mod recent;
pub mod request;
pub mod session_name;
pub mod shown;
pub mod turns;
pub mod units;

pub use compute::ComputeLimit;
pub use error::RequestError;
pub use gpu::GpuId;
pub use memory::MemoryLimit;
pub use named::Named;
pub use policy::{Policy, Priority};
pub use request::Request;
pub use shown::Shown;

/// What a session may take of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Memory; `None`: all that the device has.
    pub memory: Option<MemoryLimit>,
    /// Time.
    pub compute: ComputeLimit,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self = Self { memory: None, compute: ComputeLimit::NONE };

    /// Whether there is any limit.
    #[must_use]
    pub fn limits_anything(&self) -> bool {
        self.memory.is_some() || self.compute.is_limit()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::NONE
    }
}
