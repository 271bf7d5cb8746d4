//! What a session may have.

use core::fmt;

use limits::Policy;
use limits::units::{MAX_WEIGHT, PPM_ONE};
use scheduler::Quota;

use crate::identity::Owner;

/// Decides what a session may have of a device. Asked under the daemon's lock, when a process
/// registers and when it tells of a change: it has to answer at once, from memory.
pub trait Quotas: fmt::Debug + Send + Sync {
    /// The quota of a session. What is out of range is taken for the nearest that is in it.
    fn quota(&self, asked: &Asked<'_>) -> Quota;
}

/// A session on a device, and what one of its processes says of it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Whose session it is.
    pub owner: &'a Owner,
    /// Its name.
    pub session: &'a str,
    /// The device, in lower case.
    pub uuid: &'a str,
    /// The quota that the process read in its settings or in the session's page.
    pub said: Quota,
}

/// A session has what its processes say: they read it where only its owner writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsRegistered;

impl Quotas for AsRegistered {
    fn quota(&self, asked: &Asked<'_>) -> Quota {
        asked.said
    }
}

/// A quota that a scheduler takes. What a caller says has been checked; a source may err.
pub(crate) fn in_range(quota: Quota) -> Quota {
    if quota.policy == Policy::None {
        return quota;
    }
    Quota {
        share_ppm: quota.share_ppm.clamp(1, PPM_ONE),
        soft_ppm: quota.soft_ppm.map(|soft| soft.clamp(1, PPM_ONE)),
        weight: quota.weight.clamp(1, MAX_WEIGHT),
        ..quota
    }
}
