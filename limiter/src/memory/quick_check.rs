//! A look that costs little: whether the device has as much left as it had at the last one, but for what
//! this process has been charged since.
//!
//! What the driver has taken by itself, for whatever process, is missing then. What others have given back
//! can hide some of it, so that a device which has more left than expected says nothing, and the last look
//! counts for a while only.

use super::changes::{CallInProgress, Standing};
use super::device::DeviceMemory;
use crate::driver_calls::{self, undisturbing};
use std::time::Instant;

/// For so many times as long as a look takes.
const LASTS: u32 = 16;
/// How long calls that run are waited for, in steps.
const PATIENCE: u32 = 10;
/// Charges may be ahead of what the driver takes by so much: small allocations share pages.
const AHEAD: u64 = 4 << 20;

/// What a look has found.
pub(super) struct Reference {
    /// What the device had left for everybody, from before the look.
    free: u64,
    /// What the driver had taken for this process's calls.
    taken: u64,
    until: Instant,
}

impl Reference {
    /// After a look that was quiet from `begun` on, with so much left then.
    pub(super) fn new(free: u64, standing: &Standing, begun: Instant) -> Self {
        let now = Instant::now();
        Self { free, taken: standing.taken, until: now + (now - begun) * LASTS }
    }

    /// By how much less is left than expected: no less than what the driver has taken by itself since.
    /// `None`: that cannot be told.
    pub(super) fn missing(&self, device: &DeviceMemory, own: CallInProgress) -> Option<u64> {
        if Instant::now() >= self.until {
            return None;
        }
        let changes = &device.shared.changes;
        let _pause = changes.pause();
        if !changes.await_quiet(device.ledger, own, PATIENCE) {
            return None;
        }
        let before = changes.standing(device.ledger, own);
        let free = free_of(device).filter(|_| before.is_quiet)?;
        if !changes.standing(device.ledger, own).is_quiet_since(&before) {
            return None;
        }
        missing((self.free, self.taken), (free, before.taken))
    }
}

/// By what was left and taken then and now.
fn missing(then: (u64, u64), now: (u64, u64)) -> Option<u64> {
    let (had, has) = (then.0.saturating_add(then.1), now.0.saturating_add(now.1));
    (has <= had.saturating_add(AHEAD)).then(|| had.saturating_sub(has))
}

/// What a device has left; `None` where the calling thread cannot ask.
pub(super) fn free_of(device: &DeviceMemory) -> Option<u64> {
    if !device.is_current() {
        return None;
    }
    let (mut free, mut total) = (0, 0);
    let asked = undisturbing(|| driver_calls::mem_get_info(&raw mut free, &raw mut total));
    asked.is_ok().then_some(free as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_missing_was_taken() {
        let then = (1000 * MIB, 200 * MIB);
        let now = |free: u64, taken: u64| missing(then, (free * MIB, taken * MIB));
        assert_eq!(now(1000, 200), Some(0));
        assert_eq!(now(968, 232), Some(0));
        assert_eq!(now(1100, 100), Some(0));
        assert_eq!(now(876, 232), Some(92 * MIB));
    }

    #[test]
    fn more_than_expected_may_hide_something() {
        let now = |free: u64| missing((1000 * MIB, 0), (free, 0));
        assert_eq!(now(1004 * MIB), Some(0));
        assert_eq!(now(1004 * MIB + 1), None);
        assert_eq!(missing((u64::MAX, u64::MAX), (u64::MAX, 1)), Some(0));
    }
}
