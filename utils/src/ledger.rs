//! The book of a session on one device: who has how many bytes, and how much of its time is left.
//!
//! Plain arithmetic over a page's fields: no I/O, no clock, no waiting. A [`Book`] is handed out by
//! whoever holds the page's lock, so that each change is one step for everybody else. A process may
//! die between any two stores: what the slots say is the truth, and sums are made from them.

use crate::page::layout::{Kind, Layout, Slot};
use crate::quota::Bucket;
use crate::units::PPM_ONE;
use core::sync::atomic::Ordering::Relaxed;

/// The largest balance that an idle session saves up: 100 ms of its share.
pub const BURST_PERIOD_NS: u64 = 100_000_000;
/// The shortest lease worth opening a gate for.
pub const SHORTEST_LEASE_NS: u64 = 10_000_000;

/// How long past the end of its lease a process may hold up its siblings: one that is stopped, or that
/// became another program, never says that it is done.
pub const OVERDUE_NS: u64 = 2_000_000_000;

/// A reservation that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{asked} bytes do not fit: {used} of {limit} bytes are in use")]
pub struct Refusal {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use by the session.
    pub used: u64,
    /// The session's limit.
    pub limit: u64,
}

/// A value in the page that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the session's page is damaged: slot {slot} gives back {asked} bytes and has {has}")]
pub struct Damaged {
    /// The slot.
    pub slot: usize,
    /// Bytes given back.
    pub asked: u64,
    /// Bytes on record.
    pub has: u64,
}

/// When the session may next use the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Now, for this many nanoseconds.
    Granted(u64),
    /// Not before this many nanoseconds have passed.
    In(u64),
}

/// The book, open for changes. Slots are named by index; an index out of range changes nothing.
#[derive(Debug)]
pub struct Book<'a>(&'a Layout);

fn add(cell: &core::sync::atomic::AtomicU64, bytes: u64) {
    cell.store(cell.load(Relaxed).saturating_add(bytes), Relaxed);
}

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

    /// Takes `bytes` out of what is left of the limit.
    ///
    /// # Errors
    /// [`Refusal`] where it does not fit; nothing has changed then.
    pub fn reserve(&mut self, slot: usize, kind: Kind, bytes: u64) -> Result<(), Refusal> {
        let (limit, used) = (self.limit(), self.used());
        match used.checked_add(bytes) {
            Some(sum) if sum <= limit => {
                self.charge(slot, kind, bytes);
                Ok(())
            }
            _ => Err(Refusal { asked: bytes, used, limit }),
        }
    }

    /// Takes `bytes` whether they fit or not: memory that the driver has taken already.
    pub fn charge(&mut self, slot: usize, kind: Kind, bytes: u64) {
        if let Some(slot) = self.slot(slot) {
            add(&slot.bytes[kind as usize], bytes);
            add(&self.0.used, bytes);
        }
    }

    /// Gives `bytes` back.
    ///
    /// # Errors
    /// [`Damaged`] where the slot has fewer; it has none of that kind afterwards.
    pub fn release(&mut self, slot: usize, kind: Kind, bytes: u64) -> Result<(), Damaged> {
        let index = slot;
        let Some(slot) = self.slot(slot) else { return Ok(()) };
        let has = slot.bytes[kind as usize].load(Relaxed);
        let given = has.min(bytes);
        slot.bytes[kind as usize].store(has - given, Relaxed);
        self.0.used.store(self.used().saturating_sub(given), Relaxed);
        if given == bytes { Ok(()) } else { Err(Damaged { slot: index, asked: bytes, has }) }
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

    /// The session's limit in bytes, [`NO_LIMIT`](crate::page::layout::NO_LIMIT) for none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.memory_limit.load(Relaxed)
    }

    /// Bytes in use by the session.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    fn share(&self) -> u32 {
        self.0.share_ppm.load(Relaxed).min(PPM_ONE)
    }

    fn burst(&self) -> u64 {
        crate::quota::earned(BURST_PERIOD_NS, self.share())
    }

    /// Brings the time account up to `now_ns`. The session as a whole is charged while at least one of
    /// its processes holds a lease.
    fn settle(&mut self, now_ns: u64) -> Bucket {
        let mut bucket = Bucket {
            balance_ns: self.0.balance_ns.load(Relaxed),
            settled_at_ns: self.0.settled_at_ns.load(Relaxed),
        };
        if bucket.settled_at_ns == 0 {
            bucket = Bucket::empty_at(now_ns);
        }
        bucket.settle(now_ns, self.share(), self.burst(), self.0.holders.load(Relaxed) > 0);
        self.0.settled_at_ns.store(bucket.settled_at_ns, Relaxed);
        self.0.balance_ns.store(bucket.balance_ns, Relaxed);
        bucket
    }

    /// Asks for the device's time on behalf of a process. Granted: the session is charged from now
    /// until [`Book::end_lease`]. A session of which another process holds already is joined.
    pub fn begin_lease(&mut self, slot: usize, now_ns: u64) -> Turn {
        let bucket = self.settle(now_ns);
        self.end_overdue_leases(now_ns);
        let share = self.share();
        // Half a burst at most, or a small share could never save enough for one lease.
        let wanted = crate::quota::balance_for(SHORTEST_LEASE_NS, share).min(self.burst() / 2);
        let joining = self.0.holders.load(Relaxed) > 0;
        match bucket.lease_length(share) {
            Some(length) if joining || bucket.ready_in(wanted, share) == Some(0) => {
                if let Some(slot) = self.slot(slot) {
                    slot.lease_end_ns.store(now_ns.saturating_add(length), Relaxed);
                    slot.holding.store(1, Relaxed);
                }
                self.recount();
                Turn::Granted(length)
            }
            // While another process drains, time is being taken, not earned: look again soon.
            _ if joining => Turn::In(1_000_000),
            _ => Turn::In(bucket.ready_in(wanted, share).unwrap_or(u64::MAX)),
        }
    }

    /// Stops charging for leases that ended long ago without a word.
    fn end_overdue_leases(&mut self, now_ns: u64) {
        let mut ended = false;
        for slot in self.seated() {
            let end = slot.lease_end_ns.load(Relaxed);
            if slot.holding.load(Relaxed) == 1 && end.saturating_add(OVERDUE_NS) < now_ns {
                slot.holding.store(0, Relaxed);
                ended = true;
            }
        }
        if ended {
            self.recount();
        }
    }

    /// Ends a process's lease; the time until `now_ns` has been charged.
    pub fn end_lease(&mut self, slot: usize, now_ns: u64) {
        self.settle(now_ns);
        if let Some(slot) = self.slot(slot) {
            slot.holding.store(0, Relaxed);
        }
        self.recount();
    }
}
