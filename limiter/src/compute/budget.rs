//! Limits how much work a process may have outstanding on a device, in all its lanes together. Lanes take from it and
//! return to it ([`super::lane`]).
//!
//! Work that is outstanding when a lease ends delays the next holder; work that is done before delays nobody. So the
//! limit is the time that the lease has left ([`limiter_core::room_ns`]). A lane takes its part in pieces, smaller if
//! there are more lanes, and returns them when the work is seen to be done. Most launches fit into their lane's piece
//! and do not touch the budget.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use limiter_core::tuning::{LEAST_OUTSTANDING_NS, MOST_OUTSTANDING_NS};
use rustix::thread::{Timespec, futex};

/// The limit while at most one launch is outstanding.
pub(super) const PAIR_NS: u64 = 2 * LEAST_OUTSTANDING_NS;
/// The amount that work of unknown duration takes: all of it, so nothing runs beside it.
pub(super) const UNKNOWN_NS: u64 = MOST_OUTSTANDING_NS;
/// The largest piece, and the divisor that bounds a piece to a part of the limit.
const LARGEST_NS: u64 = 2_000_000;
const PIECES: u64 = 4;
/// The smallest piece: each piece costs an event.
const SMALLEST_NS: u64 = 250_000;
/// With at most this many lanes, a waiting thread may check each of them.
const FEW: u32 = 8;
/// How long launches wait without progress at most: the outstanding work may itself wait for them.
const PATIENCE_NS: u64 = 200_000_000;
const LONGEST_PATIENCE_NS: u64 = 2_000_000_000;

/// The budget of one device in this process.
#[derive(Default)]
pub(super) struct Budget {
    taken_ns: AtomicU64,
    /// Number of lanes that have taken something.
    takers: AtomicU32,
    /// Number of threads that wait.
    waiting: AtomicU32,
    /// Changes when something is returned; waiting threads sleep on it.
    bell: AtomicU32,
    /// Changes when a thread begins to wait; the governor sleeps on it.
    call: AtomicU32,
    /// Whether a waiting thread checks the other lanes for work that is done.
    helped: AtomicBool,
}

/// Nanoseconds that one lane has taken.
#[derive(Default)]
pub(super) struct Taken(AtomicU64);

impl Taken {
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    pub(super) fn ns(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

impl Budget {
    /// How much a lane of short launches takes at once if the limit is `room_ns`.
    pub(super) fn piece(&self, room_ns: u64) -> u64 {
        let lanes = self.takers.load(Relaxed).saturating_add(self.waiting.load(Relaxed));
        (room_ns / PIECES / u64::from(lanes.max(1))).clamp(SMALLEST_NS, LARGEST_NS)
    }

    /// Takes `ns` for a lane, unless `room_ns` is already taken.
    pub(super) fn take(&self, taken: &Taken, ns: u64, room_ns: u64) -> bool {
        let fits = |all: u64| (all < room_ns).then(|| all.saturating_add(ns));
        if self.taken_ns.fetch_update(AcqRel, Acquire, fits).is_err() {
            return false;
        }
        if taken.0.fetch_add(ns, SeqCst) == 0 {
            self.takers.fetch_add(1, Relaxed);
        }
        true
    }

    /// Reduces what a lane has taken to `ns`.
    pub(super) fn keep(&self, taken: &Taken, ns: u64) {
        self.keep_of(taken, taken.ns(), ns);
    }

    /// Like [`Self::keep`], if the lane still has `had`: otherwise its thread has taken more, or another thread has
    /// returned some.
    pub(super) fn keep_of(&self, taken: &Taken, had: u64, ns: u64) {
        if had <= ns || taken.0.compare_exchange(had, ns, SeqCst, Relaxed).is_err() {
            return;
        }
        if ns == 0 {
            self.takers.fetch_sub(1, Relaxed);
        }
        self.taken_ns.fetch_sub(had - ns, AcqRel);
        self.bell.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 2);
        }
    }

    /// Whether a thread waits.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// How often something was returned.
    pub(super) fn rings(&self) -> u32 {
        self.bell.load(SeqCst)
    }

    /// Sleeps until something has been returned after `rings` was read, for at most `ns` nanoseconds.
    pub(super) fn wait(&self, rings: u32, ns: u64) {
        if self.waiting.fetch_add(1, SeqCst) == 0 {
            self.call.fetch_add(1, SeqCst);
            let _ = futex::wake(&self.call, futex::Flags::PRIVATE, 1);
        }
        let _ = futex::wait(&self.bell, futex::Flags::PRIVATE, rings, Some(&time(ns)));
        self.waiting.fetch_sub(1, Release);
    }

    /// Sleeps for `ns` nanoseconds, or until a thread begins to wait. For the governor.
    pub(super) fn sleep_unless_wanted(&self, ns: u64) {
        let calls = self.call.load(SeqCst);
        if !self.is_wanted() {
            let _ = futex::wait(&self.call, futex::Flags::PRIVATE, calls, Some(&time(ns)));
        }
    }

    /// Whether the calling thread should check the other lanes for work that is done: they are few, and no other thread
    /// does it. The caller ends this with [`Self::helps_no_more`].
    pub(super) fn may_help(&self) -> bool {
        self.takers.load(Relaxed) <= FEW && !self.helped.swap(true, AcqRel)
    }

    pub(super) fn helps_no_more(&self) {
        self.helped.store(false, Release);
    }

    /// Nanoseconds that all lanes have taken.
    pub(super) fn taken_ns(&self) -> u64 {
        self.taken_ns.load(Relaxed)
    }

    /// How long a launch may wait for what is taken now, in nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        self.taken_ns().saturating_mul(2).clamp(PATIENCE_NS, LONGEST_PATIENCE_NS)
    }
}

fn time(ns: u64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: i64::try_from(ns).unwrap_or(0).min(999_999_999) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lanes_have_no_more_outstanding_than_one() {
        let budget = Budget::default();
        let lanes: Vec<Taken> = (0..500).map(|_| Taken::default()).collect();
        let took =
            |ns| lanes.iter().filter(|lane| budget.take(lane, ns, LEAST_OUTSTANDING_NS)).count();
        assert_eq!(took(1_000_000), 2);
        lanes.iter().for_each(|lane| budget.keep(lane, 0));
        assert_eq!(took(50_000), 40);
        assert_eq!(budget.piece(LEAST_OUTSTANDING_NS), SMALLEST_NS);
        lanes.iter().for_each(|lane| budget.keep(lane, 0));
        assert_eq!(took(UNKNOWN_NS), 1);
        assert!(!budget.take(&lanes[1], 1, MOST_OUTSTANDING_NS));
    }

    #[test]
    fn what_is_given_back_can_be_taken() {
        let budget = Budget::default();
        let [one, two] = [Taken::default(), Taken::default()];
        let take = |lane, ns| budget.take(lane, ns, 4_000_000);
        assert!(take(&one, 3_000_000) && take(&two, 3_000_000));
        assert!(!take(&one, 1));
        budget.keep(&two, 2_900_000);
        assert!(!take(&one, 1));
        budget.keep(&one, 1_000_000);
        budget.keep(&one, 2_000_000);
        assert!(take(&one, 1_000_000));
        budget.keep(&one, 0);
        budget.keep(&two, 0);
        assert!(!one.is_any() && !two.is_any());
        assert_eq!((budget.taken_ns.into_inner(), budget.takers.into_inner()), (0, 0));
    }

    #[test]
    fn what_the_lease_has_left_may_be_outstanding() {
        let budget = Budget::default();
        let lane = Taken::default();
        for left in [0, 5_000_000, 30_000_000] {
            let room = limiter_core::room_ns(left);
            while budget.take(&lane, budget.piece(room), room) {}
            // With one lane, the last piece is a small part of the limit.
            assert!((room..room + room / 3).contains(&lane.ns()), "{left}: {}", lane.ns());
        }
    }
}
