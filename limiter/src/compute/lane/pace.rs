//! Between two batches: how long the thread waits, and how large the next batch is.
//!
//! The size follows the program's pace: a batch should take [`Span`]'s time. The end of a batch is also the
//! moment to see whether work was always queued meanwhile. It was, if the event that ended the previous batch
//! is not done yet. Programs whose queue is shorter than a batch are found by queue probes
//! ([`super::super::looks`]). If the device is idle most of the time, there is nothing to find, and batches
//! become longer.

use super::super::{Gate, clock};
use super::{LONG_NS, Lane};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The time that a batch should take: as a rule, and at most.
const USUAL_NS: u64 = 500_000;
const LONGEST_NS: u64 = USUAL_NS * 2;
/// The shortest and longest nap while waiting for work to be done.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 500_000;
/// The longest wait for earlier work before a launch: that work may itself wait for the launch.
const PATIENCE_NS: u64 = 200_000_000;

/// What the end of a batch tells of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    /// The batch before is not done, or much more was launched than can have been done.
    Full,
    /// It is done, or another session uses the device as well, which tells nothing.
    Idle,
    /// It is done, and most of the time was not used.
    Empty,
}

/// The time that a batch should take.
#[derive(Debug)]
pub(super) struct Span(AtomicU64);

impl Default for Span {
    fn default() -> Self {
        Self(AtomicU64::new(USUAL_NS))
    }
}

impl Span {
    /// The next one, in nanoseconds. To be called by the lane's thread.
    fn after(&self, queue: Queue) -> u64 {
        let ns = match queue {
            Queue::Empty => (self.0.load(Relaxed) * 2).min(LONGEST_NS),
            Queue::Full | Queue::Idle => USUAL_NS,
        };
        self.0.store(ns, Relaxed);
        ns
    }
}

impl Lane {
    /// Waits until so little is outstanding that the next batch may be launched, and learns from it
    /// how large that should be.
    pub(super) fn pace(&self, batch: u32, gate: &Gate) {
        let recorded = self.recorded.load(Relaxed);
        let launch_ns = self.launch_ns.load(Relaxed);
        let alone = batch == 1 && launch_ns > LONG_NS;
        let awaited = if alone { recorded } else { recorded.saturating_sub(1) };
        let begun = clock::now();
        let progress = gate.progress();
        let waiting = self.has_unfinished_waits();
        let usual = PATIENCE_NS.max(launch_ns.saturating_mul(2));
        let patience = if waiting {
            let outstanding = self.outstanding_ns().max(launch_ns);
            gate.stall().patience(begun, usual, outstanding)
        } else {
            usual
        };
        let (mut now, mut unfinished_at) = (begun, begun);
        let waits = self.had_waits_since(recorded.saturating_sub(1).max(1));
        let is_done = || awaited <= self.given_up.load(Relaxed) || self.is_done(awaited);
        let mut done = is_done();
        let was_queued = !done;
        while !done && self.is_enough(gate) {
            if now.saturating_sub(begun) > patience {
                // It may wait for what the program launches next: neither waited for again nor
                // learnt from.
                self.given_up.store(recorded, Relaxed);
                if waiting && gate.progress() == progress {
                    self.waited_in_vain(gate, begun, now);
                }
                self.mark_at(now);
                if alone {
                    // It was waited for by itself, and in vain: longer waits would help no more.
                    self.launch_ns.store(0, Relaxed);
                } else if !waits {
                    self.launch_ns.fetch_max(patience / u64::from(batch.max(1)), Relaxed);
                }
                return;
            }
            unfinished_at = now;
            // Close to when it should be done, so that the device does not idle for a nap's length.
            let expected = self.mark.load(Relaxed) + launch_ns.saturating_mul(u64::from(batch));
            clock::sleep((expected.saturating_sub(now) / 2).clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS));
            done = is_done();
            now = clock::now();
        }
        let waited = now != begun;
        let (took, used) = self.mark_at(now);
        if waited && !waits {
            self.launch_ns.store(took / u64::from(batch.max(1)), Relaxed);
        }
        let queue = match was_queued {
            _ if gate.is_shared() => Queue::Idle,
            true => Queue::Full,
            false if used / 5 > took / 4 => Queue::Full,
            false if used < took / 2 => Queue::Empty,
            false => Queue::Idle,
        };
        let busy_ns = if waits {
            // In one of these batches: for how much of the time is not known.
            0
        } else if alone && was_queued {
            // What was waited for by itself was done at some time between the last two looks.
            unfinished_at.midpoint(now) - begun
        } else if !alone && (was_queued || queue == Queue::Full) {
            // The batch before was queued when this one was begun, and was not done when it was full.
            took
        } else {
            0
        };
        self.backlogged_ns.store(self.backlogged_ns.load(Relaxed) + busy_ns, Release);
        let fitting = u64::from(batch) * self.span.after(queue) / took;
        self.resize(u32::try_from(fitting).unwrap_or(u32::MAX).min(batch.saturating_mul(2)));
        self.plan_sample(now, gate);
    }

    /// The same where the gate is in the stream: nobody waits, and only what was queued while the gate was open
    /// counts.
    pub(super) fn pace_in_stream(&self, batch: u32, gate: &Gate) {
        let recorded = self.recorded.load(Relaxed);
        let queued = !self.is_done(recorded.saturating_sub(1));
        let waits = self.had_waits_since(recorded.saturating_sub(1).max(1));
        let now = clock::now();
        let (took, used) = self.mark_at(now);
        let queue = match queued {
            _ if gate.is_shared() => Queue::Idle,
            true => Queue::Full,
            false if used / 5 > took / 4 => Queue::Full,
            false if used < took / 2 => Queue::Empty,
            false => Queue::Idle,
        };
        let is_open = gate.lease() == Some(self.entered.load(Relaxed));
        if is_open && queued && !waits {
            self.backlogged_ns.store(self.backlogged_ns.load(Relaxed) + took, Release);
        }
        let fitting = u64::from(batch) * 2 * self.span.after(queue) / took;
        let most = self.most_launches(gate).min(batch.saturating_mul(2));
        self.resize(u32::try_from(fitting).unwrap_or(u32::MAX).min(most));
        self.plan_sample(now, gate);
    }

    /// A batch ends: the time since the one before did, and the estimated nanoseconds launched in it.
    fn mark_at(&self, now: u64) -> (u64, u64) {
        let launched = self.count.launched_ns.load(Relaxed);
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

    #[test]
    fn batches_become_longer_where_there_is_nothing_to_see() {
        let span = Span::default();
        assert_eq!(span.after(Queue::Idle), USUAL_NS);
        assert_eq!((0..5).map(|_| span.after(Queue::Empty)).last(), Some(LONGEST_NS));
        assert_eq!(span.after(Queue::Full), USUAL_NS);
    }
}
