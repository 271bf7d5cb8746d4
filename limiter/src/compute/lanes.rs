//! All lanes of one device's gate together: sums and questions that the governor asks of them.

use super::gate::Gate;
use super::hold;
use super::lane::{Lane, LaunchedAhead, Order, Turnstile};
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use limiter_core::Totals;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All lanes of a device in this process.
#[derive(Default)]
pub(super) struct DeviceLanes {
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Totals of lanes that were removed.
    retired: Mutex<Totals>,
    /// Time for which some lane had work queued (ns).
    backlogged_ns: AtomicU64,
    holds_no_more: AtomicBool,
}

impl DeviceLanes {
    /// No driver call is allowed while this is held.
    fn locked(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, lane: Arc<Lane>) {
        super::HAS_LANES.store(true, Ordering::SeqCst);
        self.locked().push(lane);
    }

    pub(super) fn now(&self) -> LaneList {
        LaneList(self.locked().clone())
    }

    /// Calls `with` for each lane.
    pub(super) fn each(&self, mut with: impl FnMut(&Lane)) {
        self.locked().iter().for_each(|lane| with(lane));
    }

    /// Removes an abandoned and drained lane, and keeps its totals.
    pub(super) fn retire(&self, gone: &Arc<Lane>) {
        let mut lanes = self.locked();
        lanes.retain(|lane| !Arc::ptr_eq(lane, gone));
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.add(gone.totals());
        (retired.outstanding_ns, retired.unknown) = (0, false);
    }

    /// The turnstile of a stream for one more lane; `None`: the lane's gate is on the thread.
    pub(super) fn turnstile_for(
        &self,
        stream: usize,
        context: usize,
        order: Order,
    ) -> Option<Arc<Turnstile>> {
        let lanes = self.locked();
        let known = lanes.iter().find_map(|lane| lane.turnstile_of(stream, context));
        if let Some(known) = known.filter(|_| !self.holds_no_more()) {
            return Some(Arc::clone(known));
        }
        let streams = lanes.iter().filter_map(|lane| lane.turnstile()).map(Arc::as_ptr);
        let full = streams.collect::<BTreeSet<_>>().len() >= hold::queues() as usize;
        if full || lanes.iter().any(|lane| lane.waits_by_itself_for(order, context)) {
            self.hold_no_more();
        }
        (!self.holds_no_more()).then(Arc::default)
    }

    /// Whether no stream may be held any more:
    /// * There have been more streams than hardware queues, or streams that implicitly wait for each other. A held one
    ///   could block another one behind it in the same queue, or make it wait for long, which costs other processes
    ///   their time ([`super::behind`]).
    /// * The process itself uses several devices together. The thread that waits for room on one of them is missing on
    ///   the others (two JAX jobs on two devices got 0.61 of one's speed together, and 0.98 with gates on threads).
    pub(super) fn holds_no_more(&self) -> bool {
        self.holds_no_more.load(Ordering::Relaxed)
    }

    /// Makes all streams go free for good.
    pub(super) fn hold_no_more(&self) {
        self.holds_no_more.store(true, Ordering::Relaxed);
    }

    /// Work that all streams with gates have queued.
    pub(super) fn ahead(&self) -> LaunchedAhead {
        self.locked().iter().map(|lane| lane.ahead()).sum()
    }

    /// Sums over all launches. Called by the governor only.
    pub(super) fn totals(&self) -> Totals {
        let lanes = self.locked();
        let mut totals = *self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut backlogged_ns = 0;
        for lane in lanes.iter() {
            totals.add(lane.totals());
            backlogged_ns = backlogged_ns.max(lane.take_backlogged_ns());
        }
        // Backlogs of several lanes cover the same time, so the longest counts.
        totals.backlogged_ns =
            self.backlogged_ns.fetch_add(backlogged_ns, Ordering::Relaxed) + backlogged_ns;
        totals
    }
}

/// A snapshot of the lanes.
#[derive(Debug)]
pub(super) struct LaneList(Vec<Arc<Lane>>);

impl Deref for LaneList {
    type Target = [Arc<Lane>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl LaneList {
    fn sum(&self, number: impl Fn(&Lane) -> u64) -> u64 {
        self.iter().fold(0, |sum, lane| sum.wrapping_add(number(lane)))
    }

    /// A number that changes whenever something is launched.
    pub(super) fn activity(&self) -> u64 {
        self.sum(Lane::activity)
    }

    /// A number that changes whenever work is seen to be done.
    pub(super) fn progress(&self) -> u64 {
        self.sum(Lane::progress)
    }

    /// A number that changes whenever a stream is seen to have passed its gate.
    pub(super) fn begun(&self) -> u64 {
        self.sum(Lane::has_begun)
    }

    /// A number that changes whenever something is launched into a stream with unfinished waits.
    pub(super) fn launches_into_waiting(&self) -> u64 {
        self.sum(|lane| if lane.has_unfinished_waits() { lane.activity() } else { 0 })
    }

    /// Number of launches that are done, and their estimated nanoseconds.
    pub(super) fn done_launches(&self) -> (u64, u64) {
        self.iter().map(|lane| lane.done_launches()).fold((0, 0), |(launches, ns), (more, took)| {
            (launches.wrapping_add(more), ns.wrapping_add(took))
        })
    }

    /// Whether all work that has passed the gate is done. May call the driver.
    pub(super) fn are_drained(&self, gate: &Gate) -> bool {
        let _pin = gate.governors().enter();
        // Query every lane, so that the progress of each is recorded.
        self.iter().filter(|lane| !lane.is_drained(gate)).count() == 0
    }

    /// Whether a thread is on its way to the driver.
    pub(super) fn are_launching(&self) -> bool {
        self.iter().any(|lane| lane.is_launching())
    }

    /// Whether a stream is held for a sample.
    pub(super) fn hold_back(&self) -> bool {
        self.iter().any(|lane| lane.sampling.hold.is_under_way())
    }

    /// Releases streams that have been held for too long.
    pub(super) fn release_overdue(&self, now: u64) {
        self.iter().for_each(|lane| lane.sampling.hold.release_overdue(now));
    }

    /// Estimated nanoseconds of all outstanding work; `None`: unknown.
    pub(super) fn expected_ns(&self) -> Option<u64> {
        self.iter().try_fold(0_u64, |sum, lane| {
            let totals = lane.totals();
            let is_known = !totals.unknown && !lane.may_wait();
            is_known.then(|| sum.saturating_add(totals.outstanding_ns))
        })
    }

    /// How long the work that has begun may keep the device busy, in nanoseconds; `None`: unknown.
    pub(super) fn begun_takes_ns(&self, gate: &Gate) -> Option<u64> {
        self.iter().try_fold(0_u64, |sum, lane| {
            (!lane.totals().unknown).then(|| sum.saturating_add(lane.begun_takes_ns(gate)))
        })
    }

    /// Whether work is held at a closed gate and all work that has begun may wait for it. A kernel never waits for work
    /// that is held behind it in its own stream.
    pub(super) fn may_await_held(&self, gate: &Gate) -> bool {
        let is_held_beside = |running: &Arc<Lane>| {
            self.iter().any(|held| held.is_held(gate) && !held.shares_stream_with(running))
        };
        gate.holds_work() && self.iter().all(|lane| !lane.is_running() || is_held_beside(lane))
    }

    /// Whether some work may wait for something outside of the device.
    pub(super) fn may_wait(&self) -> bool {
        self.iter().any(|lane| lane.may_wait())
    }

    /// Whether all work under way may be waiting for something outside of the device.
    pub(super) fn only_wait(&self) -> bool {
        let waits = |lane: &Arc<Lane>| lane.may_wait();
        self.iter().any(waits) && !self.iter().any(|lane| !waits(lane) && lane.under_way() > 0)
    }
}
