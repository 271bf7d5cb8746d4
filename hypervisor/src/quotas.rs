//! What a session may have.

use core::fmt;

use limits::{ComputeLimit, GpuId};

use crate::identity::Owner;

/// Decides what a session may have of a device. Asked under the daemon's lock, when a process
/// registers and when it tells of a change: it has to answer at once, from memory.
pub trait Quotas: fmt::Debug + Send + Sync {
    /// The quota of a session. What is out of range is taken for the nearest that is in it.
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit;
}

/// A session on a device, and what one of its processes says of it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Whose session it is.
    pub owner: &'a Owner,
    /// Its name.
    pub session: &'a str,
    /// The device.
    pub uuid: GpuId,
    /// The quota that the process read in its settings or in the session's page.
    pub said: ComputeLimit,
}

/// A session has what its processes say: they read it where only its owner writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsRegistered;

impl Quotas for AsRegistered {
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit {
        asked.said
    }
}
