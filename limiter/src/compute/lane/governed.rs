//! A lane as the governor sees it: how much has been launched, and whether it is done.

use super::super::Gate;
use super::super::usage::Totals;
use super::super::{driver_calls, is_capturing, within};
use super::{AT_ONCE, CLOSED, LONG_NS, Lane};
use crate::exit_guard::Visits;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use driver::cuda::{CuResult, STREAM_LEGACY, STREAM_PER_THREAD, Stream};

impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lane")
            .field("stream", &self.stream)
            .field("recorded", &self.recorded)
            .field("done", &self.done)
            .field("begun", &self.in_stream().map(|own| self.begun(own)))
            .field("uncovered", &self.count.uncovered)
            .field("launching", &self.launching)
            .field("calling", &(self.calling_since.load(Relaxed) != 0))
            .field("holds_back", &self.holds_back())
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Whether the lane had work under way ever since this was last asked, as far as can be told: work
    /// that was launched before then is not done yet. To be asked by the governor.
    pub(in crate::compute) fn take_busy(&self, governors: &Visits) -> bool {
        let before = self.looked_at.swap(self.recorded.load(Acquire), Relaxed);
        if let Some(own) = self.in_stream() {
            let awaited = before > self.see_done(own) && !self.lost.load(Acquire);
            return awaited && !self.may_wait();
        }
        let awaited = before > self.given_up.load(Relaxed).max(self.done.load(Acquire));
        let may_look = |_: &_| awaited && !self.lost.load(Acquire);
        let Some(_pin) = governors.try_enter().filter(may_look) else { return false };
        within(self.context, || !self.is_done(before)).unwrap_or(false) && !self.may_wait()
    }

    /// Has the thread's next launch see whether there still is work. To be called by the governor.
    pub(in crate::compute) fn ask(&self) {
        self.looks.ask();
        self.count.stop.store(AT_ONCE, Relaxed);
    }

    /// Beside another session work may be waiting for that one's: nothing is asked, and no answer counts.
    pub(in crate::compute) fn forget_looks(&self) {
        self.looks.forget_all();
    }

    /// A new lease: what was asked under the last one has no answer.
    pub(in crate::compute) fn forget_question(&self) {
        self.looks.forget();
    }

    /// Whether there was work each time that this was asked, lately.
    pub(in crate::compute) fn found_work(&self) -> bool {
        self.looks.found_work()
    }

    /// Time for which work was always queued, since this was last asked. To be asked by the governor.
    pub(in crate::compute) fn take_backlogged_ns(&self) -> u64 {
        let now = self.backlogged_ns.load(Acquire);
        now.saturating_sub(self.backlogged_told_ns.swap(now, Relaxed))
    }

    /// What the lane has launched.
    pub(in crate::compute) fn totals(&self) -> Totals {
        // What is held counts as launched when it begins.
        let (launched_ns, outstanding_ns) = match self.in_stream() {
            Some(own) => self.begun_ns(own),
            None => (self.count.launched_ns.load(Relaxed), self.outstanding_ns()),
        };
        Totals {
            launched_ns,
            outstanding_ns,
            backlogged_ns: 0,
            unknown: !self.lost.load(Relaxed)
                && (self.unknown_until.load(Acquire) > self.done.load(Acquire)
                    || self.calling_since.load(Acquire) != 0),
        }
    }

    /// How many launches may not have been done yet, about.
    pub(in crate::compute) fn under_way(&self) -> u64 {
        if self.is_in_stream() {
            return 0;
        }
        let batches = self.recorded.load(Acquire).saturating_sub(self.done.load(Acquire));
        let batch = u64::from(self.batch.load(Relaxed).max(1));
        u64::from(self.count.uncovered.load(Acquire)).saturating_add(batches.saturating_mul(batch))
    }

    /// The last so many launches of a lease took so much longer than expected that they are not what was known
    /// of the work: if they are long, the next ones are to be waited for, each by itself.
    pub(in crate::compute) fn took(&self, launches: u64, expected_ns: u64, ns: u64) {
        const FAR_OFF: u64 = 4;
        let each = ns / launches.max(1);
        if each > LONG_NS && ns / FAR_OFF > expected_ns {
            self.launch_ns.fetch_max(each, Relaxed);
            self.resize(1);
        }
    }

    /// Whether something may be on its way to the driver: that is counted once it is there.
    pub(in crate::compute) fn is_launching(&self) -> bool {
        self.launching.load(SeqCst)
    }

    /// A number that changes whenever something is seen to be done.
    pub(in crate::compute) fn progress(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// A number that changes whenever something is launched.
    pub(in crate::compute) fn activity(&self) -> u64 {
        (self.recorded.load(Acquire) << 32)
            .wrapping_add(u64::from(self.count.uncovered.load(Acquire)))
    }

    /// Whether everything launched has been done. Launches that no event covers yet, because their
    /// thread is busy elsewhere, get the governor's event. To be called by the governor, pinned.
    pub(in crate::compute) fn is_drained(&self, gate: &Gate) -> bool {
        if self.lost.load(Acquire) {
            return true;
        }
        if let Some(own) = self.in_stream() {
            return self.is_drained_in_stream(own, gate);
        }
        if self.calling_since.load(Acquire) != 0 || self.is_launching() {
            return false;
        }
        let recorded = self.recorded.load(Acquire);
        let activity = self.activity();
        let uncovered =
            self.count.uncovered.load(Acquire) > 0 && self.batch.load(Relaxed) != CLOSED;
        if self.done.load(Acquire) >= recorded && !uncovered {
            return true;
        }
        let asked = within(self.context, || {
            if !self.is_done(recorded) {
                return false;
            }
            // The calling thread cannot name another thread's default stream; what is in there and not
            // covered is less than a batch.
            if !uncovered || self.stream == STREAM_PER_THREAD {
                return true;
            }
            // An event in the legacy stream would tie the blocking streams together.
            if self.stream == STREAM_LEGACY {
                return is_capturing(self.stream)
                    || driver_calls::stream_query(self.stream as Stream) != CuResult::NOT_READY;
            }
            let event = self.events[2].load(Relaxed);
            if self.governors.load(Relaxed) != activity {
                self.governors.store(activity, Relaxed);
                // Work that is being captured does not run.
                return is_capturing(self.stream)
                    || !driver_calls::event_record(event, self.stream as Stream).is_ok();
            }
            driver_calls::event_query(event) != CuResult::NOT_READY
        });
        // A context that cannot be entered is gone.
        let drained = asked.unwrap_or_else(|| {
            self.context_ends(self.context);
            true
        });
        if drained {
            self.unknown_until.fetch_min(self.done.load(Acquire), Relaxed);
        }
        drained
    }

    fn close(&self) {
        self.batch.store(CLOSED, Relaxed);
        self.count.stop.store(CLOSED, Relaxed);
    }

    /// A context is going away.
    pub(in crate::compute) fn context_ends(&self, context: usize) {
        if self.context == context {
            self.close();
            self.ending.store(true, Release);
            // What is held has to be let through first: the call waits for it.
            if !self.is_in_stream() {
                self.lost.store(true, Release);
            }
        }
    }

    /// It has gone.
    pub(in crate::compute) fn context_ended(&self, context: usize) {
        if self.context == context {
            self.lost.store(true, Release);
        }
    }

    /// The context did not go away after all. The lane stays closed; its events are good.
    pub(in crate::compute) fn context_stays(&self, context: usize) {
        if self.context == context {
            self.lost.store(false, Release);
            self.ending.store(false, Release);
        }
    }

    /// A stream is going away; what is in it will still be done.
    pub(in crate::compute) fn stream_ends(&self, stream: usize) {
        if self.stream == stream {
            self.close();
        }
    }

    /// Whether its thread has ended.
    pub(in crate::compute) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire)
    }

    /// Gives the events back. To be called by the governor, pinned, for an abandoned lane.
    pub(in crate::compute) fn destroy_events(&self) {
        self.hold.give_back();
        if let Some(own) = &self.in_stream {
            own.give_back();
        }
        if !self.lost.load(Acquire) && !self.ending.load(Acquire) {
            for event in &self.events {
                let _ = within(self.context, || driver_calls::event_destroy(event.load(Relaxed)));
            }
            if let Ok(mut sampler) = self.sampler.try_lock() {
                let _ = within(self.context, || sampler.destroy_events());
            }
        }
    }
}
