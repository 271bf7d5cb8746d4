//! Time: leases of the session's own account.

use super::Book;
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

/// When the session may next use the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Now, for this many nanoseconds.
    Granted(u64),
    /// Not before this many nanoseconds have passed.
    In(u64),
}

impl Book<'_> {
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
