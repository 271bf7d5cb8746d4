//! A lane: the launches of one thread into one stream. The launch paths of [`super`] count launches here; the governor
//! reads how far they are.
//!
//! Only its thread launches in a lane, so counting needs no read-modify-write. Every batch ends with an event, or with
//! a number that the stream writes ([`in_stream`]). The size of a batch follows the program's pace ([`pace`]), about
//! two per millisecond. The events form a ring; progress is found by querying the oldest event that is not known to
//! have happened. For launches since the last event, while the thread is busy elsewhere, the governor queries the
//! stream.
//!
//! Each launch adds its estimate to the lane's launched time. Some launches are sampled ([`samples`]). How much may be
//! outstanding is decided by the budget ([`budget`]).

mod batches;
mod budget;
mod governed;
mod in_stream;
mod order;
mod pace;
mod samples;
mod thread;
mod turnstile;

use super::budget::Taken;
use super::looks::Looks;
use super::sampler::StartedWait;
use super::waits::StreamWaits;
use super::{Gate, clock, driver_calls, undisturbing, within};
use batches::{BATCHES, Batch, Batches};
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crossbeam::utils::CachePadded;
use driver::cuda::{CuResult, EVENT_DISABLE_TIMING, Event, Stream};
use governed::Life;
use in_stream::InStream;
use pace::Pace;
use samples::Sampling;

pub(super) use budget::Patience;
pub(super) use in_stream::{Ahead, BUSY_NAP_NS, LaunchedAhead};
pub(super) use order::Order;
pub(super) use thread::{
    context_of, enter, estimate_of, gate_of, is_default, known, known_by_any_way, known_way,
    of_this_thread, pass,
};
pub(super) use turnstile::Turnstile;

/// Entries of the driver's queue that may be taken: a launch takes one. An H200 blocks the thread at 1,020, and then
/// every other thread, too.
const MOST_ENTRIES: u64 = 900;
/// The largest batch, in launches.
const MAX_BATCH: u32 = 512;
/// A longer call may have waited for its work. The governor counts the time around a check during such a call as busy,
/// which is as often too much as too little.
const WAITED_NS: u64 = 50_000;
/// A batch size that no launch fits into: the lane's stream or context is gone.
const CLOSED: u32 = 0;
/// Value of `stop` that sends the thread's next launch to the slow path.
const AT_ONCE: u32 = 0;
/// No activity seen by the governor yet.
const NEVER: u64 = u64::MAX;

/// The counters that each launch updates.
#[derive(Default)]
struct Count {
    /// Launches since the last event.
    uncovered: AtomicU32,
    /// The launch that has to take the slow path: the last of the batch, or one to be sampled.
    stop: AtomicU32,
    /// Estimated nanoseconds of all launches, and the limit by what was taken of the budget.
    launched_ns: AtomicU64,
    most_ns: AtomicU64,
}

/// The launches of one thread into one stream.
pub(crate) struct Lane {
    /// In a cache line of its own: every launch counts here.
    count: CachePadded<Count>,
    stream: usize,
    context: usize,
    life: Life,
    batches: Batches,
    pace: Pace,
    /// The lane's gate in its stream, if it can be there.
    in_stream: Option<InStream>,
    waits: StreamWaits,
    pub(super) sampling: Sampling,
    /// What the lane has taken of the process's budget.
    taken: Taken,
    pub(super) probes: Probes,
    calls: Calls,
}

/// Observations and requests of the governor.
pub(super) struct Probes {
    /// [`Lane::activity`] when the governor last returned unneeded budget.
    idle_since: AtomicU64,
    /// [`Lane::activity`] when the governor last checked for work.
    looked_at: AtomicU64,
    pub(super) looks: Looks,
}

/// The state of the thread's calls.
#[derive(Default)]
struct Calls {
    /// The batch that covers the last launch of unknown duration.
    unknown_until: AtomicU64,
    /// Since when (ns) a call that may wait for its work has been under way; 0: none is.
    since: AtomicU64,
    /// Whether an uncounted launch is under way, or about to be.
    launching: AtomicBool,
    /// The lease in which the thread last launched.
    entered: AtomicU32,
}

/// See [`Lane::launch_begins`].
pub(super) struct Launching<'lane>(&'lane AtomicBool);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Lane {
    /// For a stream of the current context.
    fn new(stream: usize, context: usize, gate: &Gate) -> Self {
        let in_stream = undisturbing(|| {
            let order = Order::of(stream)?;
            let (own, turnstile) = gate.stream_gate_for(stream, context, order)?;
            InStream::new(own, turnstile, context, order)
        });
        Self {
            count: CachePadded::new(Count { stop: AtomicU32::new(1), ..Count::default() }),
            stream,
            context,
            life: Life::default(),
            batches: Batches::new(),
            pace: Pace::new(),
            in_stream,
            waits: StreamWaits::new(stream, context),
            sampling: Sampling::default(),
            taken: Taken::default(),
            probes: Probes {
                idle_since: AtomicU64::new(NEVER),
                looked_at: AtomicU64::new(NEVER),
                looks: Looks::default(),
            },
            calls: Calls::default(),
        }
    }

    /// Counts a launch of `ns` estimated nanoseconds; `false`: the launch has to take the slow path, and nothing was
    /// counted.
    #[inline]
    fn count_launch(&self, ns: u64) -> bool {
        let Count { uncovered, stop, launched_ns, most_ns } = &*self.count;
        let count = uncovered.load(Relaxed).wrapping_add(1);
        let launched = launched_ns.load(Relaxed).wrapping_add(ns);
        if count >= stop.load(Relaxed) || launched >= most_ns.load(Relaxed) {
            return false;
        }
        launched_ns.store(launched, Relaxed);
        uncovered.store(count, Relaxed);
        true
    }

    fn batch(&self, number: u64) -> &Batch {
        self.batches.get(number)
    }

    /// Estimated nanoseconds of all launches up to the end of one of the latest batches.
    #[inline]
    fn covered_by(&self, number: u64) -> u64 {
        self.batch(number).covered_ns.load(Relaxed)
    }

    /// Estimated nanoseconds of the launches that are not known to be done.
    fn outstanding_ns(&self) -> u64 {
        let done = self.in_stream().map_or_else(|| self.batches.done(), |own| self.see_done(own));
        self.count.launched_ns.load(Relaxed).saturating_sub(self.launched_by(done))
    }

    /// Whether work under way may wait for something outside of the device.
    pub(super) fn may_wait(&self) -> bool {
        self.had_waits_since(self.batches.done() + 1)
    }

    /// Whether such a wait may be in batch `number`, or later.
    fn had_waits_since(&self, number: u64) -> bool {
        !self.waits.of.hold_nothing_up() && self.waits.are_since(number)
    }

    /// Whether such a wait is in the work under way, however short the waits have been.
    pub(super) fn has_unfinished_waits(&self) -> bool {
        self.waits.are_since(self.batches.done() + 1)
    }

    /// Called after a launch has waited in vain behind an unfinished wait. That time is charged, because no other
    /// session could use the device. Called by the lane's thread.
    fn waited_in_vain(&self, gate: &Gate, begun: u64, now: u64) {
        let ns = self.pace.backlog_ns.load(Relaxed) + now.saturating_sub(begun);
        self.pace.backlog_ns.store(ns, Release);
        gate.seen.stall.begin(gate.lanes().progress(), now);
    }

    /// Whether the lane's work may wait for its program's next launches; see [`limiter_core::Stall`].
    pub(super) fn is_stalled(&self, gate: &Gate) -> bool {
        self.has_unfinished_waits() && gate.seen.stall.lasts(|| gate.lanes().progress())
    }

    /// Begins to measure a wait that is about to be put into the stream.
    pub(super) fn start_wait(&self) -> Option<StartedWait> {
        let mut sampler = self.sampling.sampler.try_lock().ok()?;
        undisturbing(|| sampler.start_wait(self.stream as Stream, self.context, self.waits.of))
    }

    /// Ends the measurement once the wait is in the stream.
    pub(super) fn finish_wait(&self, started: StartedWait) {
        if let Ok(mut sampler) = self.sampling.sampler.try_lock() {
            undisturbing(|| sampler.finish_wait(started, self.stream as Stream));
        }
    }

    /// Called before a call that may wait for its work; returns the time (ns).
    pub(super) fn call_begins(&self) -> u64 {
        let now = clock::now();
        self.calls.since.store(now, Release);
        now
    }

    /// Called after such a call; returns whether it waited: it took long, and the stream is empty. The stream must not
    /// be capturing.
    pub(super) fn call_ends(&self, since: u64) -> bool {
        self.calls.since.store(0, Release);
        let is_empty = || driver_calls::stream_query(self.stream as Stream) != CuResult::NOT_READY;
        clock::now().saturating_sub(since) >= WAITED_NS && undisturbing(is_empty)
    }

    /// Announces a launch that [`pass`] does not count. Until the guard is dropped the lane does not count as drained,
    /// because the governor might close the gate without seeing the launch.
    pub(super) fn launch_begins(&self) -> Launching<'_> {
        // Before the thread reads the gate; the governor closes the gate before it reads this.
        self.calls.launching.store(true, SeqCst);
        Launching(&self.calls.launching)
    }

    /// Counts a launch that [`pass`] did not; returns the number of launches since the last event.
    pub(super) fn count(&self, ns: Option<u64>) -> u32 {
        let count = self.count.uncovered.load(Relaxed) + 1;
        let launched = self.count.launched_ns.load(Relaxed).wrapping_add(ns.unwrap_or(0));
        self.count.launched_ns.store(launched, Relaxed);
        if ns.is_none() {
            self.calls.unknown_until.store(self.batches.recorded() + 1, Release);
        }
        self.count.uncovered.store(count, Release);
        count
    }

    /// Called after such a launch: ends the batch if it is full, or if `ends`.
    pub(super) fn go_on(&self, count: u32, ns: Option<u64>, ends: bool, gate: &Gate) {
        let launched = self.count.launched_ns.load(Relaxed);
        let uncovered_ns = launched.wrapping_sub(self.covered_by(self.batches.recorded()));
        let batch = self.pace.batch();
        if count >= batch
            || gate.seen.launch_times.really(uncovered_ns) >= self.batch_ns(gate)
            || ns.is_none()
        {
            if self.cover() {
                self.pace(count, gate);
            } else {
                // Too many batches are not done, so this one grows.
                self.stop_at(count.saturating_add(batch.max(8)));
            }
        } else if ends && self.cover() {
            self.stop_at(batch);
        } else if count >= self.count.stop.load(Relaxed) {
            // Past the launch that was chosen for a sample.
            self.stop_at(batch);
        }
    }

    /// Answers a queue probe, if the governor has requested one. The stream must not be capturing.
    pub(super) fn look_if_asked(&self) {
        if !self.probes.looks.take_question() {
            return;
        }
        self.stop_at(self.pace.planned.load(Relaxed));
        let works = || {
            let not_ready =
                || driver_calls::stream_query(self.stream as Stream) == CuResult::NOT_READY;
            !self.may_wait() && (self.is_seen_to_work() || undisturbing(not_ready))
        };
        self.probes.looks.tell(works());
    }

    fn stop_at(&self, count: u32) {
        self.pace.planned.store(count, Relaxed);
        self.count.stop.store(count, SeqCst);
        // A batch begins with a wait. Another thread may have ended the current one meanwhile.
        if self.in_stream.as_ref().is_some_and(InStream::needs_wait) {
            self.count.stop.store(AT_ONCE, Relaxed);
        }
        // Another thread may have closed the lane meanwhile.
        if self.pace.is_closed() {
            self.count.stop.store(CLOSED, Relaxed);
        }
    }

    /// Ends the batch, full or not; `false`: too many batches are not done. The stream must not be capturing.
    pub(super) fn cover(&self) -> bool {
        undisturbing(|| self.try_to_cover())
    }

    fn try_to_cover(&self) -> bool {
        let is_covered = self.count.uncovered.load(Relaxed) == 0
            && !self.in_stream().is_some_and(InStream::has_wait);
        if self.pace.is_closed() || is_covered {
            return true;
        }
        let recorded = self.batches.recorded();
        let number = recorded + 1;
        let waits = self.waits.of.count();
        let marked = if let Some(own) = self.in_stream() {
            let marked = self.mark(own, number);
            if !marked {
                return false;
            }
            marked
        } else {
            // The place of the oldest batch is needed. If that is not done, the current batch grows, and the governor
            // covers it when the lease ends.
            if !self.is_done(number.saturating_sub(BATCHES as u64)) {
                return false;
            }
            self.record(number)
        };
        if marked {
            let launched = self.count.launched_ns.load(Relaxed);
            let before = self.batch(recorded).launches.load(Relaxed);
            let batch = self.batch(number);
            batch.covered_ns.store(launched, Relaxed);
            batch.at.store(clock::now(), Relaxed);
            batch.launches.store(before + u64::from(self.count.uncovered.load(Relaxed)), Relaxed);
            batch.collectives.store(self.batches.collectives.launched.load(Relaxed), Relaxed);
            self.waits.are_covered_by(number, waits);
            self.batches.end(number);
            // In this order, so that held work is visible at any moment; otherwise the governor would sleep.
            if let Some(own) = self.in_stream() {
                own.is_covered();
            }
            self.count.uncovered.store(0, Release);
        }
        true
    }

    /// Records the event that ends a batch; reuses the event of a batch that is done, if there is one.
    fn record(&self, number: u64) -> bool {
        let stream = self.stream as Stream;
        let spare = self.batches.spare.load(Relaxed).max(number.saturating_sub(BATCHES as u64));
        let event_of = |number| self.batch(number).event.load(Relaxed);
        let is_spare = spare < number && spare <= self.batches.done();
        let event = Some(spare).filter(|_| is_spare).map_or(ptr::null_mut(), event_of);
        let new = if event.is_null() { within(self.context, new_event).flatten() } else { None };
        let Some(event) = new.or((!event.is_null()).then_some(event)) else { return false };
        if !driver_calls::event_record(event, stream).is_ok() {
            if let Some(new) = new {
                let _ = driver_calls::event_destroy(new);
            }
            return false;
        }
        // A reader that asks for the event's previous batch finds a later event, or none; that batch is done.
        if is_spare {
            self.batch(spare).event.store(ptr::null_mut(), Relaxed);
        }
        self.batches.spare.store(spare + u64::from(is_spare), Relaxed);
        self.batch(number).event.store(event, Relaxed);
        true
    }

    /// Whether a batch is done. Asks the driver; an error counts as "yes", because the event's work is gone.
    fn is_done(&self, number: u64) -> bool {
        if self.batches.done() >= number {
            return true;
        }
        if let Some(own) = self.in_stream() {
            return self.see_done(own) >= number;
        }
        let event = self.batch(number).event.load(Relaxed);
        let query = || driver_calls::event_query(event);
        let done = event.is_null() || undisturbing(query) != CuResult::NOT_READY;
        if done {
            let _ = self.batches.are_done_to(number);
        }
        done
    }

    /// Records how far the stream is.
    fn see_progress(&self) {
        let recorded = self.batches.recorded();
        let next = || self.batches.done() + 1;
        if next() > recorded || !self.is_done(next()) || self.is_done(recorded) {
            return;
        }
        while next() <= recorded && self.is_done(next()) {}
    }

    fn resize(&self, batch: u32) {
        let batch = batch.clamp(1, MAX_BATCH);
        self.pace.set_batch(batch);
        self.stop_at(batch);
    }
}

/// Makes an event in the current context.
fn new_event() -> Option<Event> {
    let mut event = ptr::null_mut();
    driver_calls::event_create(&raw mut event, EVENT_DISABLE_TIMING).is_ok().then_some(event)
}
