//! Estimates how long a kind of work takes from its latest samples. The limiter keeps one [`Samples`] per kind.
//!
//! If the session had the device to itself, the estimate is the mean, which is right also for work whose time varies.
//! If another session may have used the device as well, some samples include its time slices, and its use of the caches
//! makes all of them longer. Then the estimate is the lower quartile. If that is close to the lower quartile of earlier
//! undisturbed samples, their mean remains the estimate.

use crate::tuning::{DISTURBANCE_NS, ENOUGH_SAMPLES, SAMPLES};

/// One measured duration.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    ns: u64,
    /// Whether no other session could use the device meanwhile.
    alone: bool,
}

/// Statistics of undisturbed samples.
#[derive(Clone, Copy, Debug)]
struct Undisturbed {
    quarter: u64,
    mean: u64,
}

/// The latest samples of one kind of work.
#[derive(Debug, Default)]
pub struct Samples {
    ring: [Sample; SAMPLES],
    /// Number of samples since the work last changed.
    count: usize,
    /// The first undisturbed samples, until there are enough: undisturbed moments may be rare.
    early: [u64; ENOUGH_SAMPLES],
    early_count: usize,
    /// Statistics from when there were last enough undisturbed samples.
    undisturbed: Option<Undisturbed>,
    /// Recent consecutive samples that differ from the earlier ones by more than a factor of two.
    strays: [Sample; ENOUGH_SAMPLES],
    stray: usize,
}

impl Samples {
    /// Adds a sample and returns the new estimate, both in nanoseconds. `alone`: no other session could use the device
    /// meanwhile.
    pub fn add(&mut self, ns: u64, alone: bool) -> u64 {
        let sample = Sample { ns, alone };
        self.notice_stray(sample);
        self.ring[self.count % SAMPLES] = sample;
        self.count += 1;
        if alone {
            self.undisturbed = self.alone().or_else(|| self.early(ns)).or(self.undisturbed);
        }
        self.estimate().unwrap_or(ns)
    }

    /// Several strays in a row mean that the work has changed, so the earlier samples are dropped.
    fn notice_stray(&mut self, sample: Sample) {
        let Sample { ns, alone } = sample;
        // Work that alternates between two durations does not change each time.
        let earlier = self.stray..self.count.min(SAMPLES);
        let known = || earlier.clone().map(|back| self.ring[(self.count - 1 - back) % SAMPLES].ns);
        let is_below = known().min().is_some_and(|least| ns < least / 2);
        let is_above = alone && known().max().is_some_and(|most| ns > most.saturating_mul(2));
        if !is_below && !is_above {
            self.stray = 0;
            return;
        }
        self.strays[self.stray] = sample;
        self.stray += 1;
        if self.stray == self.strays.len() {
            // The current sample is added by the caller.
            let earlier = self.strays.len() - 1;
            self.ring[..earlier].copy_from_slice(&self.strays[..earlier]);
            self.count = earlier;
            self.undisturbed = None;
            self.early_count = 0;
            self.stray = 0;
        }
    }

    /// Adds an early undisturbed sample; returns their statistics once there are enough.
    fn early(&mut self, ns: u64) -> Option<Undisturbed> {
        *self.early.get_mut(self.early_count)? = ns;
        self.early_count += 1;
        if self.early_count < self.early.len() {
            return None;
        }
        self.early.sort_unstable();
        said_by(&self.early)
    }

    /// The shortest of the latest samples, in nanoseconds.
    pub fn shortest(&self) -> Option<u64> {
        self.ring[..self.count.min(SAMPLES)].iter().map(|sample| sample.ns).min()
    }

    /// Whether there are enough samples, so that launches of the work can take the fast path.
    pub fn are_enough(&self) -> bool {
        self.count >= ENOUGH_SAMPLES
    }

    /// Whether there were enough undisturbed samples.
    pub fn are_settled(&self) -> bool {
        self.undisturbed.is_some()
    }

    /// Whether the latest one, which took so long, says otherwise than the estimate. Beside another session a longer
    /// one may be that one's doing; the next ones tell.
    pub fn are_doubtful(&self, ns: u64, estimate: u64) -> bool {
        self.stray > 0 || ns > estimate.saturating_mul(2)
    }

    fn latest(&self) -> Option<Sample> {
        Some(self.ring[self.count.checked_sub(1)? % SAMPLES])
    }

    /// The samples in ascending order: all, or only undisturbed ones.
    fn sorted<'a>(&self, alone: bool, place: &'a mut [u64; SAMPLES]) -> &'a mut [u64] {
        let known = &self.ring[..self.count.min(SAMPLES)];
        let chosen = known.iter().filter(|sample| sample.alone || !alone);
        let count = place.iter_mut().zip(chosen).map(|(to, sample)| *to = sample.ns).count();
        let sorted = &mut place[..count];
        sorted.sort_unstable();
        sorted
    }

    /// Whether the work is steady: there are enough undisturbed samples, their middle half is within an eighth of the
    /// estimate, and the latest one within a quarter.
    pub fn are_steady(&self) -> bool {
        let (Some(estimate), Some(latest)) = (self.estimate(), self.latest()) else { return false };
        let mut place = [0; SAMPLES];
        let sorted = self.sorted(true, &mut place);
        if sorted.len() < SAMPLES || self.stray > 0 {
            return false;
        }
        let spread = sorted[SAMPLES * 3 / 4] - sorted[SAMPLES / 4];
        spread <= estimate / 8 && latest.ns.abs_diff(estimate) <= estimate / 4
    }

    fn estimate(&self) -> Option<u64> {
        if self.latest()?.alone
            && let Some(Undisturbed { mean, .. }) = self.alone()
        {
            return Some(mean);
        }
        let mut place = [0; SAMPLES];
        let Undisturbed { quarter, .. } = said_by(self.sorted(false, &mut place))?;
        let is_near = |known: &Undisturbed| {
            let most = known.quarter.saturating_mul(2).saturating_add(DISTURBANCE_NS);
            (known.quarter / 2..=most).contains(&quarter)
        };
        Some(self.undisturbed.filter(is_near).map_or(quarter, |known| known.mean))
    }

    /// Statistics of the undisturbed samples, if there are enough.
    fn alone(&self) -> Option<Undisturbed> {
        let mut place = [0; SAMPLES];
        let sorted = self.sorted(true, &mut place);
        if sorted.len() < ENOUGH_SAMPLES { None } else { said_by(sorted) }
    }
}

/// Statistics of sorted samples; `None`: there are none.
fn said_by(sorted: &[u64]) -> Option<Undisturbed> {
    let quarter = sorted.len().div_ceil(4).min(sorted.len().saturating_sub(1) / 2);
    let sum: u128 = sorted.iter().map(|&ns| u128::from(ns)).sum();
    let mean = u64::try_from(sum.checked_div(sorted.len() as u128)?).ok()?;
    Some(Undisturbed { quarter: *sorted.get(quarter)?, mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel whose time depends on its arguments: each tenth launch takes a thousand times as long.
    #[test]
    fn rare_long_ones_count_as_often_as_they_come() {
        let mut samples = Samples::default();
        let mut take = |alone: bool| {
            let ns = |round| if round % 10 == 0 { 20_000_000 } else { 20_000 };
            (0..300).map(|round| samples.add(ns(round), alone)).skip(100).sum::<u64>() / 200
        };
        let mean = (20_000_000 + 9 * 20_000) / 10;
        assert!(take(true).abs_diff(mean) < mean / 50);
        // Beside others the estimate remains.
        assert!(take(false) > mean / 2);
    }

    #[test]
    fn work_that_takes_now_this_now_that_is_known_by_its_mean() {
        let mut samples = Samples::default();
        let mut estimate = 0;
        for round in 0..30 {
            estimate = samples.add(if round % 2 == 0 { 120 } else { 80 }, true);
        }
        assert!((95..=105).contains(&estimate), "{estimate}");
    }

    /// Up to two thirds of the samples contain slices, however many consecutive ones.
    #[test]
    fn slices_of_other_sessions_do_not_make_work_longer() {
        let mut samples = Samples::default();
        let mut estimate = 0;
        for round in 0..60 {
            estimate = samples.add(if round % 15 < 10 { 2_000_000 } else { 5_000 }, false);
        }
        assert_eq!(estimate, 5_000);
        // Undisturbed samples replace the estimate.
        for _ in 0..15 {
            estimate = samples.add(6_000, true);
        }
        assert_eq!(estimate, 6_000);
        // The estimate remains as long as other sessions may explain the next samples.
        for (ns, expected) in [(9_000, 6_000), (14_000, 6_000), (40_000, 40_000), (5_000, 5_000)] {
            for _ in 0..15 {
                estimate = samples.add(ns, false);
            }
            assert_eq!(estimate, expected);
        }
    }

    /// Beside others, kernels longer than the hardware's slices are always sampled with slices.
    #[test]
    fn a_moment_alone_tells_more_than_all_that_was_seen_beside_others() {
        let mut samples = Samples::default();
        assert!((0..40).all(|_| samples.add(2_840, false) == 2_840));
        assert_eq!(samples.add(2_500, true), 2_840);
        samples.add(2_510, true);
        assert_eq!(samples.add(2_490, true), 2_500);
        assert!((0..40).all(|_| samples.add(2_840, false) == 2_500));
    }

    #[test]
    fn moments_alone_that_are_far_between_add_up() {
        let mut samples = Samples::default();
        for moment in 0..3 {
            assert!((0..40).all(|_| samples.add(2_840, false) == 2_840), "{moment}");
            samples.add(2_500 + moment, true);
        }
        assert!((0..40).all(|_| samples.add(2_840, false) == 2_501));
    }

    #[test]
    fn steady_work_is_told_from_work_that_varies() {
        let mut samples = Samples::default();
        let steady = |samples: &mut Samples, ns: u64| {
            samples.add(ns, true);
            samples.are_steady()
        };
        let all: Vec<bool> =
            (0..SAMPLES as u64).map(|round| steady(&mut samples, 1000 + round % 4 * 30)).collect();
        assert_eq!(all.iter().position(|&steady| steady), Some(SAMPLES - 1));
        // One outlier is enough, and then several samples have to agree.
        assert!(!steady(&mut samples, 1400) && steady(&mut samples, 1030));
        assert!(!steady(&mut samples, 5000) && steady(&mut samples, 1030));
        samples.add(1000, false);
        assert!(!steady(&mut samples, 1000));
        let mut varying = Samples::default();
        assert!((0..60).all(|round| !steady(&mut varying, 800 + round % 2 * 400)));
    }

    #[test]
    fn it_follows_work_that_changes() {
        let mut samples = Samples::default();
        for _ in 0..100 {
            samples.add(100, true);
        }
        assert_eq!((0..3).map(|_| samples.add(300, true)).last(), Some(300));
        assert_eq!((0..15).map(|_| samples.add(400, true)).last(), Some(400));
    }
}
