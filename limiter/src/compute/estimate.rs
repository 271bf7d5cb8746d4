//! How long each kind of work takes: what [`limiter_core::Samples`] say, where a launch sees it without a lock. How the
//! launch finds it: [`super::kinds`].

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use limiter_core::{GridModel, Guess, Samples};
use std::sync::{Mutex, RwLock};

/// The launches of one function on grids of any size.
#[derive(Default)]
pub(super) struct Family {
    /// How often it has been met while nothing could be guessed. What the driver loads for its first launch would be
    /// taken for that one's duration.
    met: AtomicU64,
    // In a forked child a thread that is not there may hold it: it is tried only.
    grids: RwLock<GridModel>,
}

/// What is known of one kind of work. In this order: a launch looks at the first two, in one cache line.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Estimate {
    /// Nanoseconds; zero: not known.
    ns: AtomicU64,
    /// By its name it waits for kernels on other devices.
    collective: bool,
    /// How often it has been met by a slow path, up to a few.
    met: AtomicU64,
    /// The latest sample had nothing to do with it.
    doubtful: AtomicBool,
    /// All samples of late are alike.
    steady: AtomicBool,
    /// There have been enough samples with no other session there.
    settled: AtomicBool,
    samples: Mutex<Samples>,
    /// Of a kernel: its function, and on how many threads it is launched.
    function: Option<(&'static Family, u64)>,
}

impl Estimate {
    /// Of a kind that is met for the first time.
    pub(super) fn new(function: Option<(&'static Family, u64)>, collective: bool) -> Self {
        Self { function, collective, ..Self::default() }
    }

    /// How long the work takes, in nanoseconds; `None`: not known yet.
    #[inline]
    pub(super) fn ns(&self) -> Option<u64> {
        match self.ns.load(Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// The same, for launches of which nothing has to be noted.
    #[inline]
    pub(super) fn quick_ns(&self) -> Option<u64> {
        if self.collective { None } else { self.ns() }
    }

    /// Whether it is a kernel that waits for those of other devices.
    pub(super) const fn is_collective(&self) -> bool {
        self.collective
    }

    /// The same; while it is not known, what can be guessed.
    pub(super) fn known_or_guessed(&self) -> (Option<u64>, Option<Guess>) {
        let known = self.ns();
        let guess = || {
            self.function.and_then(|(family, threads)| family.grids.try_read().ok()?.guess(threads))
        };
        (known, if known.is_some() { None } else { guess() })
    }

    /// Whether the latest sample says otherwise, so that the next launches should be looked at.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed)
    }

    /// Whether the next launches should be looked at if no other session is there: it has hardly been alone yet.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.settled.load(Relaxed)
    }

    /// Whether the work has always taken about the same lately, so that few samples tell enough.
    pub(super) fn is_steady(&self) -> bool {
        self.steady.load(Relaxed)
    }

    /// Whether the next launch should be sampled because little is known. Not the first: what the
    /// driver loads for it would be taken for its duration.
    pub(super) fn wants_sample(&self) -> bool {
        let loaded = self.function.is_some_and(|(family, _)| family.met.fetch_add(1, Relaxed) > 0);
        self.is_met_again() || loaded
    }

    /// Whether it has been met before.
    pub(super) fn is_met_again(&self) -> bool {
        self.met.fetch_add(1, Relaxed) > 0
    }

    /// Takes a sample in. `guess`: what was guessed for it, if it was drawn.
    pub(super) fn add(&self, ns: u64, alone: bool, guess: Option<Guess>) {
        // In a forked child a thread that is not there may hold it; a sample more or less does not matter.
        let Ok(mut samples) = self.samples.try_lock() else { return };
        let mut middle = samples.add(ns, alone);
        if self.collective {
            // What it waits for others is not its own.
            middle = samples.shortest().unwrap_or(middle);
        }
        self.doubtful.store(samples.are_doubtful(ns, middle), Relaxed);
        self.steady.store(samples.are_steady(), Relaxed);
        self.settled.store(samples.are_settled(), Relaxed);
        // Until there are enough, every launch is looked at.
        if samples.are_enough() {
            self.ns.store(middle.max(1), Relaxed);
        }
        if let Some((family, threads)) = self.function
            && let Ok(mut grids) = family.grids.try_write()
        {
            grids.add(threads, middle, guess.map(|guess| (guess, ns)), alone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_there_are_enough_samples() {
        let estimate = Estimate::default();
        assert!(!estimate.wants_sample() && estimate.wants_sample());
        for ns in [500, 10] {
            estimate.add(ns, true, None);
            assert_eq!(estimate.ns(), None);
        }
        estimate.add(14, true, None);
        assert_eq!(estimate.ns(), Some((500 + 10 + 14) / 3));
    }

    #[test]
    fn a_sample_that_says_otherwise_makes_the_next_launches_be_looked_at() {
        let estimate = Estimate::default();
        (0..5).for_each(|_| estimate.add(100, true, None));
        assert!(!estimate.is_doubtful());
        estimate.add(300, false, None);
        assert!(estimate.is_doubtful());
        estimate.add(110, false, None);
        assert!(!estimate.is_doubtful());
    }
}
