//! Takes samples of how long work takes: a timing event before it, one after it.
//!
//! Where the stream still has work queued, the first event happens when that is done, and the time between
//! the two is the work's own, plus what a pair of events costs. Where the stream is idle it happens at
//! once, and the time until the work has been handed to the driver comes in addition to both.

use super::estimate::Estimate;
use super::{clock, own, undisturbing};
use core::ptr;
use utils::driver::cuda::{CuResult, EVENT_DEFAULT, Event, Stream};

/// Samples of one lane that may be under way.
const PAIRS: usize = 4;
/// A launch takes at most this on the host; a call that takes longer waits for its work.
const SLOWEST_LAUNCH_NS: u64 = 10_000;
/// What a pair of events costs can be at most this; more is a measurement gone wrong.
const DEAREST_PAIR_NS: u64 = 4_000;

/// The samplers of a lane. Used by the lane's thread, and by the governor once that has ended.
#[derive(Default)]
pub(super) struct Sampler {
    pairs: Vec<Pair>,
    /// What a pair of events with nothing in between costs; the smallest seen.
    empty_ns: Option<u64>,
}

// SAFETY: event handles may be used from every thread.
unsafe impl Send for Sampler {}

struct Pair {
    start: Event,
    end: Event,
    use_: Option<Use>,
}

#[derive(Clone, Copy)]
enum Use {
    /// Nothing is in between.
    Empty,
    Sample {
        estimate: &'static Estimate,
        /// How long the launch took on the host, if the stream was idle.
        idle_ns: Option<u64>,
        alone: bool,
    },
}

/// A sample under way: the first event has been recorded.
pub(super) struct Started {
    pair: usize,
    /// When, if the stream was idle.
    idle_since: Option<u64>,
}

impl Sampler {
    /// Records the first event; `None` where there is none to spare. The stream must not be
    /// capturing.
    pub(super) fn start(&mut self, stream: Stream) -> Option<Started> {
        undisturbing(|| {
            self.collect();
            if self.empty_ns.is_none() && !self.pairs.iter().any(|pair| pair.use_.is_some()) {
                self.measure_empty(stream);
                return None;
            }
            self.empty_ns?;
            let pair = self.free_pair()?;
            let idle = own::stream_query(stream).is_ok();
            if !own::event_record(self.pairs[pair].start, stream).is_ok() {
                return None;
            }
            Some(Started { pair, idle_since: idle.then(clock::now) })
        })
    }

    /// Records the second event.
    pub(super) fn finish(
        &mut self,
        started: &Started,
        stream: Stream,
        estimate: &'static Estimate,
        alone: bool,
    ) {
        let idle_ns = started
            .idle_since
            .map(|since| clock::now().saturating_sub(since).min(SLOWEST_LAUNCH_NS));
        let Some(pair) = self.pairs.get_mut(started.pair) else { return };
        undisturbing(|| {
            // A stream that ran dry in between: how long it then waited for the launch is not known.
            let ran_dry = idle_ns.is_none() && own::event_query(pair.start) != CuResult::NOT_READY;
            if !ran_dry && own::event_record(pair.end, stream).is_ok() {
                pair.use_ = Some(Use::Sample { estimate, idle_ns, alone });
            }
        });
    }

    fn measure_empty(&mut self, stream: Stream) {
        let Some(pair) = self.free_pair() else { return };
        let pair = &mut self.pairs[pair];
        if own::event_record(pair.start, stream).is_ok()
            && own::event_record(pair.end, stream).is_ok()
        {
            pair.use_ = Some(Use::Empty);
        }
    }

    fn free_pair(&mut self) -> Option<usize> {
        let free = self.pairs.iter().position(|pair| pair.use_.is_none());
        if free.is_some() || self.pairs.len() >= PAIRS {
            return free;
        }
        let (mut start, mut end) = (ptr::null_mut(), ptr::null_mut());
        if !own::event_create(&raw mut start, EVENT_DEFAULT).is_ok() {
            return None;
        }
        if !own::event_create(&raw mut end, EVENT_DEFAULT).is_ok() {
            let _ = own::event_destroy(start);
            return None;
        }
        self.pairs.push(Pair { start, end, use_: None });
        Some(self.pairs.len() - 1)
    }

    /// Takes in the samples that are done.
    fn collect(&mut self) {
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            let Some(use_) = pair.use_ else { continue };
            match own::event_query(pair.end) {
                CuResult::NOT_READY => continue,
                CuResult::SUCCESS => {}
                // The work failed; so will the program.
                _ => {
                    pair.use_ = None;
                    continue;
                }
            }
            pair.use_ = None;
            let mut ms = 0.0_f32;
            if !own::event_elapsed(&raw mut ms, pair.start, pair.end).is_ok() {
                continue;
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
            let elapsed =
                if ms.is_finite() && ms >= 0.0 { (f64::from(ms) * 1e6) as u64 } else { 0 };
            match use_ {
                Use::Empty => {
                    let known = self.empty_ns.unwrap_or(DEAREST_PAIR_NS);
                    self.empty_ns = Some(elapsed.min(known));
                }
                Use::Sample { estimate, idle_ns, alone } => {
                    let empty_ns = self.empty_ns.unwrap_or(0);
                    // Measured beside the vendor's profiler: the first event of an idle stream is a little cheaper.
                    let extra = idle_ns.map_or(empty_ns, |ns| ns + empty_ns / 8 * 7);
                    tracing::trace!(
                        "sample: {elapsed} ns, {extra} of them not its own (idle: {})",
                        idle_ns.is_some()
                    );
                    estimate.add(elapsed.saturating_sub(extra).max(1), alone);
                }
            }
        }
    }

    /// Gives the events back.
    pub(super) fn destroy_events(&mut self) {
        for pair in self.pairs.drain(..) {
            let _ = own::event_destroy(pair.start);
            let _ = own::event_destroy(pair.end);
        }
    }
}
