//! What a session may take of one device.

use limits::units::PPM_ONE;
use limits::{Policy, Priority};

use super::tuning::Tuning;

/// A session's quota on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The share of the device's time, in millionths.
    pub share_ppm: u32,
    /// How the share is meant.
    pub policy: Policy,
    /// [`Policy::Balance`]: the ceiling, in millionths. One below the share counts as the share.
    pub soft_ppm: Option<u32>,
    /// The part of spare time in relation to others'.
    pub weight: u32,
    /// Whether others come first.
    pub priority: Priority,
}

impl Quota {
    /// A share that is never exceeded.
    pub const fn fixed(share_ppm: u32) -> Self {
        let (policy, priority) = (Policy::Fixed, Priority::High);
        Self { share_ppm, policy, soft_ppm: None, weight: 1, priority }
    }

    /// A guaranteed share, and idle time on top of it.
    pub const fn balance(share_ppm: u32, weight: u32) -> Self {
        Self { policy: Policy::Balance, weight, ..Self::fixed(share_ppm) }
    }

    /// The share that is given whenever it is wanted.
    pub fn guaranteed_ppm(&self, tuning: &Tuning) -> u32 {
        let share = self.share_ppm.min(PPM_ONE);
        match self.priority {
            Priority::High => share,
            Priority::Low => share.min(tuning.floor_ppm),
        }
    }

    /// The share that guaranteed and spare time together do not exceed.
    pub(super) fn ceiling_ppm(&self) -> Option<u32> {
        let share = self.share_ppm.min(PPM_ONE);
        match (self.policy, self.priority) {
            (Policy::Balance, _) => self.soft_ppm.map(|soft| soft.clamp(share, PPM_ONE)),
            (Policy::Fixed | Policy::None, Priority::Low) => Some(share),
            // All of its time is guaranteed, and bounded by that.
            (Policy::Fixed | Policy::None, Priority::High) => None,
        }
    }

    /// Whether it may have more than what is guaranteed.
    pub(super) fn takes_spare(&self) -> bool {
        self.policy == Policy::Balance || self.priority == Priority::Low
    }
}
