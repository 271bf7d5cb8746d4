//! Limits of a session on a GPU: types, validation and arithmetic, used by all other crates. No I/O.
//!
//! * [`Limits`]: a session's limits on one device, fully determined: [`memory`] and [`compute`]
//! * [`request`]: the limits that a user asks for, with the name of each setting; checked, and merged with the present
//!   limits
//! * [`policy`]: the meaning of a compute share, and priorities
//! * [`units`]: sizes, percentages and weights as users write them
//! * [`gpu`]: GPU identity
//! * [`shown`]: untrusted text, escaped for terminal and log
//! * [`bucket`]: token buckets for device time, used by ledger and scheduler
//! * [`recent`]: device time used in the last seconds
//! * [`turns`]: lengths of turns and rounds, for the daemon and for a session's own account
//! * [`session_name`]: names of sessions' directories, without their secret part
//! * [`mod@env`]: environment variables that connect the parts

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

/// A session's limits on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Memory; `None`: no limit.
    pub memory: Option<MemoryLimit>,
    /// Time.
    pub compute: ComputeLimit,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self = Self { memory: None, compute: ComputeLimit::NONE };

    /// Whether there is a limit.
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
