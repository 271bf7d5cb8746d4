//! A lane: the launches of one thread into one stream.
//!
//! Only its thread launches in a lane, so counting needs no read-modify-write. Every batch ends with an
//! event. Two events alternate, and a batch begins only when the one before the last is done. The size of a
//! batch follows the program's pace ([`pace`]): there are about two events per millisecond, or one if the
//! program leaves the device idle. A third event is the governor's. It covers what the thread has launched
//! since its last event, when the thread is busy elsewhere.
//!
//! Each launch adds its estimate to the lane's launched time. Now and then a launch is sampled.

mod budget;
mod governed;
mod in_stream;
mod pace;
mod thread;

use super::budget::Taken;
use super::estimate::Estimate;
use super::family::Guess;
use super::hold::Hold;
use super::looks::Looks;
use super::sampler::{Place, Sampler, Started, StartedWait};
use super::waits::{self, Waits};
use super::{Gate, Work, clock, driver_calls, undisturbing};
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use crossbeam::utils::CachePadded;
use driver::cuda::{CuResult, EVENT_DISABLE_TIMING, Event, Stream};
use in_stream::{BATCHES, InStream};
use pace::Span;
use std::sync::Mutex;

pub(super) use budget::Patience;
pub(super) use in_stream::{Ahead, MOST_LANES};
pub(super) use thread::{
    context_of, enter, estimate_of, gate_of, is_default, known, known_way, of_this_thread, pass,
};

/// The largest batch, in launches and in estimated time: what is outstanding at most if the work
/// suddenly changes.
const MAX_BATCH: u32 = 256;
const MAX_BATCH_NS: u64 = 2_000_000;
/// What may be outstanding, in estimated time, before a thread has to wait.
const MOST_OUTSTANDING_NS: u64 = 2_000_000;
/// A call that takes longer than this has waited for its work. The governor takes the time around a look
/// that meets it for busy: as often too much as too little.
const WAITED_NS: u64 = 50_000;
/// One launch in so many batches is sampled.
const SAMPLE_EVERY: u32 = 8;
/// Of work that always takes the same, one in so many of those.
const STEADY_EVERY: u32 = 4;
/// Samples take at most one part in so many of the thread's time, apart from the first ones.
const SAMPLE_PART: u64 = 400;
/// Those of work that is only guessed, and will be known after some more: one part in so many.
const LEARNING_PART: u64 = 32;
/// After one that took long by chance.
const LONGEST_REST_NS: u64 = 50_000_000;
/// Kernels longer than this are not queued behind each other: the GPU idles for tens of
/// microseconds between them, which is little, and half as much is outstanding.
const LONG_NS: u64 = 5_000_000;
/// A batch size that no launch fits in: the lane's stream or context is gone.
const CLOSED: u32 = 0;
/// Where the thread is to look up at its next launch.
const AT_ONCE: u32 = 0;
/// Nothing has been covered by the governor.
const NEVER: u64 = u64::MAX;

/// What is known of a batch.
#[derive(Default)]
struct Batch {
    /// Estimated nanoseconds of all launches up to its end, and how many these are.
    covered_ns: AtomicU64,
    launches: AtomicU64,
}

/// What each launch counts.
#[derive(Default)]
struct Count {
    /// Launches since the last event.
    uncovered: AtomicU32,
    /// At which launch the thread has to look up: the batch's last one, or one to be sampled.
    stop: AtomicU32,
    /// Estimated nanoseconds of all launches, and how many there may be with what was taken of the budget.
    launched_ns: AtomicU64,
    most_ns: AtomicU64,
}

/// See the module.
pub(crate) struct Lane {
    /// Alone in its cache line: every launch counts.
    count: CachePadded<Count>,
    stream: usize,
    context: usize,
    /// What the lane has taken of the process's budget.
    taken: Taken,
    /// [`Lane::activity`] when the governor last looked for what is not needed any more.
    idle_since: AtomicU64,
    /// Launches that end with an event, or [`CLOSED`].
    batch: AtomicU32,
    /// Where the thread has to look up next, unless it is asked to do so at once.
    planned: AtomicU32,
    looks: Looks,
    /// The latest ones, by their numbers.
    latest: Box<[Batch]>,
    /// Its gate in the stream, where that can be.
    in_stream: Option<InStream>,
    /// Time for which work was always queued, as far as can be told.
    backlogged_ns: AtomicU64,
    backlogged_told_ns: AtomicU64,
    /// The last event when the governor last looked.
    looked_at: AtomicU64,
    /// The event that covers the last launch of unknown duration.
    unknown_until: AtomicU64,
    /// Waits of the stream, how many there were at the last event, and the event that covers the last of them.
    waits: &'static Waits,
    waits_covered: AtomicU64,
    waits_until: AtomicU64,
    /// Since when a call that may wait for its work has been under way; zero: none is.
    calling_since: AtomicU64,
    /// A launch that is not counted yet is under way, or about to be.
    launching: AtomicBool,
    /// The lease in which the thread was here last.
    entered: AtomicU32,
    sampler: Mutex<Sampler>,
    hold: Hold,
    /// Batches so far: when a sample is due, and a source of places for it.
    batches: AtomicU32,
    /// Samples of steady work that were due and not taken, and the earliest time for the next one.
    skipped: AtomicU32,
    sample_at: AtomicU64,
    /// The earliest time for the next sample of work that is only guessed.
    learn_at: AtomicU64,
    /// The context is about to go, or is gone, and the events with it.
    ending: AtomicBool,
    lost: AtomicBool,
    /// The thread's two events, and the governor's.
    events: [AtomicPtr<core::ffi::c_void>; 3],
    /// Number of the last event recorded, and of the last known to be done. Event `n` is
    /// `events[n % 2]`.
    recorded: AtomicU64,
    done: AtomicU64,
    /// Events up to this one are not waited for.
    given_up: AtomicU64,
    /// When the last batch was seen to begin or end, and what had been launched then.
    mark: AtomicU64,
    marked_ns: AtomicU64,
    span: Span,
    /// Time between launches when the GPU was kept busy by them.
    launch_ns: AtomicU64,
    /// [`Lane::activity`] at the time of the governor's event.
    governors: AtomicU64,
    abandoned: AtomicBool,
}

/// See [`Lane::launch_begins`].
pub(super) struct Launching<'lane>(&'lane AtomicBool);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Lane {
    /// Of a stream of the current context.
    fn new(stream: usize, context: usize, gate: &Gate) -> Option<Self> {
        let in_stream = undisturbing(|| {
            gate.stream_gate_for_one_more().and_then(|own| InStream::new(own, context))
        });
        let batches = if in_stream.is_some() { BATCHES } else { 4 };
        let mut events: [Event; 3] = [ptr::null_mut(); 3];
        let made = undisturbing(|| {
            events.iter_mut().all(|event| {
                driver_calls::event_create(&raw mut *event, EVENT_DISABLE_TIMING).is_ok()
            })
        });
        made.then(|| Self {
            count: CachePadded::new(Count { stop: AtomicU32::new(1), ..Count::default() }),
            stream,
            context,
            taken: Taken::default(),
            idle_since: AtomicU64::new(NEVER),
            batch: AtomicU32::new(1),
            planned: AtomicU32::new(1),
            looks: Looks::default(),
            latest: core::iter::repeat_with(Batch::default).take(batches).collect(),
            in_stream,
            backlogged_ns: AtomicU64::new(0),
            backlogged_told_ns: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            unknown_until: AtomicU64::new(0),
            waits: waits::of(stream, context),
            waits_covered: AtomicU64::new(0),
            waits_until: AtomicU64::new(0),
            calling_since: AtomicU64::new(0),
            launching: AtomicBool::new(false),
            entered: AtomicU32::new(0),
            sampler: Mutex::new(Sampler::default()),
            hold: Hold::default(),
            batches: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
            sample_at: AtomicU64::new(0),
            learn_at: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            events: events.map(AtomicPtr::new),
            recorded: AtomicU64::new(0),
            done: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            mark: AtomicU64::new(clock::now()),
            marked_ns: AtomicU64::new(0),
            span: Span::default(),
            launch_ns: AtomicU64::new(0),
            governors: AtomicU64::new(NEVER),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Counts a launch of some estimated nanoseconds; `false`: the thread has to look up first, and
    /// nothing was counted.
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

    /// Begins a sample, if the launch that comes is to be one. `guess`: for what it is taken, if it is not known.
    pub(super) fn start_sample(
        &self,
        work: Work,
        estimate: &Estimate,
        guess: Option<Guess>,
        gate: &Gate,
    ) -> Option<Started<'_>> {
        // Drawn whatever the work is: what such a sample says of guesses is so of all of them.
        let drawn = guess.filter(|_| self.is_place_of_sample(false));
        let due = || clock::now() >= self.learn_at.load(Relaxed);
        let sampled = if guess.is_some() {
            drawn.is_some() || estimate.is_met_again() && due()
        } else if estimate.ns().is_none() {
            estimate.wants_sample()
        } else {
            // A moment alone may be all that there is, and three samples are all that is wanted.
            let rare = !gate.is_shared() && estimate.is_unsettled();
            rare && self.batch.load(Relaxed) == 1 && due()
                || self.is_place_of_sample(estimate.is_doubtful() || gate.estimates_are_off())
                    && (gate.estimates_are_off() || !self.skips(estimate))
        };
        if !sampled {
            return None;
        }
        let begun = clock::now();
        let place = Place { stream: self.stream as Stream, context: self.context, gate };
        let mut sampler = self.sampler.try_lock().ok()?;
        let started = sampler.start(place, &self.hold, work, drawn, !gate.is_shared(), begun);
        if started.is_none() {
            self.rest_from_samples(begun);
        }
        started
    }

    /// Whether a launch of known duration is the one that has been chosen.
    fn is_place_of_sample(&self, doubtful: bool) -> bool {
        let (next, batch) = (self.count.uncovered.load(Relaxed) + 1, self.batch.load(Relaxed));
        // Not because of the batch's end.
        (next < batch && next >= self.count.stop.load(Relaxed))
            || batch == 1
                && (self.is_due() || doubtful)
                && self.mark.load(Relaxed) >= self.sample_at.load(Relaxed)
    }

    /// Leaves most samples of steady work out.
    fn skips(&self, estimate: &Estimate) -> bool {
        if !estimate.is_steady() {
            return false;
        }
        let skipped = self.skipped.load(Relaxed).wrapping_add(1);
        self.skipped.store(skipped, Relaxed);
        !skipped.is_multiple_of(STEADY_EVERY)
    }

    /// Ends a sample.
    pub(super) fn finish_sample(&self, started: Started<'_>, estimate: &'static Estimate) {
        let begun = started.begun;
        if let Ok(mut sampler) = self.sampler.try_lock() {
            sampler.finish(started, self.stream as Stream, estimate);
        }
        self.rest_from_samples(begun);
    }

    /// After a sample that was begun at some moment.
    fn rest_from_samples(&self, begun: u64) {
        let now = clock::now();
        let rest = |part| now.saturating_sub(begun).saturating_mul(part).min(LONGEST_REST_NS);
        self.sample_at.store(now.saturating_add(rest(SAMPLE_PART)), Relaxed);
        self.learn_at.store(now.saturating_add(rest(LEARNING_PART)), Relaxed);
    }

    /// Lets the stream go if it has been held back for too long. To be called by the governor.
    pub(super) fn release_overdue(&self, now: u64) {
        self.hold.release_overdue(now);
    }

    /// Lets the stream go: nobody will look after it any more.
    pub(super) fn let_go(&self) {
        let _ = self.hold.let_go();
    }

    /// Whether the stream is held back, or about to be.
    pub(super) fn holds_back(&self) -> bool {
        self.hold.is_under_way()
    }

    /// Whether a sample is due, at the end of a batch. Not in a fixed rhythm, which the program may have
    /// as well.
    fn is_due(&self) -> bool {
        (self.batches.load(Relaxed).wrapping_mul(0x9E37_79B9) >> 8).is_multiple_of(SAMPLE_EVERY)
    }

    fn batch(&self, number: u64) -> &Batch {
        &self.latest[number as usize % self.latest.len()]
    }

    /// Estimated nanoseconds of all launches up to an event, one of the latest.
    #[inline]
    fn covered_by(&self, number: u64) -> u64 {
        self.batch(number).covered_ns.load(Relaxed)
    }

    /// Estimated nanoseconds of the launches that may not have been done yet.
    fn outstanding_ns(&self) -> u64 {
        let recorded = self.recorded.load(Acquire);
        let done = if let Some(own) = self.in_stream() {
            self.see_done(own)
        } else {
            self.done.load(Acquire).max(recorded.saturating_sub(2))
        };
        self.count.launched_ns.load(Relaxed).saturating_sub(self.covered_by(done))
    }

    /// Whether what is under way may be waiting for something outside of the device.
    pub(super) fn may_wait(&self) -> bool {
        self.had_waits_since(self.done.load(Acquire) + 1)
    }

    /// Whether there may have been such a wait in a batch that an event ends, or later.
    fn had_waits_since(&self, number: u64) -> bool {
        !self.waits.hold_nothing_up() && self.has_waits_since(number)
    }

    fn has_waits_since(&self, number: u64) -> bool {
        self.waits.count() != self.waits_covered.load(Acquire)
            || self.waits_until.load(Acquire) >= number
    }

    /// Whether there is such a wait in what is under way, however short these have been.
    pub(super) fn has_unfinished_waits(&self) -> bool {
        self.has_waits_since(self.done.load(Acquire) + 1)
    }

    /// A launch has waited in vain behind an unfinished wait. Others could not use the device meanwhile, so that time
    /// is charged. To be called by the lane's thread.
    fn waited_in_vain(&self, gate: &Gate, begun: u64, now: u64) {
        let ns = self.backlogged_ns.load(Relaxed) + now.saturating_sub(begun);
        self.backlogged_ns.store(ns, Release);
        gate.stall().begin(gate.progress(), now);
    }

    /// Whether the lane's work may wait for what its program launches next: see [`super::stall`].
    pub(super) fn is_stalled(&self, gate: &Gate) -> bool {
        self.has_unfinished_waits() && gate.stall().lasts(|| gate.progress())
    }

    /// A call is about to have the stream wait: begins to measure that.
    pub(super) fn start_wait(&self) -> Option<StartedWait> {
        let mut sampler = self.sampler.try_lock().ok()?;
        undisturbing(|| sampler.start_wait(self.stream as Stream, self.context, self.waits))
    }

    /// The call has been made.
    pub(super) fn finish_wait(&self, started: StartedWait) {
        if let Ok(mut sampler) = self.sampler.try_lock() {
            undisturbing(|| sampler.finish_wait(started, self.stream as Stream));
        }
    }

    /// A call that may wait for its work begins.
    pub(super) fn call_begins(&self) -> u64 {
        let now = clock::now();
        self.calling_since.store(now, Release);
        now
    }

    /// It has returned; tells whether it waited.
    pub(super) fn call_ends(&self, since: u64) -> bool {
        self.calling_since.store(0, Release);
        clock::now().saturating_sub(since) >= WAITED_NS
    }

    /// A launch that [`pass`] does not count is about to pass the gate. Until this is dropped, the lane does not
    /// count as drained: a gate that closes meanwhile may not see the launch.
    pub(super) fn launch_begins(&self) -> Launching<'_> {
        // Before the thread looks at the gate; the governor closes that before it looks here.
        self.launching.store(true, SeqCst);
        Launching(&self.launching)
    }

    /// Counts a launch that [`pass`] did not; tells how many there have been since the last event.
    pub(super) fn count(&self, ns: Option<u64>) -> u32 {
        let count = self.count.uncovered.load(Relaxed) + 1;
        let launched = self.count.launched_ns.load(Relaxed).wrapping_add(ns.unwrap_or(0));
        self.count.launched_ns.store(launched, Relaxed);
        if ns.is_none() {
            self.unknown_until.store(self.recorded.load(Relaxed) + 1, Release);
        }
        self.count.uncovered.store(count, Release);
        count
    }

    /// After a launch that was counted so: ends the batch if it is full.
    pub(super) fn go_on(&self, count: u32, ns: Option<u64>, gate: &Gate) {
        let launched = self.count.launched_ns.load(Relaxed);
        let uncovered_ns = launched.wrapping_sub(self.covered_by(self.recorded.load(Relaxed)));
        let batch = self.batch.load(Relaxed);
        if self.is_in_stream() {
            if count >= batch || uncovered_ns >= self.batch_ns(gate) || ns.is_none() {
                undisturbing(|| {
                    if self.try_to_cover() {
                        self.pace_in_stream(count, gate);
                    }
                });
            } else if count >= self.count.stop.load(Relaxed) {
                self.stop_at(batch);
            }
            return;
        }
        if count >= batch || uncovered_ns >= MAX_BATCH_NS || ns.is_none() {
            undisturbing(|| {
                let covered = self.try_to_cover();
                if covered || self.is_enough(gate) {
                    self.pace(count, gate);
                    // There may be an event now.
                    let _ = covered || self.try_to_cover();
                } else {
                    // Both events are still needed, for little work: others' turns keep it from being done.
                    self.stop_at(count.saturating_add(batch.max(8)));
                }
            });
        } else if count >= self.count.stop.load(Relaxed) {
            // Past the place of a sample.
            self.stop_at(batch);
        }
    }

    /// Sees whether the stream has work, if the governor wants to know. The stream must not be capturing.
    pub(super) fn look_if_asked(&self) {
        if !self.looks.take_question() {
            return;
        }
        self.stop_at(self.planned.load(Relaxed));
        let works = || {
            !self.may_wait()
                && driver_calls::stream_query(self.stream as Stream) == CuResult::NOT_READY
        };
        self.looks.tell(undisturbing(works));
    }

    fn stop_at(&self, count: u32) {
        self.planned.store(count, Relaxed);
        // A batch begins with a wait.
        let at_once = self.in_stream.as_ref().is_some_and(InStream::needs_wait);
        self.count.stop.store(if at_once { AT_ONCE } else { count }, Relaxed);
        // Another thread may have closed the lane meanwhile.
        if self.batch.load(Relaxed) == CLOSED {
            self.count.stop.store(CLOSED, Relaxed);
        }
    }

    /// Ends the batch, full or not, with an event; `false`: there is none free. The stream must not be
    /// capturing.
    pub(super) fn cover(&self) -> bool {
        undisturbing(|| self.try_to_cover())
    }

    fn try_to_cover(&self) -> bool {
        if self.batch.load(Relaxed) == CLOSED || self.count.uncovered.load(Relaxed) == 0 {
            return true;
        }
        let recorded = self.recorded.load(Relaxed);
        let number = recorded + 1;
        let waits = self.waits.count();
        let marked = if let Some(own) = self.in_stream() {
            let marked = self.mark(own, number);
            if !marked {
                return false;
            }
            marked
        } else {
            // The event of two batches ago is needed again. If it has not happened yet, the batch goes
            // on, and the governor covers it when the lease ends.
            if !self.is_done(recorded.saturating_sub(1)) {
                return false;
            }
            driver_calls::event_record(self.event(number), self.stream as Stream).is_ok()
        };
        if marked {
            let launched = self.count.launched_ns.load(Relaxed);
            let before = self.batch(recorded).launches.load(Relaxed);
            let batch = self.batch(number);
            batch.covered_ns.store(launched, Relaxed);
            batch.launches.store(before + u64::from(self.count.uncovered.load(Relaxed)), Relaxed);
            if waits != self.waits_covered.load(Relaxed) {
                // In this order: who sees the second sees the first.
                self.waits_until.store(number, Release);
                self.waits_covered.store(waits, Release);
            }
            self.recorded.store(number, Release);
            self.count.uncovered.store(0, Release);
        }
        true
    }

    fn event(&self, number: u64) -> Event {
        self.events[usize::from(number % 2 == 1)].load(Relaxed)
    }

    /// Asks the driver whether event `number` has happened. An error counts as "yes": the work that it
    /// stood for is gone.
    fn is_done(&self, number: u64) -> bool {
        if self.done.load(Acquire) >= number {
            return true;
        }
        if let Some(own) = self.in_stream() {
            return self.see_done(own) >= number;
        }
        let done = driver_calls::event_query(self.event(number)) != CuResult::NOT_READY;
        if done {
            self.done.fetch_max(number, Release);
        }
        done
    }

    /// Whether what is outstanding should be done before more is launched. Beside other sessions a little
    /// work waits for their turns, and should be ready, all of it, when its own comes; so should what waits for
    /// something else. Of what waits for the launches that come there is never enough.
    fn is_enough(&self, gate: &Gate) -> bool {
        let much = !(gate.is_shared() || self.may_wait())
            || self.outstanding_ns() >= MOST_OUTSTANDING_NS
            || self.unknown_until.load(Relaxed) > self.done.load(Relaxed);
        much && !self.is_stalled(gate)
    }

    fn resize(&self, batch: u32) {
        let batch = batch.clamp(1, MAX_BATCH);
        // Not over CLOSED, which another thread may have set meanwhile.
        let _ = self.batch.fetch_update(Relaxed, Relaxed, |old| (old != CLOSED).then_some(batch));
        self.stop_at(batch);
    }

    /// Has a launch of the next batch sampled, now and then: any of them, or programs that repeat
    /// themselves would always be seen at the same place.
    fn plan_sample(&self, now: u64, gate: &Gate) {
        let batches = self.batches.load(Relaxed).wrapping_add(1);
        self.batches.store(batches, Relaxed);
        let batch = self.batch.load(Relaxed);
        if batch > 1
            && (self.is_due() || gate.estimates_are_off())
            && now >= self.sample_at.load(Relaxed)
        {
            let mixed = batches.wrapping_mul(0x9E37_79B9) >> 16;
            self.stop_at(1 + mixed % (batch - 1));
        }
    }
}
