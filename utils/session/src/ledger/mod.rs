//! The ledger of a session on one device: the bytes of each process, and the remaining GPU time.
//!
//! Plain arithmetic over a page's fields: no I/O, no clock, no waiting. Only the holder of the page's lock hands out a
//! [`Ledger`], so each change is atomic for all other processes. A process may die between any two stores; the slots
//! are authoritative, and the sums are recomputed from them.

#[cfg(test)]
mod death;
mod delivered;
mod elsewhere;
mod memory;
#[cfg(test)]
mod properties;
mod time;

pub use memory::{Damaged, MemoryBound, MemoryRefused, Placement, RefusedFor};
pub use time::{ASK_AGAIN_NS, OVERDUE_NS, TAKEN_OFF_NS, Turn};

use crate::layout::{MemberSlot, MemoryKind, PageLayout};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Stores into the ledger. The process may die before each store, and tests make it do so.
trait Put<T> {
    fn put(&self, value: T);
}

macro_rules! put {
    ($cell:ty, $value:ty) => {
        impl Put<$value> for $cell {
            #[inline]
            fn put(&self, value: $value) {
                #[cfg(test)]
                death::may_strike();
                self.store(value, Relaxed);
            }
        }
    };
}
put!(AtomicU32, u32);
put!(AtomicU64, u64);

/// The open ledger. Slots are identified by index; an index out of range changes nothing.
#[derive(Debug)]
pub struct Ledger<'a>(&'a PageLayout);

impl<'a> Ledger<'a> {
    /// Opens the ledger. No other process may have it open: see [`crate::Membership::ledger`].
    #[must_use]
    pub const fn new(layout: &'a PageLayout) -> Self {
        Self(layout)
    }

    fn slot(&self, index: usize) -> Option<&MemberSlot> {
        self.0.slots.get(index)
    }

    /// The slots that may be in use.
    fn used_slots(&self) -> &[MemberSlot] {
        let end = self.0.high_water.load(Relaxed) as usize;
        &self.0.slots[..end.min(self.0.slots.len())]
    }

    /// Assigns a slot to a process, after releasing what the slot held before.
    pub fn enroll(&mut self, slot: usize, pid: u32, start_time: u64, now_ns: u64) {
        self.vacate(slot, now_ns);
        if self.0.first_used_ns.load(Relaxed) == 0 {
            self.0.first_used_ns.put(now_ns.max(1));
        }
        let end = u32::try_from(slot + 1).unwrap_or(u32::MAX);
        if let Some(slot) = self.slot(slot) {
            if self.0.high_water.load(Relaxed) < end {
                self.0.high_water.put(end);
            }
            slot.start_time.put(start_time);
            slot.pid.put(pid);
        }
    }

    /// Releases everything that a slot holds, including its lease, and frees it. Charges the session for what the
    /// device may have done for the process since its last charge.
    pub fn vacate(&mut self, slot: usize, now_ns: u64) {
        self.charge_death(slot, now_ns);
        let Some(slot) = self.slot(slot) else { return };
        for cell in &slot.bytes {
            cell.put(0);
        }
        slot.holding.put(0);
        slot.host_pid.put(0);
        slot.density_ppm.put(0);
        slot.waiting_since_ns.put(0);
        slot.charged_ns.put(0);
        slot.work_mark.put(0);
        slot.pid.put(0);
        self.recount();
    }

    /// Recomputes the sums from the slots.
    pub fn recount(&mut self) {
        let (mut used, mut on_host, mut holders) = (0_u64, 0_u64, 0);
        for slot in self.used_slots() {
            for cell in &slot.bytes {
                used = used.saturating_add(cell.load(Relaxed));
            }
            on_host = on_host
                .saturating_add(slot.bytes[MemoryKind::Overcommitted as usize].load(Relaxed));
            holders += u32::from(slot.holding.load(Relaxed) == 1);
        }
        self.0.used.put(used);
        self.0.on_host.put(on_host);
        self.0.holders.put(holders);
    }
}
