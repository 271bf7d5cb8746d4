//! The book of a session on one device: who has how many bytes, and how much of its time is left.
//!
//! Plain arithmetic over a page's fields: no I/O, no clock, no waiting. A [`Book`] is handed out by
//! whoever holds the page's lock, so that each change is one step for everybody else. A process may
//! die between any two stores: what the slots say is the truth, and sums are made from them.

mod memory;
mod time;

pub use memory::{Damaged, Refusal};
pub use time::{BURST_PERIOD_NS, OVERDUE_NS, SHORTEST_LEASE_NS, Turn};

use crate::page::layout::{Layout, Slot};
use core::sync::atomic::Ordering::Relaxed;

/// The book, open for changes. Slots are named by index; an index out of range changes nothing.
#[derive(Debug)]
pub struct Book<'a>(&'a Layout);

impl<'a> Book<'a> {
    /// Opens the book. Nobody else may have it open: see [`crate::page::Seat::book`].
    #[must_use]
    pub const fn new(layout: &'a Layout) -> Self {
        Self(layout)
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        self.0.slots.get(index)
    }

    /// The slots that may be in use.
    fn seated(&self) -> &[Slot] {
        let end = self.0.high_water.load(Relaxed) as usize;
        &self.0.slots[..end.min(self.0.slots.len())]
    }

    /// Seats a process; what the slot held before is given back.
    pub fn seat(&mut self, slot: usize, pid: u32, start_time: u64) {
        self.vacate(slot);
        let end = u32::try_from(slot + 1).unwrap_or(u32::MAX);
        if let Some(slot) = self.slot(slot) {
            slot.start_time.store(start_time, Relaxed);
            slot.pid.store(pid, Relaxed);
            if self.0.high_water.load(Relaxed) < end {
                self.0.high_water.store(end, Relaxed);
            }
        }
    }

    /// Gives everything of a slot back, its lease included, and frees it.
    pub fn vacate(&mut self, slot: usize) {
        let Some(slot) = self.slot(slot) else { return };
        for cell in &slot.bytes {
            cell.store(0, Relaxed);
        }
        slot.holding.store(0, Relaxed);
        slot.pid.store(0, Relaxed);
        self.recount();
    }

    /// Makes the sums from the slots again.
    pub fn recount(&mut self) {
        let (mut used, mut holders) = (0_u64, 0);
        for slot in self.seated() {
            for cell in &slot.bytes {
                used = used.saturating_add(cell.load(Relaxed));
            }
            holders += u32::from(slot.holding.load(Relaxed) == 1);
        }
        self.0.used.store(used, Relaxed);
        self.0.holders.store(holders, Relaxed);
    }
}
