//! GPU time in the ledger: leases of the session's own account.
//!
//! The session earns its share continuously, and pays for the use of its processes. A process with a lease reports its
//! use every few milliseconds and at the lease's end. Several processes may use the device at once, so their reports
//! are lined up end to end from the time until which the session has been charged
//! ([`PageLayout::busy_until_ns`](crate::layout::PageLayout)): together they are never charged more than the time that
//! has passed.
//!
//! Dense processes take turns, because the hardware would time-slice them at a loss. Other processes hold the device at
//! the same time.
//!
//! In the page of devices used together, a slot stands for a device of a process. All of them hold leases at the same
//! time: later ones join, and their leases have one common end.

use super::Ledger;
use crate::clock;
use crate::layout::MemberSlot;
use core::sync::atomic::Ordering::Relaxed;
use limits::bucket::{Bucket, balance_for};
use limits::turns::{self, Handover, Mean, PERIOD_NS, ratio_ppm};
use limits::units::PPM_ONE;

/// The shortest lease for a process that joins a sibling's lease.
const SHORTEST_JOIN_NS: u64 = 2_000_000;
/// How long past the end of its lease a process may keep its siblings waiting: a process that is stopped, or has
/// executed another program, never reports its end.
pub const OVERDUE_NS: u64 = 2_000_000_000;
/// How long the device continues a process's work after its death. Measured: 9 to 13 ms.
pub const TAKEN_OFF_NS: u64 = 13_000_000;
/// A waiting process that does not ask again within this time loses its place.
pub const ASK_AGAIN_NS: u64 = 100_000_000;
/// A process that waits during a sibling's lease asks again after this time.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// When the session may next use the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Now, for this many nanoseconds.
    Granted(u64),
    /// Not before this many nanoseconds have passed.
    In(u64),
}

fn is_holding(slot: &MemberSlot) -> bool {
    slot.pid.load(Relaxed) != 0 && slot.holding.load(Relaxed) == 1
}

/// Since when a process has waited; `None` if it does not wait, or has stopped asking.
fn waiting_since(slot: &MemberSlot, now_ns: u64) -> Option<u64> {
    let since = slot.waiting_since_ns.load(Relaxed);
    let asked = slot.charged_until_ns.load(Relaxed);
    let waits = slot.pid.load(Relaxed) != 0
        && slot.holding.load(Relaxed) != 1
        && since != 0
        && asked.abs_diff(now_ns) <= ASK_AGAIN_NS;
    waits.then_some(since)
}

/// Whether a process is known to be dense.
fn is_dense(slot: &MemberSlot) -> bool {
    let utilization = slot.density_ppm.load(Relaxed);
    turns::is_dense((utilization > 0).then_some(utilization.into()))
}

impl Ledger<'_> {
    /// The session's share in millionths: all of the device if none is enforced, the least share for several devices.
    fn share(&self) -> u32 {
        if self.0.is_of_several() {
            let now = self.0.settled_at_ns.load(Relaxed);
            let shares = self.0.together_at(now).map(|device| device.share_ppm.load(Relaxed));
            return shares.min().unwrap_or(PPM_ONE);
        }
        let limit = self.0.limits().compute;
        if limit.is_limit() { limit.share_ppm } else { PPM_ONE }
    }

    fn burst(&self) -> u64 {
        turns::burst_ns(self.share(), self.handover())
    }

    fn handover(&self) -> Handover {
        if self.0.is_of_several() { Handover::Together } else { Handover::OnThread }
    }

    /// Credits what the share has earned until `now_ns`.
    fn settle(&mut self, now_ns: u64) -> Bucket {
        let mut bucket = Bucket {
            balance_ns: self.0.balance_ns.load(Relaxed),
            settled_at_ns: clock::at_most(self.0.settled_at_ns.load(Relaxed), now_ns),
        };
        if bucket.settled_at_ns == 0 {
            bucket = Bucket::empty_at(now_ns);
        }
        bucket.settle(now_ns, self.share(), self.burst(), false);
        self.keep(bucket);
        bucket
    }

    fn keep(&mut self, bucket: Bucket) {
        self.0.settled_at_ns.store(bucket.settled_at_ns, Relaxed);
        self.0.balance_ns.store(bucket.balance_ns, Relaxed);
    }

    /// Asks for a lease on behalf of a process. A process that gets [`Turn::In`] keeps its place if it asks again
    /// within [`ASK_AGAIN_NS`].
    pub fn begin_lease(&mut self, slot: usize, now_ns: u64) -> Turn {
        let bucket = self.settle(now_ns);
        self.end_overdue_leases(now_ns);
        let share = self.share();
        let several = self.0.is_of_several();
        let handover = self.handover();
        let wanted = turns::entry_ns(share, PERIOD_NS, handover);
        let joining = self.0.holders.load(Relaxed) > 0;
        // A dense process does not take the rest of a sibling's lease: such rests would give it next to nothing.
        let dense = self.slot(slot).is_some_and(is_dense);
        let least = if joining && !dense {
            wanted.min(balance_for(SHORTEST_JOIN_NS, share))
        } else {
            wanted
        };
        let turn = match bucket.lease_length(share) {
            _ if several && joining => self.join_others(now_ns),
            _ if self.has_to_wait_for_others(slot, now_ns) => Turn::In(LOOK_AGAIN_NS),
            Some(length) if bucket.ready_in(least, share) == Some(0) => Turn::Granted(length),
            // While another process drains, nothing is earned, so ask again soon.
            _ if joining => Turn::In(LOOK_AGAIN_NS),
            _ => Turn::In(bucket.ready_in(wanted, share).unwrap_or(u64::MAX)),
        };
        let Some(record) = self.slot(slot) else { return turn };
        record.charged_until_ns.store(now_ns, Relaxed);
        match turn {
            Turn::In(_) => {
                if record.waiting_since_ns.load(Relaxed) == 0 {
                    record.waiting_since_ns.store(now_ns.max(1), Relaxed);
                }
                turn
            }
            Turn::Granted(length) => {
                if several && !joining {
                    self.0.count_anew(now_ns);
                }
                record.waiting_since_ns.store(0, Relaxed);
                record.holding.store(1, Relaxed);
                let granted = self.open(slot, length, now_ns);
                self.recount();
                granted
            }
        }
    }

    /// Records that a device used together with others is held under a lease from elsewhere.
    pub fn hold_elsewhere(&mut self, slot: usize, now_ns: u64, end_ns: u64) {
        if self.0.holders.load(Relaxed) == 0 {
            self.0.count_anew(now_ns);
        }
        if let Some(slot) = self.slot(slot) {
            slot.charged_until_ns.store(now_ns, Relaxed);
            slot.lease_end_ns.store(end_ns, Relaxed);
            slot.waiting_since_ns.store(0, Relaxed);
            slot.holding.store(1, Relaxed);
        }
        self.recount();
    }

    /// Grants a lease whatever the session has left, because work on another device may wait for this one. Charged as
    /// usual. `None`: nothing waits.
    pub fn begin_called_lease(&mut self, slot: usize, now_ns: u64) -> Option<u64> {
        let left =
            clock::at_most(self.0.called_until_ns.load(Relaxed), now_ns).checked_sub(now_ns)?;
        let length = left.min(turns::COMFORTABLE_TURN_NS);
        if length == 0 || self.0.holders.load(Relaxed) == 0 {
            return None;
        }
        self.settle(now_ns);
        // The other devices do not join this lease.
        self.hold_elsewhere(slot, now_ns, now_ns);
        Some(length)
    }

    /// The latest end of a lease on the held devices.
    fn latest_end(&self) -> u64 {
        let holders = self.used_slots().iter().filter(|slot| is_holding(slot));
        holders.map(|slot| slot.lease_end_ns.load(Relaxed)).max().unwrap_or(0)
    }

    /// A lease that ends with those of the other devices.
    fn join_others(&self, now_ns: u64) -> Turn {
        match self.latest_end().checked_sub(now_ns) {
            Some(length) if length > 0 => Turn::Granted(length.min(turns::LONGEST_LEASE_NS)),
            _ => Turn::In(LOOK_AGAIN_NS),
        }
    }

    /// Renews a lease of several devices as that of the first device that asked was renewed.
    fn renew_with_others(&self, slot: usize, now_ns: u64, length: Option<u64>) -> Turn {
        let (last, latest) = (self.0.last_end_ns.load(Relaxed), self.latest_end());
        let end = self.slot(slot).map_or(0, |slot| slot.lease_end_ns.load(Relaxed));
        match length {
            // The process only reports what still runs.
            _ if end <= now_ns => Turn::In(0),
            _ if latest > end => self.open(slot, latest.saturating_sub(now_ns), now_ns),
            Some(length) if end != last => self.open(slot, length, now_ns),
            _ => {
                self.0.last_end_ns.store(end, Relaxed);
                Turn::In(0)
            }
        }
    }

    /// Records that a process no longer waits for a lease.
    pub fn stop_waiting(&mut self, slot: usize) {
        if let Some(slot) = self.slot(slot) {
            slot.waiting_since_ns.store(0, Relaxed);
        }
    }

    /// Charges a holder for `used_ns` of the time since its last charge, and asks to renew its lease. [`Turn::In`]: the
    /// lease ends as planned.
    pub fn renew_lease(&mut self, slot: usize, now_ns: u64, used_ns: u64) -> Turn {
        self.charge_holder(slot, now_ns, used_ns);
        let bucket = self.settle(now_ns);
        if !self.slot(slot).is_some_and(is_holding) || self.others_want_the_turn(slot, now_ns) {
            return Turn::In(0);
        }
        let length = bucket.lease_length(self.share());
        if self.0.is_of_several() {
            return self.renew_with_others(slot, now_ns, length);
        }
        match length {
            Some(length) => self.open(slot, length, now_ns),
            None => Turn::In(0),
        }
    }

    /// Subtracts use under a lease from elsewhere in the last `held_ns` from the savings here; otherwise the session
    /// would have two accounts. `sure_ns`: the use that is certain, however overlapping sessions are accounted for; it
    /// counts for [`Self::allowed_elsewhere`].
    pub fn used_elsewhere(
        &mut self,
        slot: usize,
        now_ns: u64,
        held_ns: u64,
        used_ns: u64,
        sure_ns: u64,
    ) {
        let counts = self.note_use(now_ns, held_ns, sure_ns);
        self.note_delivered(slot, now_ns, counts);
        let mut bucket = self.settle(now_ns);
        let used = i64::try_from(used_ns).unwrap_or(i64::MAX);
        let left = bucket.balance_ns.saturating_sub(used).max(0);
        bucket.balance_ns = bucket.balance_ns.min(left);
        self.keep(bucket);
    }

    /// Drops the savings when a limit begins; debts stay.
    pub fn forget_savings(&mut self, now_ns: u64) {
        let mut bucket = self.settle(now_ns);
        bucket.balance_ns = bucket.balance_ns.min(0);
        self.keep(bucket);
    }

    /// Ends a process's lease, and charges it for `used_ns` of the time since its last charge.
    pub fn end_lease(&mut self, slot: usize, now_ns: u64, used_ns: u64) {
        self.charge_holder(slot, now_ns, used_ns);
        if let Some(slot) = self.slot(slot) {
            slot.holding.store(0, Relaxed);
        }
        self.recount();
    }

    /// Charges a dead process by the clock for everything that the device may have done under its lease and that it had
    /// not reported. That is an upper bound, not certain use, so it does not count for [`Self::allowed_elsewhere`].
    pub(super) fn charge_death(&mut self, slot: usize, now_ns: u64) {
        let Some(record) = self.slot(slot).filter(|record| is_holding(record)) else { return };
        let from = record.charged_until_ns.load(Relaxed);
        let until = worked_until(record, now_ns);
        // The page may contain any number.
        if until > from && until.saturating_sub(now_ns) <= OVERDUE_NS {
            let used = (until - from).min(OVERDUE_NS);
            self.charge_use(slot, from.saturating_add(used), used);
        }
    }

    fn open(&self, slot: usize, affordable: u64, now_ns: u64) -> Turn {
        let length = affordable.min(turns::LONGEST_LEASE_NS);
        if let Some(slot) = self.slot(slot) {
            slot.lease_end_ns.store(now_ns.saturating_add(length), Relaxed);
        }
        Turn::Granted(length)
    }

    /// Charges a process for its reported use, which also counts for [`Self::allowed_elsewhere`].
    fn charge_holder(&mut self, slot: usize, now_ns: u64, used_ns: u64) {
        let told = self.slot(slot).map(|slot| slot.charged_until_ns.load(Relaxed));
        let charged = self.charge_use(slot, now_ns, used_ns);
        if charged > 0 {
            self.0.own_at_ns.store(now_ns, Relaxed);
        }
        self.note_use(now_ns, now_ns.saturating_sub(told.unwrap_or(now_ns)), charged);
    }

    /// Charges a process for use; returns the time charged (ns).
    fn charge_use(&mut self, slot: usize, now_ns: u64, used_ns: u64) -> u64 {
        let mut bucket = self.settle(now_ns);
        let Some(record) = self.slot(slot) else { return 0 };
        let told_from = record.charged_until_ns.load(Relaxed).min(now_ns);
        let held = now_ns - told_from;
        let used = used_ns.min(held);
        let cursor = self.0.busy_until_ns.load(Relaxed).clamp(told_from, now_ns);
        let charge = used.min(now_ns - cursor);
        bucket.charge(charge);
        record.charged_until_ns.store(now_ns, Relaxed);
        record.density_ppm.store(smoothed(record.density_ppm.load(Relaxed), used, held), Relaxed);
        self.0.busy_until_ns.store(cursor + charge, Relaxed);
        self.note_delivered(slot, now_ns, charge);
        self.keep(bucket);
        charge
    }

    /// Whether this process has to wait: a sibling holds the device and must not share it with this process, or has
    /// waited longer for its turn.
    fn has_to_wait_for_others(&self, slot: usize, now_ns: u64) -> bool {
        let Some(own) = self.slot(slot).filter(|_| !self.0.is_of_several()) else { return false };
        let (dense, since) = (is_dense(own), waiting_since(own, now_ns).unwrap_or(now_ns));
        self.others(slot).any(|other| {
            let apart = dense && is_dense(other);
            let first = waiting_since(other, now_ns).is_some_and(|theirs| theirs < since);
            apart && (is_holding(other) || first)
        })
    }

    /// Whether a sibling waits for this process to end its lease.
    fn others_want_the_turn(&self, slot: usize, now_ns: u64) -> bool {
        let dense = self.slot(slot).is_some_and(is_dense);
        dense
            && !self.0.is_of_several()
            && self
                .others(slot)
                .any(|other| is_dense(other) && waiting_since(other, now_ns).is_some())
    }

    fn others(&self, slot: usize) -> impl Iterator<Item = &MemberSlot> {
        let others = self.used_slots().iter().enumerate();
        others.filter(move |&(index, _)| index != slot).map(|(_, other)| other)
    }

    /// Ends leases that expired long ago without a report, and charges them by the clock.
    fn end_overdue_leases(&mut self, now_ns: u64) {
        let is_overdue = |slot: &MemberSlot| {
            let end = slot.lease_end_ns.load(Relaxed);
            let ended =
                end.saturating_add(OVERDUE_NS) < now_ns || clock::at_most(end, now_ns) < end;
            slot.holding.load(Relaxed) == 1 && ended
        };
        let mut ended = false;
        for slot in 0..self.used_slots().len() {
            if self.slot(slot).is_some_and(is_overdue) {
                self.charge_death(slot, now_ns);
                if let Some(slot) = self.slot(slot) {
                    slot.holding.store(0, Relaxed);
                }
                ended = true;
            }
        }
        if ended {
            self.recount();
        }
    }
}

/// Until when the device may have worked for a process that is found dead or stopped at `now_ns`.
fn worked_until(slot: &MemberSlot, now_ns: u64) -> u64 {
    let mark = slot.work();
    if !mark.is_said() {
        // An older build does not set the mark: assume until the end of its lease.
        return slot.lease_end_ns.load(Relaxed);
    }
    let known = if mark.has_unknown() { now_ns } else { mark.until_ns().min(now_ns) };
    if known > slot.charged_until_ns.load(Relaxed) { known.saturating_add(TAKEN_OFF_NS) } else { 0 }
}

/// The mean of an earlier utilization (millionths; 0: unknown) and that of the last `held` nanoseconds.
fn smoothed(density: u32, used: u64, held: u64) -> u32 {
    if held == 0 {
        return density;
    }
    let weight_ns = if density == 0 { 0 } else { turns::MEMORY_NS };
    let mut mean = Mean { ppm: density.into(), weight_ns };
    mean.add(ratio_ppm(used, held), held, turns::MEMORY_NS);
    u32::try_from(mean.ppm.clamp(1, PPM_ONE.into())).unwrap_or(PPM_ONE)
}
