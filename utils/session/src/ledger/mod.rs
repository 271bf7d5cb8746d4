//! The book of a session on one device: who has how many bytes, and how much of its time is left.
//!
//! Plain arithmetic over a page's fields: no I/O, no clock, no waiting. A [`Book`] is handed out by
//! whoever holds the page's lock, so that each change is one step for everybody else. A process may
//! die between any two stores: what the slots say is the truth, and sums are made from them.

#[cfg(test)]
mod death;
mod memory;
#[cfg(test)]
mod properties;
mod time;

pub use memory::{Bound, Damaged, Place, Refusal};
pub use time::{
    ASK_AGAIN_NS, BURST_PERIOD_NS, DENSE_PPM, LONGEST_LEASE_NS, OVERDUE_NS, SHORTEST_LEASE_NS,
    TURN_NS, Turn,
};

use crate::layout::{Kind, Layout, Slot};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// How the book writes: each store is a moment at which the process may die, and tests make it so.
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

/// The book, open for changes. Slots are named by index; an index out of range changes nothing.
#[derive(Debug)]
pub struct Book<'a>(&'a Layout);

impl<'a> Book<'a> {
    /// Opens the book. Nobody else may have it open: see [`crate::Membership::book`].
    #[must_use]
    pub const fn new(layout: &'a Layout) -> Self {
        Self(layout)
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        self.0.slots.get(index)
    }

    /// The slots that may be in use.
    fn used_slots(&self) -> &[Slot] {
        let end = self.0.high_water.load(Relaxed) as usize;
        &self.0.slots[..end.min(self.0.slots.len())]
    }

    /// Gives a slot to a process; what it held before is given back.
    pub fn enroll(&mut self, slot: usize, pid: u32, start_time: u64) {
        self.vacate(slot);
        let end = u32::try_from(slot + 1).unwrap_or(u32::MAX);
        if let Some(slot) = self.slot(slot) {
            if self.0.high_water.load(Relaxed) < end {
                self.0.high_water.put(end);
            }
            slot.start_time.put(start_time);
            slot.pid.put(pid);
        }
    }

    /// Gives everything of a slot back, its lease included, and frees it.
    pub fn vacate(&mut self, slot: usize) {
        self.forfeit(slot);
        let Some(slot) = self.slot(slot) else { return };
        for cell in &slot.bytes {
            cell.put(0);
        }
        slot.holding.put(0);
        slot.host_pid.put(0);
        slot.density_ppm.put(0);
        slot.waiting_since_ns.put(0);
        slot.charged_ns.put(0);
        slot.pid.put(0);
        self.recount();
    }

    /// Makes the sums from the slots again.
    pub fn recount(&mut self) {
        let (mut used, mut on_host, mut holders) = (0_u64, 0_u64, 0);
        for slot in self.used_slots() {
            for cell in &slot.bytes {
                used = used.saturating_add(cell.load(Relaxed));
            }
            on_host =
                on_host.saturating_add(slot.bytes[Kind::Oversubscribed as usize].load(Relaxed));
            holders += u32::from(slot.holding.load(Relaxed) == 1);
        }
        self.0.used.put(used);
        self.0.on_host.put(on_host);
        self.0.holders.put(holders);
    }
}
