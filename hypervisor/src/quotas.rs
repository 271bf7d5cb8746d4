//! The trait that decides a session's quota, and the default.

use core::fmt;

use limits::{ComputeLimit, GpuId};

use crate::identity::Owner;

/// Decides a session's quota for a device. Called under the daemon's lock, at registration and when a process reports a
/// change: it must not block.
pub trait Quotas: fmt::Debug + Send + Sync {
    /// The session's quota. Values out of range are clipped.
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit;
}

/// A session on a device, and the quota that one of its processes reports.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The session's owner.
    pub owner: &'a Owner,
    /// The session's name.
    pub session: &'a str,
    /// The device.
    pub uuid: GpuId,
    /// The quota that the process read in its settings or in the session's page.
    pub said: ComputeLimit,
}

/// Accepts the quota that the session's processes report. They read it where only the session's owner can write.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsRegistered;

impl Quotas for AsRegistered {
    fn quota(&self, asked: &Asked<'_>) -> ComputeLimit {
        asked.said
    }
}
