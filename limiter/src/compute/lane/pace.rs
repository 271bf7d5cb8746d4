//! At the end of a batch: whether work was always queued meanwhile, and how large the next batch is to be.
//!
//! Work was always queued if the batch before is not done yet. Programs whose queue is shorter than a batch are
//! found by queue probes ([`super::super::looks`]).
//!
//! The size follows the program's pace: a batch is as much as the thread launches, or the device does, in
//! [`BATCH_NS`], whichever is less. With the gate in the stream the device counts: the thread sees by itself that the
//! gate has closed, and ends its batch then. But a batch costs the thread 8 us, so one of a thread that the device
//! waits for takes longer, up to [`SLOWER`] times.

use super::super::{Gate, clock};
use super::{CLOSED, Lane, MAX_BATCH};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The time that a batch should take.
const BATCH_NS: u64 = 500_000;
/// How many times as long a batch in a stream may take the thread as it may take the device.
const SLOWER: u64 = 4;

/// The size of batches.
pub(super) struct Pace {
    /// Launches that end with an event, or [`CLOSED`].
    batch: AtomicU32,
    /// Where the thread has to look up next, unless it is asked to do so at once.
    pub(super) planned: AtomicU32,
    /// When the thread last ended a batch, saw that the last one was not done, or began anew.
    pub(super) mark: AtomicU64,
    /// Time for which work was always queued, as far as can be told, and how much of it the governor was told of.
    pub(super) backlog_ns: AtomicU64,
    pub(super) told_ns: AtomicU64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            batch: AtomicU32::new(1),
            planned: AtomicU32::new(1),
            mark: AtomicU64::new(clock::now()),
            backlog_ns: AtomicU64::new(0),
            told_ns: AtomicU64::new(0),
        }
    }

    /// Launches that end with an event.
    pub(super) fn batch(&self) -> u32 {
        self.batch.load(Relaxed)
    }

    /// Not where the lane is closed, which another thread may have done meanwhile.
    pub(super) fn set_batch(&self, launches: u32) {
        let change = |old| (old != CLOSED).then_some(launches);
        let _ = self.batch.fetch_update(Relaxed, Relaxed, change);
    }

    /// No launch fits in: the lane's stream or context is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.batch() == CLOSED
    }

    pub(super) fn close(&self) {
        self.batch.store(CLOSED, Relaxed);
    }
}

impl Lane {
    /// A batch of so many launches has just ended.
    pub(super) fn pace(&self, batch: u32, gate: &Gate) {
        let recorded = self.batches.recorded();
        let before = recorded.saturating_sub(1);
        let now = clock::now();
        let took = now.saturating_sub(self.pace.mark.load(Relaxed));
        if !self.is_done(before) && !self.had_waits_since(before.max(1)) {
            self.was_busy(took, gate);
        }
        self.pace.mark.store(now, Relaxed);
        let used = self.covered_by(recorded).saturating_sub(self.covered_by(before));
        let (span, longest, most) = if self.is_in_stream() {
            let span = self.batch_ns(gate);
            (span, SLOWER * span, self.most_launches(gate))
        } else {
            (BATCH_NS, BATCH_NS, MAX_BATCH)
        };
        let of = |span: u64, took: u64| u64::from(batch) * span / took.max(1);
        let fitting = of(longest, took).min(of(span, gate.seen.launch_times.really(used)));
        let most = most.min(batch.saturating_mul(2));
        self.resize(u32::try_from(fitting).unwrap_or(u32::MAX).min(most));
        if !self.has_place(self.pace.batch()) {
            // The next launch asks for room.
            self.count.most_ns.store(0, Relaxed);
        }
        self.plan_sample(now, gate);
    }

    /// What was launched has kept the device busy for so long. To be called by the lane's thread.
    fn was_busy(&self, ns: u64, gate: &Gate) {
        // What is held at a closed gate does not.
        if !self.is_in_stream() || gate.lease() == Some(self.calls.entered.load(Relaxed)) {
            self.pace.backlog_ns.store(self.pace.backlog_ns.load(Relaxed) + ns, Release);
        }
    }

    /// The thread waits, and its last batch is not done. To be called by it.
    pub(super) fn is_waited_for(&self, gate: &Gate) {
        let now = clock::now();
        if !self.may_wait() {
            self.was_busy(now.saturating_sub(self.pace.mark.load(Relaxed)), gate);
        }
        self.pace.mark.store(now, Relaxed);
    }
}
