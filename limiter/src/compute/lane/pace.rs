//! Between two batches: how long the thread waits, and how much the next batch is to be.
//!
//! A batch is as large as the program's pace makes it: one should take [`Span`]'s time. The end of each is
//! also the moment to see whether work was always queued meanwhile: it was, if what ended the batch before is
//! not done yet. So programs whose queue is shorter than a batch are not seen to keep the device busy.
//! Where most of the time is known to be used and that is not seen, batches become shorter; where the device
//! idles anyway, there is nothing to be seen, and they become longer.

use super::super::usage::is_most;
use super::super::{Gate, clock};
use super::{LONG_NS, Lane};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The time that a batch should take: to begin with, at least and at most.
const USUAL_NS: u64 = 500_000;
const SHORTEST_NS: u64 = USUAL_NS / 4;
const LONGEST_NS: u64 = USUAL_NS * 2;
/// So many batches in a row whose queue would have been long enough for twice the time.
const DEEP: u32 = 32;
/// The shortest and longest nap while waiting for work to be done.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 500_000;
/// The longest wait for earlier work before a launch: that work may itself wait for the launch.
const PATIENCE_NS: u64 = 200_000_000;

/// What the end of a batch tells of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    /// Another session uses the device as well: nothing.
    Shared,
    /// Two batches before this one are not done.
    Deep,
    /// The one before is not.
    Full,
    /// It is, although most of the time was used.
    Short,
    /// It is, and part of the time was not used.
    Idle,
    /// It is, and most of the time was not used.
    Empty,
}

/// The time that a batch should take.
#[derive(Debug)]
pub(super) struct Span {
    ns: AtomicU64,
    /// How many of the latest batches were deep in the queue.
    deep: AtomicU32,
}

impl Default for Span {
    fn default() -> Self {
        Self { ns: AtomicU64::new(USUAL_NS), deep: AtomicU32::new(0) }
    }
}

impl Span {
    /// The next one, in nanoseconds. To be called by the lane's thread.
    fn after(&self, queue: Queue) -> u64 {
        let deep = if queue == Queue::Deep { self.deep.load(Relaxed) + 1 } else { 0 };
        let ns = self.ns.load(Relaxed);
        let next = match queue {
            Queue::Shared => USUAL_NS,
            // Twice as much can be outstanding.
            Queue::Deep if deep >= DEEP => (ns * 2).min(USUAL_NS.max(ns)),
            Queue::Deep | Queue::Full | Queue::Idle => ns,
            Queue::Short => (ns / 2).max(SHORTEST_NS),
            Queue::Empty => (ns * 2).min(LONGEST_NS),
        };
        self.ns.store(next, Relaxed);
        self.deep.store(if next == ns { deep.min(DEEP) } else { 0 }, Relaxed);
        next
    }
}

impl Lane {
    /// Waits until so little is outstanding that the next batch may be launched, and learns from it
    /// how large that should be. `covered`: an event has ended the batch.
    pub(super) fn pace(&self, batch: u32, covered: bool, gate: &Gate) {
        let recorded = self.recorded.load(Relaxed);
        let launch_ns = self.launch_ns.load(Relaxed);
        let alone = batch == 1 && launch_ns > LONG_NS;
        let awaited = if alone { recorded } else { recorded.saturating_sub(1) };
        let patience = PATIENCE_NS.max(launch_ns.saturating_mul(2));
        let begun = clock::now();
        let mut now = begun;
        let is_done = || awaited <= self.given_up.load(Relaxed) || self.is_done(awaited);
        let mut done = is_done();
        let was_queued = !done;
        while !done && self.is_enough(gate.is_shared()) {
            if now.saturating_sub(begun) > patience {
                // It may wait for what the program launches next: neither waited for again nor
                // learnt from.
                self.given_up.store(recorded, Relaxed);
                self.mark_at(now);
                if alone {
                    // It was waited for by itself, and in vain: longer waits would help no more.
                    self.launch_ns.store(0, Relaxed);
                } else {
                    self.launch_ns.fetch_max(patience / u64::from(batch.max(1)), Relaxed);
                }
                return;
            }
            // Close to when it should be done, so that the device does not idle for a nap's length.
            let expected = self.mark.load(Relaxed) + launch_ns.saturating_mul(u64::from(batch));
            clock::sleep((expected.saturating_sub(now) / 2).clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS));
            done = is_done();
            now = clock::now();
        }
        let waited = now != begun;
        let (took, used) = self.mark_at(now);
        if waited {
            self.launch_ns.store(took / u64::from(batch.max(1)), Relaxed);
        }
        let queue = match was_queued {
            _ if gate.is_shared() => Queue::Shared,
            true if covered => Queue::Full,
            true => Queue::Deep,
            false if is_most(used, took) || gate.is_busy() => Queue::Short,
            false if used < took / 2 => Queue::Empty,
            false => Queue::Idle,
        };
        // A launch that is waited for by itself is known by its estimate.
        if !alone {
            // The batch before was queued when this one was begun, and was not done when it was full. Else, what
            // the estimates say, so that a batch that was missed matters little.
            let busy = if was_queued { took } else { used.min(took) };
            if was_queued || queue == Queue::Short {
                self.backlogged_ns.store(self.backlogged_ns.load(Relaxed) + busy, Release);
            }
        }
        let fitting = u64::from(batch) * self.span.after(queue) / took;
        self.resize(u32::try_from(fitting).unwrap_or(u32::MAX).min(batch.saturating_mul(2)));
        self.plan_sample(now);
    }

    /// A batch ends: the time since the one before did, and the estimated nanoseconds launched in it.
    fn mark_at(&self, now: u64) -> (u64, u64) {
        let launched = self.launched_ns.load(Relaxed);
        let used = launched.wrapping_sub(self.marked_ns.load(Relaxed));
        let took = now.saturating_sub(self.mark.load(Relaxed)).max(1);
        self.marked_ns.store(launched, Relaxed);
        self.mark.store(now, Relaxed);
        (took, used)
    }

    /// The thread begins anew, under another lease.
    pub(super) fn begin_at(&self, now: u64) {
        let _ = self.mark_at(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What batches of a program are seen to be that has `queue_ns` of work queued at all times.
    fn dense(span_ns: u64, queue_ns: u64) -> Queue {
        match queue_ns {
            _ if queue_ns >= 2 * span_ns => Queue::Deep,
            _ if queue_ns >= span_ns => Queue::Full,
            _ => Queue::Short,
        }
    }

    #[test]
    fn batches_become_as_short_as_the_queue_needs() {
        for queue_ns in [150_000, 300_000, 480_000, 700_000, 5_000_000] {
            let span = Span::default();
            let mut ns = USUAL_NS;
            let mut missed = 0;
            for round in 0..1000 {
                let queue = dense(ns, queue_ns);
                missed += u32::from(round > 10 && queue == Queue::Short);
                ns = span.after(queue);
            }
            assert!(missed < 1000 / DEEP, "{queue_ns}: {missed}");
            assert!(ns <= USUAL_NS);
        }
    }

    #[test]
    fn they_become_longer_where_there_is_nothing_to_see() {
        let span = Span::default();
        assert_eq!((0..5).map(|_| span.after(Queue::Empty)).last(), Some(LONGEST_NS));
        assert_eq!(span.after(Queue::Idle), LONGEST_NS);
        assert_eq!(span.after(Queue::Short), USUAL_NS);
        assert_eq!((0..5).map(|_| span.after(Queue::Short)).last(), Some(SHORTEST_NS));
        assert_eq!(span.after(Queue::Shared), USUAL_NS);
        // A long queue is no reason for longer ones than usual.
        assert_eq!((0..500).map(|_| span.after(Queue::Deep)).last(), Some(USUAL_NS));
    }
}
