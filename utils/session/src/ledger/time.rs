//! Time: leases of the session's own account.
//!
//! The clock earns a session its share; what its processes use of the device is charged. A process
//! tells how much it used while it holds a lease, every few milliseconds and at its end. Several
//! processes may use the device at once, so what they tell is lined up end to end from the moment up to
//! which the session has been charged ([`Layout::busy_until_ns`](crate::page::layout::Layout)): together
//! they are charged no more than the time that has passed.
//!
//! Processes that keep the device busy by themselves take turns: two of them at once would be sliced by
//! the hardware, at a loss. Others hold it at the same time.

use super::Book;
use crate::page::layout::Slot;
use core::sync::atomic::Ordering::Relaxed;
use limits::bucket::{Bucket, balance_for, earned};
use limits::units::PPM_ONE;

/// The largest balance that an idle session saves up: 100 ms of its share.
pub const BURST_PERIOD_NS: u64 = 100_000_000;
/// The shortest lease worth opening a gate for.
pub const SHORTEST_LEASE_NS: u64 = 10_000_000;
/// The shortest lease beside a sibling that holds.
const SHORTEST_JOIN_NS: u64 = 2_000_000;
/// The longest lease; one that may go on is renewed.
pub const LONGEST_LEASE_NS: u64 = 50_000_000;
/// The longest lease while another process of the session waits for its turn.
pub const TURN_NS: u64 = 20_000_000;
/// A process that keeps the device busy for this part of the time that it holds it is dense.
pub const DENSE_PPM: u32 = 850_000;

/// How long past the end of its lease a process may hold up its siblings: one that is stopped, or that
/// became another program, never says that it is done.
pub const OVERDUE_NS: u64 = 2_000_000_000;
/// A process that waits asks again at least this often, or its place is lost.
pub const ASK_AGAIN_NS: u64 = 100_000_000;
/// A sibling that holds the device looks for its turn's end this soon.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// Held time over which a process's density is averaged.
const DENSITY_OVER_NS: u64 = 200_000_000;

/// When the session may next use the device's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Now, for this many nanoseconds.
    Granted(u64),
    /// Not before this many nanoseconds have passed.
    In(u64),
}

fn is_holding(slot: &Slot) -> bool {
    slot.pid.load(Relaxed) != 0 && slot.holding.load(Relaxed) == 1
}

/// Since when a process waits, if it does and still asks.
fn waiting_since(slot: &Slot, now_ns: u64) -> Option<u64> {
    let since = slot.waiting_since_ns.load(Relaxed);
    let asked = slot.charged_until_ns.load(Relaxed);
    let waits = slot.pid.load(Relaxed) != 0
        && slot.holding.load(Relaxed) != 1
        && since != 0
        && asked.saturating_add(ASK_AGAIN_NS) >= now_ns;
    waits.then_some(since)
}

/// Whether a process keeps the device busy, as far as known.
fn is_dense(slot: &Slot) -> bool {
    let density = slot.density_ppm.load(Relaxed);
    density == 0 || density >= DENSE_PPM
}

impl Book<'_> {
    /// The session's share, all of it where that is not enforced.
    fn share(&self) -> u32 {
        let limit = self.0.limits().compute;
        if limit.is_limit() { limit.share_ppm } else { PPM_ONE }
    }

    fn burst(&self) -> u64 {
        earned(BURST_PERIOD_NS, self.share())
    }

    /// Earns what the share gives until `now_ns`.
    fn settle(&mut self, now_ns: u64) -> Bucket {
        let mut bucket = Bucket {
            balance_ns: self.0.balance_ns.load(Relaxed),
            settled_at_ns: self.0.settled_at_ns.load(Relaxed),
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

    /// Asks for the device's time on behalf of a process. One that is told to come back has its place
    /// kept if it asks again within [`ASK_AGAIN_NS`].
    pub fn begin_lease(&mut self, slot: usize, now_ns: u64) -> Turn {
        let bucket = self.settle(now_ns);
        self.end_overdue_leases(now_ns);
        let share = self.share();
        // Half a burst at most, or a small share could never save enough for one lease.
        let wanted = balance_for(SHORTEST_LEASE_NS, share).min(self.burst() / 2);
        let joining = self.0.holders.load(Relaxed) > 0;
        // What is left at the end of a sibling's lease is no turn: whoever got that each time would get nothing.
        let dense = self.slot(slot).is_some_and(is_dense);
        let least = if joining && !dense {
            wanted.min(balance_for(SHORTEST_JOIN_NS, share))
        } else {
            wanted
        };
        let turn = match bucket.lease_length(share) {
            _ if self.has_to_wait_for_others(slot, now_ns) => Turn::In(LOOK_AGAIN_NS),
            Some(length) if bucket.ready_in(least, share) == Some(0) => Turn::Granted(length),
            // While another process drains, time is being taken, not earned: look again soon.
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
                record.waiting_since_ns.store(0, Relaxed);
                record.holding.store(1, Relaxed);
                let granted = self.open(slot, length, now_ns);
                self.recount();
                granted
            }
        }
    }

    /// A process no longer waits for the device's time.
    pub fn stop_waiting(&mut self, slot: usize) {
        if let Some(slot) = self.slot(slot) {
            slot.waiting_since_ns.store(0, Relaxed);
        }
    }

    /// Charges a holder for `used_ns` of the time since it was charged last, and asks for the lease to
    /// go on. [`Turn::In`]: it ends when it was to end.
    pub fn renew_lease(&mut self, slot: usize, now_ns: u64, used_ns: u64) -> Turn {
        self.charge_use(slot, now_ns, used_ns);
        let bucket = self.settle(now_ns);
        if !self.slot(slot).is_some_and(is_holding) || self.others_want_the_turn(slot, now_ns) {
            return Turn::In(0);
        }
        match bucket.lease_length(self.share()) {
            Some(length) => self.open(slot, length, now_ns),
            None => Turn::In(0),
        }
    }

    /// A process used the device under a lease that came from elsewhere: what was saved up here goes
    /// down by it, or the session would have two accounts.
    pub fn used_elsewhere(&mut self, now_ns: u64, used_ns: u64) {
        let mut bucket = self.settle(now_ns);
        let used = i64::try_from(used_ns).unwrap_or(i64::MAX);
        let left = bucket.balance_ns.saturating_sub(used).max(0);
        bucket.balance_ns = bucket.balance_ns.min(left);
        self.keep(bucket);
    }

    /// The session comes to be limited: what it would have saved up by now is no matter, what it owes is.
    pub fn forget_savings(&mut self, now_ns: u64) {
        let mut bucket = self.settle(now_ns);
        bucket.balance_ns = bucket.balance_ns.min(0);
        self.keep(bucket);
    }

    /// Ends a process's lease, and charges it for `used_ns` of the time since it was charged last.
    pub fn end_lease(&mut self, slot: usize, now_ns: u64, used_ns: u64) {
        self.charge_use(slot, now_ns, used_ns);
        if let Some(slot) = self.slot(slot) {
            slot.holding.store(0, Relaxed);
        }
        self.recount();
    }

    /// The process in a slot has died: what it held and had not told of is charged in full.
    pub(super) fn forfeit(&mut self, slot: usize) {
        let Some(record) = self.slot(slot).filter(|record| is_holding(record)) else { return };
        let until = record.lease_end_ns.load(Relaxed);
        let from = record.charged_until_ns.load(Relaxed);
        // A page may hold any number.
        if until.saturating_sub(from) <= OVERDUE_NS {
            self.charge_use(slot, until, until.saturating_sub(from));
        }
    }

    fn open(&self, slot: usize, affordable: u64, now_ns: u64) -> Turn {
        let longest =
            if self.others_want_the_turn(slot, now_ns) { TURN_NS } else { LONGEST_LEASE_NS };
        let length = affordable.min(longest);
        if let Some(slot) = self.slot(slot) {
            slot.lease_end_ns.store(now_ns.saturating_add(length), Relaxed);
        }
        Turn::Granted(length)
    }

    fn charge_use(&mut self, slot: usize, now_ns: u64, used_ns: u64) {
        let mut bucket = self.settle(now_ns);
        let Some(record) = self.slot(slot) else { return };
        let told_from = record.charged_until_ns.load(Relaxed).min(now_ns);
        let held = now_ns - told_from;
        let used = used_ns.min(held);
        let cursor = self.0.busy_until_ns.load(Relaxed).clamp(told_from, now_ns);
        let charge = used.min(now_ns - cursor);
        bucket.charge(charge);
        record.charged_until_ns.store(now_ns, Relaxed);
        record.charged_ns.store(record.charged_ns.load(Relaxed).saturating_add(charge), Relaxed);
        record.density_ppm.store(smoothed(record.density_ppm.load(Relaxed), used, held), Relaxed);
        self.0.busy_until_ns.store(cursor + charge, Relaxed);
        self.keep(bucket);
    }

    /// Whether a sibling holds the device that this process must not share it with, or has waited for
    /// its turn for longer.
    fn has_to_wait_for_others(&self, slot: usize, now_ns: u64) -> bool {
        let Some(own) = self.slot(slot) else { return false };
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
            && self
                .others(slot)
                .any(|other| is_dense(other) && waiting_since(other, now_ns).is_some())
    }

    fn others(&self, slot: usize) -> impl Iterator<Item = &Slot> {
        let others = self.seated().iter().enumerate();
        others.filter(move |&(index, _)| index != slot).map(|(_, other)| other)
    }

    /// Stops waiting for leases that ended long ago without a word.
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
}

/// The average of a density in millionths (zero: unknown) and that of the last `held` nanoseconds.
fn smoothed(density: u32, used: u64, held: u64) -> u32 {
    if held == 0 {
        return density;
    }
    let part = |of: u64, whole: u64| {
        u64::try_from(u128::from(of) * u128::from(PPM_ONE) / u128::from(whole.max(1))).unwrap_or(0)
    };
    let latest = part(used, held);
    let old = if density == 0 { latest } else { u64::from(density) };
    let weight = part(held, held.saturating_add(DENSITY_OVER_NS));
    let mixed = (old * (u64::from(PPM_ONE) - weight) + latest * weight) / u64::from(PPM_ONE);
    u32::try_from(mixed.clamp(1, u64::from(PPM_ONE))).unwrap_or(PPM_ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;
    use crate::page::layout::Layout;
    use limits::{ComputeLimit, GpuId, Limits};

    const MS: u64 = 1_000_000;

    struct Stage {
        _folder: tempfile::TempDir,
        page: Page,
    }

    impl Stage {
        fn new(share_ppm: u32, processes: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let limits = Limits { compute: ComputeLimit::fixed(share_ppm), ..Limits::NONE };
            let page = Page::open(folder.path(), GpuId::from_bytes([3; 16]), &limits).unwrap();
            for slot in 0..processes {
                Book::new(page.layout()).seat(slot, 100 + u32::try_from(slot).unwrap(), 1);
            }
            Self { _folder: folder, page }
        }

        fn layout(&self) -> &Layout {
            self.page.layout()
        }

        fn charged(&self, slot: usize) -> u64 {
            self.layout().slots[slot].charged_ns.load(Relaxed)
        }
    }

    /// What a process does with the device: the part of the held time that it uses, and how long its
    /// last kernel runs past the end.
    #[derive(Clone, Copy)]
    struct Load {
        density: f64,
        overrun: u64,
    }

    #[derive(Clone, Copy)]
    enum State {
        Waits(u64),
        Holds { from: u64, end: u64, renew: u64 },
        Drains { from: u64, until: u64 },
    }

    /// Runs processes of one session for some milliseconds; returns the time that each held.
    fn simulate(stage: &Stage, loads: &[Load], ms: u64) -> Vec<u64> {
        let mut states = vec![State::Waits(0); loads.len()];
        let mut held = vec![0; loads.len()];
        for step in 0..ms * 10 {
            let now = 1_000 * MS + step * MS / 10;
            for (slot, load) in loads.iter().enumerate() {
                let mut book = Book::new(stage.layout());
                let used = |from: u64| ((now - from) as f64 * load.density) as u64;
                states[slot] = match states[slot] {
                    State::Waits(until) if now >= until => match book.begin_lease(slot, now) {
                        Turn::Granted(length) => {
                            State::Holds { from: now, end: now + length, renew: now + 10 * MS }
                        }
                        Turn::In(wait) => State::Waits(now + wait.clamp(1, 10 * MS)),
                    },
                    State::Holds { from, end, renew } => {
                        held[slot] += MS / 10;
                        if now >= end {
                            State::Drains { from, until: now + load.overrun }
                        } else if now >= renew {
                            let end = match book.renew_lease(slot, now, used(from)) {
                                Turn::Granted(length) => now + length,
                                Turn::In(_) => end,
                            };
                            State::Holds { from: now, end, renew: now + 10 * MS }
                        } else {
                            State::Holds { from, end, renew }
                        }
                    }
                    State::Drains { from, until } if now >= until => {
                        book.end_lease(slot, now, used(from));
                        State::Waits(now)
                    }
                    other => other,
                };
            }
        }
        held
    }

    #[track_caller]
    fn is_near(value: u64, of: u64, part: f64) {
        let got = value as f64 / of as f64;
        assert!((got - part).abs() < 0.015, "{got} instead of {part}");
    }

    #[test]
    fn a_dense_process_uses_its_share() {
        for (share, overrun) in [(100_000, 0), (250_000, 3), (500_000, 20), (900_000, 2)] {
            let stage = Stage::new(share, 1);
            simulate(&stage, &[Load { density: 1.0, overrun: overrun * MS }], 20_000);
            is_near(stage.charged(0), 20_000 * MS, f64::from(share) / 1e6);
        }
    }

    /// It needs 40 % of the device and has 50 %: its gate never closes.
    #[test]
    fn a_sparse_process_within_its_share_is_never_stopped() {
        let stage = Stage::new(500_000, 1);
        let held = simulate(&stage, &[Load { density: 0.4, overrun: 0 }], 5_000);
        is_near(held[0], 5_000 * MS, 1.0);
        is_near(stage.charged(0), 5_000 * MS, 0.4);
    }

    #[test]
    fn a_sparse_process_beyond_its_share_is_held_to_it() {
        let stage = Stage::new(250_000, 1);
        simulate(&stage, &[Load { density: 0.5, overrun: 0 }], 10_000);
        is_near(stage.charged(0), 10_000 * MS, 0.25);
    }

    /// Never at the same time, and each as much as the other.
    #[test]
    fn dense_siblings_take_turns() {
        for processes in [2, 3, 8] {
            let stage = Stage::new(500_000, processes);
            let load = Load { density: 1.0, overrun: MS };
            let held = simulate(&stage, &vec![load; processes], 20_000);
            let sum: u64 = (0..processes).map(|slot| stage.charged(slot)).sum();
            is_near(sum, 20_000 * MS, 0.5);
            for part in held {
                let fair = 10_000 * MS / processes as u64;
                assert!(part.abs_diff(fair) < fair / 8, "{part} of {fair}");
            }
        }
    }

    /// What sparse ones leave at the end of their leases is no turn.
    #[test]
    fn dense_siblings_of_sparse_ones_get_equal_parts() {
        let load = |(density, overrun)| Load { density, overrun };
        let sets: [(u32, &[(f64, u64)]); 3] = [
            (300_000, &[(1.0, MS / 2), (0.88, MS / 2), (0.7, 0), (0.7, 3 * MS)]),
            (300_000, &[(1.0, 0), (1.0, MS / 2), (0.4, 8 * MS)]),
            (30_000, &[(1.0, MS / 2), (0.88, 0), (0.83, 3 * MS)]),
        ];
        for (share, loads) in sets {
            let stage = Stage::new(share, loads.len());
            let loads: Vec<Load> = loads.iter().copied().map(load).collect();
            let held = simulate(&stage, &loads, 30_000);
            let sum: u64 = (0..loads.len()).map(|slot| stage.charged(slot)).sum();
            is_near(sum, 30_000 * MS, f64::from(share) / 1e6);
            assert!(held[0].abs_diff(held[1]) < held[0] / 8, "{share}: {held:?}");
        }
    }

    #[test]
    fn sparse_siblings_hold_at_once_and_are_charged_together() {
        let stage = Stage::new(800_000, 2);
        let held = simulate(&stage, &[Load { density: 0.3, overrun: 0 }; 2], 5_000);
        // Until they are known to be sparse they take turns.
        assert!(held.iter().all(|&part| part > 4_500 * MS), "{held:?}");
        is_near(stage.charged(0) + stage.charged(1), held[0] + held[1], 0.3);
    }

    #[test]
    fn a_process_that_stopped_asking_loses_its_place() {
        let stage = Stage::new(1_000_000, 2);
        let mut book = Book::new(stage.layout());
        let start = 1_000 * MS;
        // The account begins to fill at the first question.
        let _ = book.begin_lease(0, start - 50 * MS);
        assert!(matches!(book.begin_lease(0, start), Turn::Granted(_)));
        assert!(matches!(book.begin_lease(1, start + MS), Turn::In(_)));
        // A sibling waits: the lease is not renewed, and ends.
        assert_eq!(book.renew_lease(0, start + 10 * MS, 10 * MS), Turn::In(0));
        book.end_lease(0, start + 20 * MS, 10 * MS);
        // The one that waited comes first ...
        assert!(matches!(book.begin_lease(0, start + 20 * MS), Turn::In(_)));
        // ... unless it does not ask any more.
        assert!(matches!(book.begin_lease(0, start + 120 * MS), Turn::Granted(_)));
    }

    #[test]
    fn a_dead_holder_pays_until_the_end_of_its_lease() {
        let stage = Stage::new(500_000, 1);
        let mut book = Book::new(stage.layout());
        let start = 1_000 * MS;
        assert!(matches!(book.begin_lease(0, start), Turn::In(_)));
        let Turn::Granted(length) = book.begin_lease(0, start + 50 * MS) else { unreachable!() };
        let before = stage.layout().balance_ns.load(Relaxed);
        book.vacate(0);
        let after = stage.layout().balance_ns.load(Relaxed);
        // It went on earning meanwhile.
        assert_eq!(before - after, i64::try_from(length - earned(length, 500_000)).unwrap());
        assert_eq!(stage.layout().holders.load(Relaxed), 0);
    }

    #[test]
    fn what_was_used_elsewhere_is_not_saved_up_here() {
        let stage = Stage::new(500_000, 1);
        let mut book = Book::new(stage.layout());
        let start = 1_000 * MS;
        let _ = book.begin_lease(0, start);
        book.stop_waiting(0);
        book.used_elsewhere(start + 40 * MS, 15 * MS);
        assert_eq!(stage.layout().balance_ns.load(Relaxed), 5_000_000);
        book.used_elsewhere(start + 50 * MS, 30 * MS);
        assert_eq!(stage.layout().balance_ns.load(Relaxed), 0);
    }

    #[test]
    fn any_numbers_in_a_page_do_no_harm() {
        let stage = Stage::new(500_000, 2);
        let mut book = Book::new(stage.layout());
        for value in [0, 1, u64::MAX / 2, u64::MAX] {
            for slot in &stage.layout().slots[..2] {
                slot.charged_until_ns.store(value, Relaxed);
                slot.lease_end_ns.store(value, Relaxed);
                slot.waiting_since_ns.store(value, Relaxed);
                slot.charged_ns.store(value, Relaxed);
                slot.density_ppm.store(u32::MAX, Relaxed);
                slot.holding.store(1, Relaxed);
            }
            stage.layout().busy_until_ns.store(value, Relaxed);
            stage.layout().settled_at_ns.store(value, Relaxed);
            for now in [0, 5, u64::MAX / 2, u64::MAX] {
                let _ = book.begin_lease(0, now);
                let _ = book.renew_lease(0, now, u64::MAX);
                book.end_lease(1, now, u64::MAX);
                book.vacate(0);
                book.seat(0, 7, 7);
            }
        }
    }

    #[test]
    fn a_session_that_comes_to_be_limited_has_nothing_saved_up() {
        let stage = Stage::new(750_000, 1);
        let mut book = Book::new(stage.layout());
        assert!(matches!(book.begin_lease(0, 1_000 * MS), Turn::In(_)));
        assert!(matches!(book.begin_lease(0, 2_000 * MS), Turn::Granted(_)));
        book.end_lease(0, 2_010 * MS, 10 * MS);
        book.forget_savings(5_000 * MS);
        assert!(matches!(book.begin_lease(0, 5_000 * MS), Turn::In(_)));
        // What is owed is owed.
        book.0.balance_ns.store(-3 * MS.cast_signed(), Relaxed);
        book.forget_savings(5_000 * MS);
        assert_eq!(book.0.balance_ns.load(Relaxed), -3 * MS.cast_signed());
    }
}
