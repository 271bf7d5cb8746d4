//! Headroom: the part of the limit that allocations leave free for code. The reconciler and image loads keep it up to
//! date.
//!
//! The driver places code on the device when a kernel is first used, possibly long after it was given the image, and
//! no call tells how much memory that takes. If allocations have used up the limit by then, the session exceeds it.
//! So the limiter counts the bytes of images, and keeps memory free for those that are not on the device yet. Memory
//! that the driver takes (kind `driver`, as NVML shows it) uses up the headroom.
//!
//! An image counts with all its architectures, though at most one of them will be placed. The surplus is for later
//! images, which programs tend to load when their memory is full. The headroom is still a small part of the limit, and
//! the processes of a session share it.

use super::device::DeviceMemory;
use core::sync::atomic::Ordering::Relaxed;
use session::layout::{MemoryKind, NO_LIMIT, PageLayout};
use session::ledger::Ledger;

/// The driver takes memory for code in pages of this many bytes. A program with less code needs no headroom: the code
/// fits into what its context takes anyway.
const PAGE: u64 = 2 << 20;
/// The headroom is at most 1/32 of the limit, and at most this many bytes.
const PART: u64 = 32;
const MOST: u64 = 128 << 20;
/// A program with more than a page of code always has a quarter of that maximum, because the needs of code and of the
/// driver's own tables change with every allocation and launch.
const LEAST_PART: u64 = 4;

/// Counts images of `bytes` bytes that the driver has been given for a device.
pub(super) fn given(device: &DeviceMemory, bytes: u64) {
    let _ = device.images.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(bytes)));
}

/// Uncounts images of `bytes` bytes that the driver has dropped.
pub(super) fn dropped(device: &DeviceMemory, bytes: u64) {
    let _ = device.images.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_sub(bytes)));
}

/// Bytes of images that may yet be placed if the driver has taken `driver` bytes.
pub(super) fn unplaced(device: &DeviceMemory, driver: u64) -> u64 {
    device.images.load(Relaxed).saturating_sub(driver)
}

/// Reserves the wanted headroom, or as much of it as fits; returns whether it fits.
pub(super) fn fill(device: &DeviceMemory) -> bool {
    let wanted = Wanted::by(device);
    let Some(mut opened) = device.ledger.open() else { return true };
    let slot = device.ledger.membership().slot();
    let driver = opened.has(slot, MemoryKind::Driver);
    wanted.write(&mut opened, slot, driver, 0);
    opened.has(slot, MemoryKind::Headroom) == wanted.bytes(opened.real_limit(), driver)
}

/// Headroom lent to an allocation that needs the bytes only in the worst case.
pub(super) struct Lent {
    device: &'static DeviceMemory,
    /// The headroom before it was lent.
    kept: u64,
}

/// Lends `bytes` of the headroom, in the open ledger; `None` if the headroom is smaller.
pub(super) fn lend(
    device: &'static DeviceMemory,
    slot: usize,
    bytes: u64,
    opened: &mut Ledger<'_>,
) -> Option<Lent> {
    let kept = opened.has(slot, MemoryKind::Headroom);
    opened.set(slot, MemoryKind::Headroom, kept.checked_sub(bytes)?);
    Some(Lent { device, kept })
}

impl Lent {
    /// Restores the headroom as far as possible; returns whether it is as large as before.
    pub(super) fn give_back_all(&self) -> bool {
        self.give_back();
        let ledger = self.device.ledger;
        let slot = ledger.membership().slot();
        ledger.open().is_some_and(|opened| opened.has(slot, MemoryKind::Headroom) >= self.kept)
    }

    /// Restores the headroom as far as possible.
    pub(super) fn give_back(&self) {
        fill(self.device);
    }
}

/// The figures that decide how much headroom a process wants.
pub(super) struct Wanted {
    given: u64,
    processes: u64,
}

impl Wanted {
    pub(super) fn by(device: &DeviceMemory) -> Self {
        let given = device.images.load(Relaxed);
        let processes = match device.ledger.page() {
            Some(page) if given >= PAGE => processes(page),
            _ => 1,
        };
        Self { given, processes }
    }

    /// The wanted headroom in bytes under `limit`, if the driver has taken `driver` bytes.
    fn bytes(&self, limit: u64, driver: u64) -> u64 {
        if self.given < PAGE || limit == NO_LIMIT {
            return 0;
        }
        let most = (limit / PART).min(MOST) / self.processes.max(1);
        let wanted = self.given.saturating_sub(driver).clamp(most / LEAST_PART, most);
        wanted - wanted % PAGE
    }

    /// Writes the bytes that the driver has taken for a process, and the headroom that still fits. Returns whether
    /// everything fits, including an allocation of `tried` bytes that is about to be made.
    pub(super) fn write(
        &self,
        opened: &mut Ledger<'_>,
        slot: usize,
        driver: u64,
        tried: u64,
    ) -> bool {
        let (had, kept) =
            (opened.has(slot, MemoryKind::Driver), opened.has(slot, MemoryKind::Headroom));
        let without = |sum: u64| sum.saturating_sub(had).saturating_sub(kept);
        let used = without(opened.used()).saturating_add(driver);
        let on_device = without(opened.on_device()).saturating_add(driver);
        let (limit, real) = (opened.limit(), opened.real_limit());
        let wanted = self.bytes(real, driver);
        let room = |tried: u64| {
            let left = limit.saturating_sub(used.saturating_sub(tried));
            left.min(real.saturating_sub(on_device.saturating_sub(tried)))
        };
        let keep = wanted.min(room(0));
        // Reduce headroom first: no process may see more in use than the limit.
        if keep < kept {
            opened.set(slot, MemoryKind::Headroom, keep);
        }
        if driver != had {
            opened.set(slot, MemoryKind::Driver, driver);
        }
        if keep > kept {
            opened.set(slot, MemoryKind::Headroom, keep);
        }
        used <= limit && on_device <= real && keep == wanted.min(room(tried))
    }
}

/// Number of a session's processes.
fn processes(page: &PageLayout) -> u64 {
    let seated = page.slots.iter().take(page.high_water.load(Relaxed) as usize);
    seated.filter(|slot| slot.pid.load(Relaxed) != 0).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn wanted(given: u64, processes: u64, limit: u64, driver: u64) -> u64 {
        Wanted { given: given * MIB, processes }.bytes(limit * MIB, driver * MIB) / MIB
    }

    #[test]
    fn small_programs_need_none() {
        assert_eq!(wanted(0, 1, 4096, 0), 0);
        assert_eq!(wanted(1, 1, 4096, 0), 0);
        assert_eq!(Wanted { given: u64::MAX, processes: 1 }.bytes(NO_LIMIT, 0), 0);
    }

    #[test]
    fn room_is_kept_for_what_is_not_placed() {
        assert_eq!(wanted(100, 1, 4096, 0), 100);
        assert_eq!(wanted(100, 1, 4096, 31), 68);
        // A quarter is always kept.
        assert_eq!(wanted(100, 1, 4096, 652), 32);
        assert_eq!(wanted(3, 1, 4096, 0), 32);
    }

    #[test]
    fn it_is_a_small_part_of_the_limit_for_all_processes_together() {
        assert_eq!(wanted(1000, 1, 4096, 0), 128);
        assert_eq!(wanted(1000, 1, 65536, 0), 128);
        assert_eq!(wanted(1000, 1, 1024, 0), 32);
        assert_eq!(wanted(1000, 4, 1024, 0), 8);
        assert_eq!(wanted(1000, 64, 1024, 0), 0);
    }
}
