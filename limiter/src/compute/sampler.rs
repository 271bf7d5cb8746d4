//! Samples: measures how long work takes, by a timing event before it and one after it. The lanes decide which launches
//! are sampled ([`super::lane`]).
//!
//! The stream is held meanwhile ([`super::hold`]), so that the device executes the three without gaps. The time between
//! the events is the work's own time plus the device's cost for events and launches; a pair of events without work
//! measures that cost. Some samples cannot hold the stream: calls that wait for their work, and devices that cannot
//! wait for a word in memory. There a stream with work still queued serves as well. On an idle stream the sample also
//! includes the time until the work was handed to the driver.

use super::estimate::Estimate;
use super::hold::{self, HeldBack, Hold};
use super::waits::Waits;
use super::{Gate, Work, clock, driver_calls, undisturbing, within};
use core::ptr;
use driver::cuda::{CuResult, EVENT_DEFAULT, Event, Stream};
use limiter_core::Guess;

/// Samples of one lane that may be under way.
const PAIRS: usize = 4;
/// A launch takes at most this on the host; a longer call has waited for its work.
const SLOWEST_LAUNCH_NS: u64 = 10_000;
/// The most that a pair of events can cost; a larger value is a failed measurement.
const DEAREST_PAIR_NS: u64 = 4_000;
/// What a launch costs the device between two events, compared with the vendor's profiler: 0.8 to 1.8 us, both on
/// devices where an empty pair costs 1.2 us and on others of the same model where it costs 2.9 us. Where pairs cost
/// next to nothing, launches do too.
const LAUNCH_NS: u64 = 1_250;
/// Launches of work that takes less than this do not follow each other without a gap: a launch takes PyTorch's threads
/// as long. Their gaps are others' to use, so what launches cost is not charged.
const WITHOUT_GAP_NS: u64 = 16_000;
/// Assumed upper bound for what a wait that delays nothing costs the device between two events.
const DEAREST_IDLE_WAIT_NS: u64 = 1_000;
/// An empty pair is measured once per this many samples.
const EMPTY_EVERY: u32 = 16;

/// The sampler of a lane. Used by the lane's thread, and by the governor once that thread has ended.
#[derive(Default)]
pub(super) struct Sampler {
    pairs: Vec<Pair>,
    empty: Empties,
}

/// Costs of an empty pair alone and beside other sessions, where everything costs a little more.
#[derive(Default)]
struct Empties {
    alone: Empty,
    shared: Empty,
}

impl Empties {
    fn of(&mut self, alone: bool) -> &mut Empty {
        if alone { &mut self.alone } else { &mut self.shared }
    }
}

// SAFETY: event handles may be used from every thread.
unsafe impl Send for Sampler {}

/// The recent cost of a pair of events without work in between.
#[derive(Default)]
struct Empty {
    latest: [u64; 4],
    count: usize,
    /// Samples since the cost was last measured.
    used: u32,
}

impl Empty {
    fn add(&mut self, ns: u64) {
        self.latest[self.count % self.latest.len()] = ns.min(DEAREST_PAIR_NS);
        self.count += 1;
    }

    /// The smallest: single measurements may have taken longer.
    fn ns(&self) -> Option<u64> {
        self.latest[..self.count.min(self.latest.len())].iter().min().copied()
    }
}

struct Pair {
    start: Event,
    end: Event,
    use_: Option<Use>,
}

/// The object of a measurement by a pair of events.
#[derive(Clone, Copy)]
enum Between {
    Nothing,
    Work(&'static Estimate),
    /// A wait, and the number of waits that it stands for.
    Wait(&'static Waits, u64),
}

#[derive(Clone, Copy)]
struct Use {
    what: Between,
    /// The guess for this launch, if it was drawn to check guesses.
    guess: Option<Guess>,
    /// How long the launch took on the host, if the stream was idle and not held.
    idle_ns: Option<u64>,
    transfer: bool,
    alone: bool,
}

impl Use {
    /// What is charged of the measured time, if an empty pair costs `empty_ns`. Between two launches without a gap
    /// nobody else can use the device, so what a launch costs is part of it.
    fn charged_ns(&self, elapsed_ns: u64, empty_ns: u64) -> u64 {
        let ns = elapsed_ns.saturating_sub(self.idle_ns.unwrap_or(empty_ns));
        let has_gaps = !self.transfer && ns < WITHOUT_GAP_NS;
        let launch_ns = if has_gaps { LAUNCH_NS.min(empty_ns / 8 * 7) } else { 0 };
        ns.saturating_sub(launch_ns).max(1)
    }
}

/// Where a sample is taken.
#[derive(Clone, Copy)]
pub(super) struct Place<'gate> {
    pub(super) stream: Stream,
    /// The stream's context.
    pub(super) context: usize,
    /// The gate that the thread has passed.
    pub(super) gate: &'gate Gate,
}

/// A sample under way: the first event has been recorded.
pub(super) struct Started<'lane> {
    pub(super) begun: u64,
    pair: usize,
    /// When the first event was recorded, if the stream was idle and is not held.
    idle_since: Option<u64>,
    guess: Option<Guess>,
    transfer: bool,
    alone: bool,
    held: Option<HeldBack<'lane>>,
}

/// A wait that is being measured: the first event has been recorded.
pub(super) struct StartedWait {
    pair: usize,
    waits: &'static Waits,
}

impl Sampler {
    /// Records the first event; `None` if no pair of events is free. The stream must not be capturing. `guess`: the
    /// guess for the work, if it was drawn to check guesses. `alone`: no other session uses the device.
    pub(super) fn start<'lane>(
        &mut self,
        place: Place<'_>,
        hold: &'lane Hold,
        work: Work,
        guess: Option<Guess>,
        alone: bool,
        begun: u64,
    ) -> Option<Started<'lane>> {
        undisturbing(|| {
            self.collect();
            let transfer = work.may_block();
            let Place { stream, context, gate } = place;
            let pair = within(context, || self.free_pair())??;
            let held = if transfer { None } else { hold.hold(stream, context, gate) };
            let idle = held.is_none() && driver_calls::stream_query(stream).is_ok();
            let empty = self.empty.of(alone);
            empty.used += u32::from(!idle);
            if !idle && (empty.count == 0 || empty.used > EMPTY_EVERY) {
                empty.used = 0;
                let what = Between::Nothing;
                let use_ = Use { what, guess: None, idle_ns: None, transfer, alone };
                self.measure_empty(pair, stream, held, use_);
                return None;
            }
            if !driver_calls::event_record(self.pairs[pair].start, stream).is_ok() {
                return None;
            }
            let idle_since = idle.then(clock::now);
            Some(Started { begun, pair, idle_since, guess, transfer, alone, held })
        })
    }

    /// Records the second event, and releases the stream.
    pub(super) fn finish(
        &mut self,
        started: Started<'_>,
        stream: Stream,
        estimate: &'static Estimate,
    ) {
        let Started { begun: _, pair, idle_since, guess, transfer, alone, held } = started;
        let idle_ns = idle_since.map(|since| clock::now().saturating_sub(since));
        // If launches wait for their work, the call's own part of the time is unknown.
        let slowest = if hold::launches_wait() && !transfer { 0 } else { SLOWEST_LAUNCH_NS };
        let idle_ns = idle_ns.map(|ns| ns.min(slowest));
        let Some(pair) = self.pairs.get_mut(pair) else { return };
        undisturbing(|| {
            // If the stream ran empty in between, it is unknown how long it waited for the launch.
            let whole = held.is_some()
                || idle_ns.is_some()
                || driver_calls::event_query(pair.start) == CuResult::NOT_READY;
            if whole
                && driver_calls::event_record(pair.end, stream).is_ok()
                && held.is_none_or(|held| held.is_intact())
            {
                let what = Between::Work(estimate);
                pair.use_ = Some(Use { what, guess, idle_ns, transfer, alone });
            }
        });
    }

    /// Records the event before a wait; `None` if no pair is free, or a wait is already being measured. The stream must
    /// not be capturing.
    pub(super) fn start_wait(
        &mut self,
        stream: Stream,
        context: usize,
        waits: &'static Waits,
    ) -> Option<StartedWait> {
        self.collect();
        let is_wait = |use_: Use| matches!(use_.what, Between::Wait(..));
        if self.pairs.iter().any(|pair| pair.use_.is_some_and(is_wait)) {
            return None;
        }
        let pair = within(context, || self.free_pair())??;
        let recorded = driver_calls::event_record(self.pairs[pair].start, stream).is_ok();
        recorded.then_some(StartedWait { pair, waits })
    }

    /// Records the event behind the wait.
    pub(super) fn finish_wait(&mut self, started: StartedWait, stream: Stream) {
        let StartedWait { pair, waits } = started;
        let Some(pair) = self.pairs.get_mut(pair) else { return };
        if driver_calls::event_record(pair.end, stream).is_ok() {
            let what = Between::Wait(waits, waits.stand_for());
            pair.use_ =
                Some(Use { what, guess: None, idle_ns: None, transfer: false, alone: true });
        }
    }

    fn measure_empty(
        &mut self,
        pair: usize,
        stream: Stream,
        held: Option<HeldBack<'_>>,
        use_: Use,
    ) {
        let pair = &mut self.pairs[pair];
        if driver_calls::event_record(pair.start, stream).is_ok()
            && driver_calls::event_record(pair.end, stream).is_ok()
            && held.is_none_or(|held| held.is_intact())
        {
            pair.use_ = Some(use_);
        }
    }

    fn free_pair(&mut self) -> Option<usize> {
        let free = self.pairs.iter().position(|pair| pair.use_.is_none());
        if free.is_some() || self.pairs.len() >= PAIRS {
            return free;
        }
        let (mut start, mut end) = (ptr::null_mut(), ptr::null_mut());
        if !driver_calls::event_create(&raw mut start, EVENT_DEFAULT).is_ok() {
            return None;
        }
        if !driver_calls::event_create(&raw mut end, EVENT_DEFAULT).is_ok() {
            let _ = driver_calls::event_destroy(start);
            return None;
        }
        self.pairs.push(Pair { start, end, use_: None });
        Some(self.pairs.len() - 1)
    }

    /// Collects the samples that are done.
    fn collect(&mut self) {
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            let Some(use_) = pair.use_ else { continue };
            match driver_calls::event_query(pair.end) {
                CuResult::NOT_READY => continue,
                CuResult::SUCCESS => {}
                // The work failed, and so will the program.
                _ => {
                    pair.use_ = None;
                    continue;
                }
            }
            pair.use_ = None;
            let mut ms = 0.0_f32;
            if !driver_calls::event_elapsed(&raw mut ms, pair.start, pair.end).is_ok() {
                continue;
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
            let elapsed =
                if ms.is_finite() && ms >= 0.0 { (f64::from(ms) * 1e6) as u64 } else { 0 };
            let empty = self.empty.of(use_.alone);
            let estimate = match use_.what {
                Between::Work(estimate) => estimate,
                Between::Nothing => {
                    empty.add(elapsed);
                    continue;
                }
                Between::Wait(waits, stands_for) => {
                    let nothing_ns = empty.ns().unwrap_or(0) + DEAREST_IDLE_WAIT_NS;
                    waits.took(elapsed.saturating_sub(nothing_ns), stands_for, clock::now());
                    continue;
                }
            };
            let charged_ns = use_.charged_ns(elapsed, empty.ns().unwrap_or(0));
            tracing::trace!("sample: {elapsed} ns, {charged_ns} of them charged");
            estimate.add(charged_ns, use_.alone, use_.guess);
        }
    }

    /// Destroys the events.
    pub(super) fn destroy_events(&mut self) {
        for pair in self.pairs.drain(..) {
            let _ = driver_calls::event_destroy(pair.start);
            let _ = driver_calls::event_destroy(pair.end);
        }
    }
}
