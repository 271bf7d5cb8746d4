//! At the end of a batch: was work always queued meanwhile, and how large should the next batch be?
//!
//! Work was always queued if the previous batch is not done yet. Queue probes find programs whose queue is shorter than
//! a batch ([`super::super::looks`]).
//!
//! The size follows the program's pace: a batch is as much as the thread launches, or the device executes, in
//! [`BATCH_NS`], whichever is less. With the gate in the stream only the device counts, because the thread notices a
//! closed gate by itself and then ends its batch. But a batch costs the thread 8 us, so if the device waits for the
//! thread, a batch may take the thread up to [`SLOWER`] times as long.

use super::super::{Gate, clock};
use super::{CLOSED, Lane, MAX_BATCH};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The intended time of a batch.
const BATCH_NS: u64 = 500_000;
/// How many times as long a batch in a stream may take the thread as the device.
const SLOWER: u64 = 4;

/// The size of batches, and the backlogged time.
pub(super) struct Pace {
    /// Launches per batch, or [`CLOSED`].
    batch: AtomicU32,
    /// The next launch that has to take the slow path, unless one is requested at once.
    pub(super) planned: AtomicU32,
    /// When (ns) the thread last ended a batch, saw that the last one was not done, or began anew.
    pub(super) mark: AtomicU64,
    /// Time for which work was always queued, as far as is known, and the part that was reported to the governor (ns).
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

    /// Launches per batch.
    pub(super) fn batch(&self) -> u32 {
        self.batch.load(Relaxed)
    }

    /// Sets the size, unless another thread has closed the lane meanwhile.
    pub(super) fn set_batch(&self, launches: u32) {
        let change = |old| (old != CLOSED).then_some(launches);
        let _ = self.batch.fetch_update(Relaxed, Relaxed, change);
    }

    /// Whether no launch fits: the lane's stream or context is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.batch() == CLOSED
    }

    pub(super) fn close(&self) {
        self.batch.store(CLOSED, Relaxed);
    }
}

impl Lane {
    /// Called when a batch of `batch` launches has just ended.
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
            // The next launch has to take budget.
            self.count.most_ns.store(0, Relaxed);
        }
        self.plan_sample(now, gate);
    }

    /// Counts `ns` as backlogged time. Called by the lane's thread.
    fn was_busy(&self, ns: u64, gate: &Gate) {
        // Work held at a closed gate does not keep the device busy.
        if !self.is_in_stream() || gate.lease() == Some(self.calls.entered.load(Relaxed)) {
            self.pace.backlog_ns.store(self.pace.backlog_ns.load(Relaxed) + ns, Release);
        }
    }

    /// Called by the lane's thread while it waits and its last batch is not done.
    pub(super) fn is_waited_for(&self, gate: &Gate) {
        let now = clock::now();
        if !self.may_wait() {
            self.was_busy(now.saturating_sub(self.pace.mark.load(Relaxed)), gate);
        }
        self.pace.mark.store(now, Relaxed);
    }
}
