//! A cheap check before an allocation near the limit, with `cuMemGetInfo`: whether the device has at least as much free
//! memory as at the last reconciliation, minus this process's charges since then.
//!
//! If less is free, the driver has taken memory by itself, for some process. Memory that other processes have freed can
//! hide such growth. So more free memory than expected proves nothing, and a reconciliation is a valid reference only
//! for a while.

use super::changes::{CallInProgress, Standing};
use super::clearance::PART;
use super::device::DeviceMemory;
use crate::driver_calls::{self, undisturbing};
use std::time::Instant;

/// How long to wait for running calls, in steps of [`Changes::await_quiet`](super::changes::Changes::await_quiet).
const PATIENCE: u32 = 10;
/// Charges may exceed what the driver takes by this many bytes, because small allocations share pages.
const AHEAD: u64 = 4 << 20;

/// The result of a reconciliation, for comparison.
pub(super) struct Reference {
    /// Free bytes of the device, read before the reconciliation.
    free: u64,
    /// Bytes that the driver had taken for this process's calls.
    taken: u64,
    until: Instant,
}

impl Reference {
    /// Made from a reconciliation that was quiet since `begun`, when `free` bytes were free. Valid for [`PART`] times
    /// as long as the reconciliation took.
    pub(super) fn new(free: u64, standing: &Standing, begun: Instant) -> Self {
        let now = Instant::now();
        Self { free, taken: standing.taken, until: now + (now - begun) * PART as u32 }
    }

    /// The bytes by which less is free than expected; the driver has taken at most this much by itself since. `None`:
    /// unknown.
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

/// Compares free memory plus the calls' memory, then and now.
fn missing(then: (u64, u64), now: (u64, u64)) -> Option<u64> {
    let (had, has) = (then.0.saturating_add(then.1), now.0.saturating_add(now.1));
    (has <= had.saturating_add(AHEAD)).then(|| had.saturating_sub(has))
}

/// A device's free bytes by `cuMemGetInfo`; `None` if the calling thread's context is on another device.
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
