//! A lane as the governor sees it: how much has been launched, whether it is done, and the end of its stream, context
//! or thread.

use super::super::Gate;
use super::super::behind::Behind;
use super::super::fast_path::FAST_PATH;
use super::super::{clock, driver_calls, is_capturing, within};
use super::in_stream::InStream;
use super::order::Order;
use super::turnstile::Turnstile;
use super::{AT_ONCE, CLOSED, Lane};
use crate::exit_guard::Visits;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use driver::cuda::{CuResult, STREAM_LEGACY, STREAM_PER_THREAD, Stream};
use limiter_core::Totals;
use std::sync::Arc;

/// The fate of a lane's context and thread.
#[derive(Default)]
pub(super) struct Life {
    /// Whether the context is about to be destroyed, and whether it is gone, and the events with it.
    ending: AtomicBool,
    lost: AtomicBool,
    /// Whether the thread has ended, so that nobody launches in the lane any more.
    abandoned: AtomicBool,
}

impl Life {
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Release);
    }
}

impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lane")
            .field("stream", &self.stream)
            .field("recorded", &self.batches.recorded())
            .field("done", &self.batches.done())
            .field("begun", &self.in_stream().map(|own| self.begun(own)))
            .field("uncovered", &self.count.uncovered)
            .field("launching", &self.calls.launching)
            .field("calling", &(self.calls.since.load(Relaxed) != 0))
            .field("holds_back", &self.sampling.hold.is_under_way())
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Since when the lane has always had work under way, as far as is known (ns): since the thread ended the oldest
    /// batch that is not done. Launches that no batch covers began by the last check, at `looked`, or about halfway
    /// from there to now. `None`: there is no work. Called by the governor, which may be in the driver.
    pub(in crate::compute) fn busy_since(&self, governors: &Visits, looked: u64) -> Option<u64> {
        let activity = self.activity();
        let goes_on = self.probes.looked_at.swap(activity, Relaxed) != activity;
        let covered = self.count.uncovered.load(Acquire) == 0 || self.pace.is_closed();
        if covered && self.batches.done() >= self.batches.recorded() || self.life.is_lost() {
            return None;
        }
        let _pin = governors.try_enter()?;
        if let Some(own) = self.in_stream() {
            let _ = self.see_done(own);
        } else {
            within(self.context, || self.see_progress())?;
        }
        let (done, recorded) = (self.batches.done(), self.batches.recorded());
        let since = if done < recorded {
            self.batch(done + 1).at.load(Relaxed)
        } else if covered || self.has_idle_tail(activity) != Some(false) {
            return None;
        } else if goes_on {
            looked.midpoint(clock::now())
        } else {
            looked
        };
        (!self.may_wait()).then_some(since)
    }

    /// Requests a queue probe from the thread's next launch. Called by the governor.
    pub(in crate::compute) fn ask(&self) {
        self.probes.looks.ask();
        self.count.stop.store(AT_ONCE, Relaxed);
    }

    /// Time (ns) for which work was always queued, since the last call. Called by the governor.
    pub(in crate::compute) fn take_backlogged_ns(&self) -> u64 {
        let now = self.pace.backlog_ns.load(Acquire);
        now.saturating_sub(self.pace.told_ns.swap(now, Relaxed))
    }

    /// Sums over the lane's launches.
    pub(in crate::compute) fn totals(&self) -> Totals {
        // Held work counts as launched when it begins.
        let (launched_ns, outstanding_ns) = match self.in_stream() {
            Some(own) => self.begun_ns(own),
            None => (self.count.launched_ns.load(Relaxed), self.outstanding_ns()),
        };
        Totals {
            launched_ns,
            outstanding_ns,
            backlogged_ns: 0,
            completed: self.done_launches().0,
            unknown: !self.life.is_lost()
                && (self.has_unknown() || self.calls.since.load(Acquire) != 0),
        }
    }

    /// The most launches that may not be done.
    pub(in crate::compute) fn under_way(&self) -> u64 {
        if self.is_in_stream() {
            return 0;
        }
        let launches = |batch: u64| self.batch(batch).launches.load(Relaxed);
        let covered = launches(self.batches.recorded());
        let done = launches(self.batches.done());
        covered.saturating_sub(done) + u64::from(self.count.uncovered.load(Acquire))
    }

    /// Number of launches that are done, and their estimated nanoseconds.
    pub(in crate::compute) fn done_launches(&self) -> (u64, u64) {
        let done = self.in_stream().map_or_else(|| self.batches.done(), |own| self.see_done(own));
        (self.launches_by(done), self.launched_by(done))
    }

    /// Whether a launch may be on its way to the driver; it is counted once it is there.
    pub(in crate::compute) fn is_launching(&self) -> bool {
        self.calls.launching.load(SeqCst)
    }

    /// A number that changes whenever work is seen to be done.
    pub(in crate::compute) fn progress(&self) -> u64 {
        self.batches.done()
    }

    /// A number that changes whenever the stream is seen to have passed its gate.
    pub(in crate::compute) fn has_begun(&self) -> u64 {
        self.in_stream().map_or(0, |own| self.begun(own))
    }

    /// A number that changes whenever something is launched.
    pub(in crate::compute) fn activity(&self) -> u64 {
        (self.batches.recorded() << 32).wrapping_add(u64::from(self.count.uncovered.load(Acquire)))
    }

    /// Whether all launched work is done, or all that has begun if work is held in the stream. Called by the governor,
    /// pinned.
    pub(in crate::compute) fn is_drained(&self, gate: &Gate) -> bool {
        if let Some(is_drained) = self.is_drained_behind(gate, true) {
            return is_drained;
        }
        if self.calls.since.load(Acquire) != 0 || self.is_launching() {
            return false;
        }
        let (activity, recorded) = (self.activity(), self.batches.recorded());
        // The lane's words are enough. A context that is about to be destroyed waits for held work, and cannot be
        // entered.
        if self.in_stream().is_some_and(|own| self.see_done(own) < recorded) {
            return false;
        }
        let uncovered = self.count.uncovered.load(Acquire) > 0 && !self.pace.is_closed();
        if self.batches.done() >= recorded && !uncovered {
            return true;
        }
        let asked = within(self.context, || {
            self.see_progress();
            self.batches.done() >= recorded
                && (!uncovered || self.has_idle_stream(activity).unwrap_or(true))
        });
        // A context that cannot be entered is gone.
        let drained = asked.unwrap_or_else(|| {
            self.context_ends(self.context);
            true
        });
        if drained {
            self.calls.unknown_until.fetch_min(self.batches.done(), Relaxed);
        }
        drained
    }

    /// Whether the driver reports the stream as idle, for launches that no batch covers because their thread is busy
    /// elsewhere. Nothing is enqueued for it: in the legacy stream an event would make the blocking streams wait for
    /// each other. `activity`: the lane's activity before the call. `None`: the driver cannot be asked.
    pub(super) fn has_idle_stream(&self, activity: u64) -> Option<bool> {
        // The calling thread cannot name another thread's default stream; the uncovered work there is less than a
        // batch. Captured work does not run.
        if self.stream == STREAM_PER_THREAD || is_capturing(self.stream) {
            return None;
        }
        let is_idle = driver_calls::stream_query(self.stream as Stream) != CuResult::NOT_READY;
        if let Some(own) = self.in_stream().filter(|_| is_idle) {
            own.was_idle(activity);
        }
        Some(is_idle)
    }

    /// Whether the driver reports the work that no batch covers as done; `None`: it cannot tell. The legacy stream is
    /// busy while any other stream is, which may wait for something outside of the device.
    pub(super) fn has_idle_tail(&self, activity: u64) -> Option<bool> {
        if self.may_wait() || self.stream == STREAM_LEGACY && FAST_PATH.has_outside() {
            return None;
        }
        within(self.context, || self.has_idle_stream(activity)).unwrap_or(Some(true))
    }

    /// Like [`Self::is_drained`], without asking the driver, at a closed gate.
    pub(in crate::compute) fn is_seen_drained(&self, gate: &Gate) -> bool {
        if let Some(is_drained) = self.is_drained_behind(gate, false) {
            return is_drained;
        }
        let covered = self.count.uncovered.load(Acquire) == 0;
        let done = covered && self.batches.done() >= self.batches.recorded();
        done && self.calls.since.load(Acquire) == 0 && !self.is_launching()
    }

    /// Whether nothing of the lane is in its stream any more, so that its words may be reused. Called by the governor,
    /// pinned.
    pub(in crate::compute) fn is_over(&self, gate: &Gate) -> bool {
        let has_passed = |own| self.life.is_lost() || self.has_passed(own);
        self.is_drained(gate) && self.in_stream().is_none_or(has_passed) && self.leaves_stream()
    }

    fn close(&self) {
        self.pace.close();
        self.count.stop.store(CLOSED, Relaxed);
    }

    /// Called before a context is destroyed.
    pub(in crate::compute) fn context_ends(&self, context: usize) {
        if self.context == context {
            self.close();
            self.life.ending.store(true, Release);
            // With a gate in the stream, held work has to be released first: the call waits for it.
            if !self.is_in_stream() {
                self.life.lost.store(true, Release);
            }
        }
    }

    /// Called after a context has been destroyed.
    pub(in crate::compute) fn context_ended(&self, context: usize) {
        if self.context == context {
            self.life.lost.store(true, Release);
        }
    }

    /// Called if the context was not destroyed after all. The lane stays closed; its events are valid.
    pub(in crate::compute) fn context_stays(&self, context: usize) {
        if self.context == context {
            self.life.lost.store(false, Release);
            self.life.ending.store(false, Release);
        }
    }

    /// Called before a stream is destroyed. Work in it will still be done.
    pub(in crate::compute) fn stream_ends(&self, stream: usize) {
        if self.stream == stream {
            self.close();
        }
    }

    /// Whether the lane's thread has ended.
    pub(in crate::compute) fn is_abandoned(&self) -> bool {
        self.life.abandoned.load(Acquire)
    }

    /// Whether the lane's stream, with its gate in it, and a stream of this order implicitly wait for each other.
    pub(in crate::compute) fn waits_by_itself_for(&self, order: Order, context: usize) -> bool {
        let is_gone = self.pace.is_closed();
        let own = self.in_stream().filter(|_| self.context == context && !is_gone);
        own.is_some_and(|own| own.order().waits_for(order))
    }

    /// The gate in the stream that the next launch will be behind, if any.
    pub(in crate::compute) fn is_behind(&self) -> Option<Behind> {
        self.turnstile()?.is_behind()
    }

    pub(in crate::compute) const fn stream(&self) -> usize {
        self.stream
    }

    pub(in crate::compute) const fn context(&self) -> usize {
        self.context
    }

    /// The turnstile of the lane's stream, if its gate is in the stream.
    pub(in crate::compute) fn turnstile(&self) -> Option<&Arc<Turnstile>> {
        self.in_stream().map(InStream::turnstile)
    }

    /// The turnstile, if this is the lane's stream and other threads can name it too.
    pub(in crate::compute) fn turnstile_of(
        &self,
        stream: usize,
        context: usize,
    ) -> Option<&Arc<Turnstile>> {
        // The handle of a destroyed stream may have been reused.
        let same = self.stream == stream && self.context == context && !self.pace.is_closed();
        self.turnstile().filter(|_| same && stream != STREAM_PER_THREAD && !self.life.is_lost())
    }

    /// Destroys the events. Called by the governor, pinned, for an abandoned lane.
    pub(in crate::compute) fn destroy_events(&self) {
        self.sampling.hold.give_back();
        if let Some(own) = &self.in_stream {
            own.give_back();
        }
        if !self.life.is_lost() && !self.life.ending.load(Acquire) {
            for event in self.batches.iter().map(|batch| batch.event.load(Relaxed)) {
                if !event.is_null() {
                    let _ = within(self.context, || driver_calls::event_destroy(event));
                }
            }
            if let Ok(mut sampler) = self.sampling.sampler.try_lock() {
                let _ = within(self.context, || sampler.destroy_events());
            }
        }
    }
}
