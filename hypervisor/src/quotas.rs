//! What a session may have.

use core::fmt;

use limits::{ComputeLimit, GpuId};

use crate::identity::Owner;

/// Decides what a session may have of a device. Asked under the daemon's lock, when a process
/// registers and when it reports a change. So it has to answer at once, from memory.
pub trait Quotas: fmt::Debug + Send + Sync {
    /// The quota of a session. Values out of range are replaced by the nearest possible ones.
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit;
}

/// A session on a device, and what one of its processes says of it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The session's owner.
    pub owner: &'a Owner,
    /// Its name.
    pub session: &'a str,
    /// The device.
    pub uuid: GpuId,
    /// The quota that the process read in its settings or in the session's page.
    pub said: ComputeLimit,
}

/// A session has what its processes say. They read it where only its owner can write.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsRegistered;

impl Quotas for AsRegistered {
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit {
        asked.said
    }
}
