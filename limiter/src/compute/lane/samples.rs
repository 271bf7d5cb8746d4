//! Decides which launches of a lane are sampled ([`super::super::sampler`] takes the samples).

use super::super::estimate::Estimate;
use super::super::hold::Hold;
use super::super::sampler::{Place, Sampler, Started};
use super::super::{Gate, Work, clock};
use super::Lane;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use driver::cuda::Stream;
use limiter_core::Guess;
use std::sync::Mutex;

/// One launch in this many batches is sampled.
const SAMPLE_EVERY: u32 = 8;
/// Of steady work, one in this many of those.
const STEADY_EVERY: u32 = 4;
/// Of known work beside another session.
const SHARED_EVERY: u32 = 16;
/// Samples take at most one part in this many of the thread's time, apart from the first ones.
const SAMPLE_PART: u64 = 400;
/// Divisor as above for work that is only guessed and will be known after a few more samples.
const LEARNING_PART: u64 = 32;
/// The longest pause, after a sample that took long by chance.
const LONGEST_REST_NS: u64 = 50_000_000;

/// When the next samples are due.
#[derive(Default)]
pub(in crate::compute) struct Sampling {
    pub(super) sampler: Mutex<Sampler>,
    pub(in crate::compute) hold: Hold,
    /// Due samples of steady work that were skipped, and the earliest time of the next sample (ns).
    skipped: AtomicU32,
    at: AtomicU64,
    /// The earliest time of the next sample of work that is only guessed (ns).
    learn_at: AtomicU64,
}

impl Lane {
    /// Begins a sample if the next launch is to be sampled. `guess`: its assumed duration, if its kind has no estimate.
    pub(in crate::compute) fn start_sample(
        &self,
        work: Work,
        estimate: &Estimate,
        guess: Option<Guess>,
        gate: &Gate,
    ) -> Option<Started<'_>> {
        // Drawn whatever the work is, so that the results are representative of all guesses.
        let drawn = guess.filter(|_| self.is_place_of_sample(false));
        let due = || clock::now() >= self.sampling.learn_at.load(Relaxed);
        let sampled = if guess.is_some() {
            drawn.is_some() || estimate.is_met_again() && due()
        } else if estimate.ns().is_none() {
            estimate.wants_sample()
        } else {
            // The process may be alone only for a moment, and only three samples are needed.
            let rare = !gate.is_shared() && estimate.is_unsettled();
            rare && self.pace.batch() == 1 && due()
                || self.is_place_of_sample(
                    estimate.is_doubtful() || gate.seen.launch_times.estimates_are_off(),
                ) && (gate.seen.launch_times.estimates_are_off() || !self.skips(estimate, gate))
        };
        if !sampled {
            return None;
        }
        let begun = clock::now();
        let place = Place { stream: self.stream as Stream, context: self.context, gate };
        let mut sampler = self.sampling.sampler.try_lock().ok()?;
        let started =
            sampler.start(place, &self.sampling.hold, work, drawn, !gate.is_shared(), begun);
        if started.is_none() {
            self.rest_from_samples(begun);
        }
        started
    }

    /// Whether a launch of known duration was chosen for a sample.
    fn is_place_of_sample(&self, doubtful: bool) -> bool {
        let (next, batch) = (self.count.uncovered.load(Relaxed) + 1, self.pace.batch());
        // Not because of the batch's end.
        (next < batch && next >= self.count.stop.load(Relaxed))
            || batch == 1
                && (self.is_due() || doubtful)
                && self.pace.mark.load(Relaxed) >= self.sampling.at.load(Relaxed)
    }

    /// Skips most samples of steady work, and nearly all of known work beside another session: while a stream is held
    /// for a sample, its process may lose a time slice of 2 ms.
    fn skips(&self, estimate: &Estimate, gate: &Gate) -> bool {
        let every = if gate.is_shared() && !estimate.is_unsettled() {
            SHARED_EVERY
        } else if estimate.is_steady() {
            STEADY_EVERY
        } else {
            return false;
        };
        let skipped = self.sampling.skipped.load(Relaxed).wrapping_add(1);
        self.sampling.skipped.store(skipped, Relaxed);
        !skipped.is_multiple_of(every)
    }

    /// Ends a sample.
    pub(in crate::compute) fn finish_sample(
        &self,
        started: Started<'_>,
        estimate: &'static Estimate,
    ) {
        let begun = started.begun;
        if let Ok(mut sampler) = self.sampling.sampler.try_lock() {
            sampler.finish(started, self.stream as Stream, estimate);
        }
        self.rest_from_samples(begun);
    }

    /// Schedules the next sample, after one that began at `begun`.
    fn rest_from_samples(&self, begun: u64) {
        let now = clock::now();
        let rest = |part| now.saturating_sub(begun).saturating_mul(part).min(LONGEST_REST_NS);
        self.sampling.at.store(now.saturating_add(rest(SAMPLE_PART)), Relaxed);
        self.sampling.learn_at.store(now.saturating_add(rest(LEARNING_PART)), Relaxed);
    }

    /// Whether a sample is due, at the end of a batch. In no fixed rhythm, which the program might share.
    fn is_due(&self) -> bool {
        (self.mixed() >> 8).is_multiple_of(SAMPLE_EVERY)
    }

    /// A pseudo-random number per batch.
    fn mixed(&self) -> u32 {
        (self.batches.recorded() as u32).wrapping_mul(0x9E37_79B9)
    }

    /// Chooses a launch of the next batch for a sample, now and then. Any launch may be chosen; otherwise a repetitive
    /// program would always be sampled at the same place.
    pub(super) fn plan_sample(&self, now: u64, gate: &Gate) {
        let batch = self.pace.batch();
        if batch > 1
            && (self.is_due() || gate.seen.launch_times.estimates_are_off())
            && now >= self.sampling.at.load(Relaxed)
        {
            self.stop_at(1 + (self.mixed() >> 16) % (batch - 1));
        }
    }
}
