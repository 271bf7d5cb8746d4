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

/// The time that a batch should take: to begin with, at least and at most.
const USUAL_NS: u64 = 500_000;
const SHORTEST_NS: u64 = USUAL_NS / 2;
const LONGEST_NS: u64 = USUAL_NS * 2;
/// So many batches in a row whose queue would have been long enough for twice the time.
const DEEP: u32 = 64;
/// What weighs as much as a batch that does not show what it might: so many that do. How much of that is
/// reason for shorter ones, and how much for no longer trying, with the shortest.
const MISSED: u32 = 8;
const MISSED_TWICE: u32 = 2 * MISSED - 2;
const MISSED_OFTEN: u32 = 8 * MISSED;
/// For how many batches that is then not tried again: first, and at most.
const FIRST_REST: u32 = 512;
const LONGEST_REST: u32 = 16 * FIRST_REST;
/// The shortest and longest nap while waiting for work to be done.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 500_000;
/// The longest wait for earlier work before a launch: that work may itself wait for the launch.
const PATIENCE_NS: u64 = 200_000_000;

/// What the end of a batch tells of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    /// Nothing: another session uses the device as well.
    Shared,
    /// Two batches before this one are not done.
    Deep,
    /// The one before is not, or much more was launched than can have been done.
    Full,
    /// It is done, although most of the time was used, and maybe all of it.
    Short,
    /// It is done, and part of the time was not used.
    Idle,
    /// It is done, and most of the time was not used.
    Empty,
}

/// The time that a batch should take.
#[derive(Debug)]
pub(super) struct Span {
    ns: u64,
    /// How many of the latest batches were deep in the queue.
    deep: u32,
    missed: u32,
    rest: u32,
    next_rest: u32,
}

impl Default for Span {
    fn default() -> Self {
        Self { ns: USUAL_NS, deep: 0, missed: 0, rest: 0, next_rest: FIRST_REST }
    }
}

impl Span {
    /// The next one, in nanoseconds.
    fn after(&mut self, queue: Queue) -> u64 {
        self.rest = self.rest.saturating_sub(1);
        self.deep = if queue == Queue::Deep { self.deep + 1 } else { 0 };
        match queue {
            Queue::Shared => *self = Self::default(),
            Queue::Deep if self.deep >= DEEP && self.ns < USUAL_NS => self.set(self.ns * 2),
            Queue::Deep | Queue::Full => self.missed = self.missed.saturating_sub(1),
            Queue::Short if self.ns > USUAL_NS => self.set(USUAL_NS),
            Queue::Empty if self.ns >= USUAL_NS => self.set((self.ns * 2).min(LONGEST_NS)),
            Queue::Short | Queue::Idle | Queue::Empty => self.miss(queue == Queue::Short),
        }
        self.ns
    }

    fn set(&mut self, ns: u64) {
        (self.ns, self.deep, self.missed) = (ns, 0, 0);
    }

    /// `may_show`: a shorter one might have shown more.
    fn miss(&mut self, may_show: bool) {
        if self.rest > 0 || (self.ns >= USUAL_NS && !may_show) {
            return;
        }
        self.missed += MISSED;
        if may_show && self.ns > SHORTEST_NS && self.missed >= MISSED_TWICE {
            self.set(self.ns / 2);
        } else if self.missed >= MISSED_OFTEN {
            let next_rest = (self.next_rest * 2).min(LONGEST_REST);
            *self = Self { rest: self.next_rest, next_rest, ..Self::default() };
        }
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
        let (mut now, mut unfinished_at) = (begun, begun);
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
            unfinished_at = now;
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
            false if used / 5 > took / 4 => Queue::Full,
            false if used < took && (is_most(used, took) || gate.may_be_full()) => Queue::Short,
            false if used < took / 2 => Queue::Empty,
            false => Queue::Idle,
        };
        let busy_ns = if alone && was_queued {
            // What was waited for by itself was done at some time between the last two looks.
            unfinished_at.midpoint(now) - begun
        } else if !alone && (was_queued || queue == Queue::Full) {
            // The batch before was queued when this one was begun, and was not done when it was full.
            took
        } else {
            0
        };
        self.backlogged_ns.store(self.backlogged_ns.load(Relaxed) + busy_ns, Release);
        let span = self.span.try_lock().map_or(USUAL_NS, |mut span| span.after(queue));
        let fitting = u64::from(batch) * span / took;
        self.resize(u32::try_from(fitting).unwrap_or(u32::MAX).min(batch.saturating_mul(2)));
        self.plan_sample(now);
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
        for queue_ns in [260_000, 480_000, 700_000, 5_000_000] {
            let mut span = Span::default();
            let mut ns = USUAL_NS;
            let mut missed = 0;
            for _ in 0..10_000 {
                let queue = dense(ns, queue_ns);
                missed += u32::from(queue == Queue::Short);
                ns = span.after(queue);
                assert!(ns <= USUAL_NS);
            }
            assert!(missed <= 10, "{queue_ns}: {missed}");
        }
    }

    #[test]
    fn they_become_longer_where_there_is_nothing_to_see() {
        let mut span = Span::default();
        assert_eq!((0..5).map(|_| span.after(Queue::Empty)).last(), Some(LONGEST_NS));
        assert_eq!(span.after(Queue::Idle), LONGEST_NS);
        assert_eq!(span.after(Queue::Short), USUAL_NS);
        // One alone is chance.
        assert_eq!(span.after(Queue::Short), USUAL_NS);
        assert_eq!((0..3).map(|_| span.after(Queue::Short)).last(), Some(SHORTEST_NS));
        assert_eq!(span.after(Queue::Shared), USUAL_NS);
        // A long queue is no reason for longer ones than usual.
        assert_eq!((0..500).map(|_| span.after(Queue::Deep)).last(), Some(USUAL_NS));
    }

    /// A program that uses most of the device's time and never queues, or only now and then, costs no more
    /// events than others.
    #[test]
    fn short_ones_that_show_nothing_are_rare() {
        for full_every in [2, 5, 1_000_000] {
            let mut span = Span::default();
            let (mut time, mut batches) = (0, 0);
            for round in 1..20_000 {
                time +=
                    span.after(if round % full_every == 0 { Queue::Full } else { Queue::Short });
                batches += 1;
            }
            let mean = time / batches;
            assert!(mean > USUAL_NS * 9 / 10, "{full_every}: {mean}");
        }
    }
}
