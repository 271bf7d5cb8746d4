//! How long each kind of work takes: what [`limiter_core::Samples`] say, where a launch sees it without a lock. How the
//! launch finds it: [`super::kinds`].

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use limiter_core::{GridModel, Guess, Samples};
use std::sync::{Mutex, RwLock};

/// The launches of one function, on grids of any size.
#[derive(Default)]
pub(super) struct Family {
    /// How often it has been met while nothing could be guessed. What the driver loads for its first launch would be
    /// taken for that one's duration.
    met: AtomicU64,
    // Only with `try_`: in a forked child the lock may be held by a thread that does not exist there.
    grids: RwLock<GridModel>,
}

/// The state of one work kind. Field order matters: a launch reads the first two, in one cache line.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Estimate {
    /// Nanoseconds; 0: unknown.
    ns: AtomicU64,
    /// Whether its name is that of a kernel that waits for kernels on other devices.
    collective: bool,
    /// How often the slow path has met the kind.
    met: AtomicU64,
    /// Whether the latest sample contradicts the estimate.
    doubtful: AtomicBool,
    /// Whether all recent samples are alike.
    steady: AtomicBool,
    /// Whether there were enough samples while no other session used the device.
    settled: AtomicBool,
    samples: Mutex<Samples>,
    /// For a kernel: its function, and the number of threads of its grid.
    function: Option<(&'static Family, u64)>,
}

impl Estimate {
    /// Makes the estimate of a new kind.
    pub(super) fn new(function: Option<(&'static Family, u64)>, collective: bool) -> Self {
        Self { function, collective, ..Self::default() }
    }

    /// How long the work takes, in nanoseconds; `None`: unknown.
    #[inline]
    pub(super) fn ns(&self) -> Option<u64> {
        match self.ns.load(Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// Like [`Self::ns`], but `None` for collectives, which need the slow path.
    #[inline]
    pub(super) fn quick_ns(&self) -> Option<u64> {
        if self.collective { None } else { self.ns() }
    }

    /// Whether the work is a kernel that waits for kernels on other devices.
    pub(super) const fn is_collective(&self) -> bool {
        self.collective
    }

    /// The estimate, or else a guess by the grid model.
    pub(super) fn known_or_guessed(&self) -> (Option<u64>, Option<Guess>) {
        let known = self.ns();
        let guess = || {
            self.function.and_then(|(family, threads)| family.grids.try_read().ok()?.guess(threads))
        };
        (known, if known.is_some() { None } else { guess() })
    }

    /// Whether the latest sample contradicts the estimate, so that the next launches should be sampled.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Relaxed)
    }

    /// Whether the next launches should be sampled if no other session uses the device, because few samples were taken
    /// alone.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.settled.load(Relaxed)
    }

    /// Whether the work has recently always taken about the same time, so that few samples suffice.
    pub(super) fn is_steady(&self) -> bool {
        self.steady.load(Relaxed)
    }

    /// Whether the next launch should be sampled because too few samples exist. Not the function's first launch:
    /// loading code would count as its duration.
    pub(super) fn wants_sample(&self) -> bool {
        let loaded = self.function.is_some_and(|(family, _)| family.met.fetch_add(1, Relaxed) > 0);
        self.is_met_again() || loaded
    }

    /// Whether the slow path has met the kind before; counts this time.
    pub(super) fn is_met_again(&self) -> bool {
        self.met.fetch_add(1, Relaxed) > 0
    }

    /// Adds a sample. `guess`: the guess for this launch, if it was drawn to check guesses.
    pub(super) fn add(&self, ns: u64, alone: bool, guess: Option<Guess>) {
        // In a forked child the lock may be held by a thread that does not exist there. Losing a sample does not
        // matter.
        let Ok(mut samples) = self.samples.try_lock() else { return };
        let mut middle = samples.add(ns, alone);
        if self.collective {
            // Time that a collective waits for other devices is not its own.
            middle = samples.shortest().unwrap_or(middle);
        }
        self.doubtful.store(samples.are_doubtful(ns, middle), Relaxed);
        self.steady.store(samples.are_steady(), Relaxed);
        self.settled.store(samples.are_settled(), Relaxed);
        // Until there are enough samples, every launch takes the slow path.
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
