//! What a session may take of a device, as its page holds it.

use crate::layout::{Layout, NO_LIMIT};
use ::limits::units::PPM_ONE;
use ::limits::{Policy, Priority};
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The limits of a session on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionLimits {
    /// Bytes of memory, [`NO_LIMIT`] for all of the device's.
    pub memory: u64,
    /// How many of them may be on the device, [`NO_LIMIT`] for all; the rest is placed on the host.
    pub memory_real: u64,
    /// Share of the device's time in millionths; under [`Policy::Balance`] the guaranteed one.
    pub share_ppm: u32,
    /// How the share is meant.
    pub policy: Policy,
    /// [`Policy::Balance`]: the share that is never exceeded; `None`: as much as is idle.
    pub soft_share_ppm: Option<u32>,
    /// [`Policy::Balance`]: the part of idle time in relation to other sessions'; at least 1.
    pub weight: u32,
    /// Whether others come first.
    pub priority: Priority,
}

impl Default for SessionLimits {
    /// No limit at all.
    fn default() -> Self {
        Self {
            memory: NO_LIMIT,
            memory_real: NO_LIMIT,
            share_ppm: PPM_ONE,
            policy: Policy::None,
            soft_share_ppm: None,
            weight: 1,
            priority: Priority::High,
        }
    }
}

impl SessionLimits {
    /// Whether there is any limit.
    #[must_use]
    pub fn limits_anything(&self) -> bool {
        self.memory != NO_LIMIT || self.policy != Policy::None
    }

    /// Reads the limits of a page. Values that cannot be are taken for the strictest that can.
    #[must_use]
    pub fn load(layout: &Layout) -> Self {
        Self {
            memory: layout.memory_limit.load(Relaxed),
            memory_real: layout.memory_real.load(Relaxed),
            share_ppm: layout.share_ppm.load(Relaxed).clamp(1, PPM_ONE),
            policy: match layout.policy.load(Relaxed) {
                1 => Policy::Balance,
                2 => Policy::None,
                _ => Policy::Fixed,
            },
            soft_share_ppm: match layout.soft_share_ppm.load(Relaxed) {
                0 => None,
                ppm => Some(ppm.min(PPM_ONE)),
            },
            weight: layout.weight.load(Relaxed).max(1),
            priority: match layout.priority.load(Relaxed) {
                0 => Priority::High,
                _ => Priority::Low,
            },
        }
    }

    /// Writes the limits into a page and lets readers notice.
    pub fn store(&self, layout: &Layout) {
        // First the part, so that it never holds for the whole of a limit that came or went.
        layout.memory_real.store(self.memory_real, Relaxed);
        layout.memory_limit.store(self.memory, Relaxed);
        layout.share_ppm.store(self.share_ppm, Relaxed);
        let policy = match self.policy {
            Policy::Fixed => 0,
            Policy::Balance => 1,
            Policy::None => 2,
        };
        layout.policy.store(policy, Relaxed);
        layout.soft_share_ppm.store(self.soft_share_ppm.unwrap_or(0), Relaxed);
        layout.weight.store(self.weight, Relaxed);
        layout.priority.store(u32::from(self.priority == Priority::Low), Relaxed);
        layout.limit_changes.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Page;
    use ::limits::uuid::DeviceUuid;

    #[test]
    fn limits_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let limits = SessionLimits {
            memory: 5,
            memory_real: 4,
            share_ppm: 250_000,
            policy: Policy::Balance,
            soft_share_ppm: Some(500_000),
            weight: 3,
            priority: Priority::Low,
        };
        let page = Page::open(dir.path(), DeviceUuid::from_bytes([1; 16]), &limits).unwrap();
        assert_eq!(SessionLimits::load(page.layout()), limits);
        let before = page.layout().limit_changes.load(Relaxed);
        SessionLimits::default().store(page.layout());
        assert_eq!(SessionLimits::load(page.layout()), SessionLimits::default());
        assert_ne!(page.layout().limit_changes.load(Relaxed), before);
    }
}
