//! A process's record of its work on the device, for the processes that find it dead.
//!
//! One word in the process's slot, written without the ledger's lock: until when the device may be working for the
//! process, and the number of launches of unknown duration that may still run. A process writes the latter before such
//! a launch reaches the driver, and the former each time it checks its own work.

use crate::layout::MemberSlot;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

/// Low bits: microseconds on `CLOCK_MONOTONIC`, enough for eight years. High bits: launches of unknown duration.
const TIME_BITS: u32 = 48;
const TIME: u64 = (1 << TIME_BITS) - 1;
const MOST_UNKNOWN: u64 = u64::MAX >> TIME_BITS;

/// A slot's record at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkMark(u64);

impl WorkMark {
    /// Whether the process has recorded anything; older builds do not.
    #[must_use]
    pub const fn is_said(self) -> bool {
        self.0 != 0
    }

    /// Until when the device may be working for the process, as far as known, in nanoseconds on `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn until_ns(self) -> u64 {
        (self.0 & TIME) * 1000
    }

    /// Whether work of unknown duration may be running.
    #[must_use]
    pub const fn has_unknown(self) -> bool {
        self.unknown() > 0
    }

    const fn unknown(self) -> u64 {
        self.0 >> TIME_BITS
    }

    const fn new(unknown: u64, until_ns: u64) -> Self {
        let us = until_ns.div_ceil(1000);
        Self(unknown << TIME_BITS | if us > TIME { TIME } else { us })
    }
}

impl MemberSlot {
    /// The slot's present record.
    #[must_use]
    pub fn work(&self) -> WorkMark {
        WorkMark(self.work_mark.load(Acquire))
    }

    /// Counts a launch of unknown duration that is about to be made.
    pub fn unknown_work_begins(&self) {
        self.change_work(|mark| {
            let unknown = (mark.unknown() + 1).min(MOST_UNKNOWN);
            WorkMark(unknown << TIME_BITS | mark.0 & TIME)
        });
    }

    /// Records that the process has checked its work after reading `seen`. The device may be working for it until
    /// `until_ns`. `unknown`: some of the work may still be of unknown duration.
    pub fn work_was_seen(&self, seen: WorkMark, until_ns: u64, unknown: bool) {
        self.change_work(|mark| {
            let known = if unknown { 0 } else { seen.unknown() };
            WorkMark::new(mark.unknown().saturating_sub(known), until_ns.max(1))
        });
    }

    fn change_work(&self, change: impl Fn(WorkMark) -> WorkMark) {
        let _ = self.work_mark.fetch_update(AcqRel, Acquire, |word| Some(change(WorkMark(word)).0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MemoryKind;
    use core::sync::atomic::{AtomicU32, AtomicU64};

    fn slot() -> MemberSlot {
        MemberSlot {
            pid: AtomicU32::new(1),
            holding: AtomicU32::new(0),
            start_time: AtomicU64::new(0),
            bytes: MemoryKind::ALL.map(|_| AtomicU64::new(0)),
            lease_end_ns: AtomicU64::new(0),
            host_pid: AtomicU32::new(0),
            density_ppm: AtomicU32::new(0),
            waiting_since_ns: AtomicU64::new(0),
            charged_until_ns: AtomicU64::new(0),
            charged_ns: AtomicU64::new(0),
            work_mark: AtomicU64::new(0),
        }
    }

    #[test]
    fn what_is_launched_while_somebody_looks_stays_unknown() {
        let slot = slot();
        assert!(!slot.work().is_said());
        slot.unknown_work_begins();
        let seen = slot.work();
        slot.unknown_work_begins();
        slot.work_was_seen(seen, 5_000_500, false);
        assert!(slot.work().has_unknown() && slot.work().is_said());
        assert_eq!(slot.work().until_ns(), 5_001_000);
        slot.work_was_seen(slot.work(), 6_000_000, true);
        assert!(slot.work().has_unknown());
        slot.work_was_seen(slot.work(), 7_000_000, false);
        assert!(!slot.work().has_unknown());
        assert_eq!(slot.work().until_ns(), 7_000_000);
    }

    #[test]
    fn any_number_does_no_harm() {
        let slot = slot();
        for word in [u64::MAX, TIME, 1 << TIME_BITS, 0] {
            slot.work_mark.store(word, core::sync::atomic::Ordering::Release);
            slot.unknown_work_begins();
            assert!(slot.work().has_unknown());
            slot.work_was_seen(slot.work(), u64::MAX, false);
            assert_eq!(slot.work().until_ns(), TIME * 1000);
            assert!(!slot.work().has_unknown());
        }
    }
}
