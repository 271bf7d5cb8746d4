//! The grid model: guesses how long a function takes on a grid that was not sampled yet, from grids that were. The
//! limiter keeps one for each kernel function.
//!
//! On a larger grid a function takes at least as long, and at most proportionally longer: its time is about `a + b`
//! times the number of threads. So each sampled size gives an upper bound for any other size, and the least bound is
//! used. The bound errs on the high side, unless the program's arguments matter more than its grids. So some of the
//! launches that are charged by a guess are sampled, drawn at random whatever they are. The sum of their times divided
//! by the sum of their guesses, but at least one, is the factor for the next guesses.

use crate::tuning::{ENOUGH_SAMPLES, LEAST_GUESS_NS, MOST_GUESS_NS, SAMPLES, SIZES};

/// A grid size and its measured time.
#[derive(Clone, Copy, Debug)]
struct Point {
    threads: f64,
    ns: f64,
}

/// A guess, and the time that the launch took.
#[derive(Clone, Copy, Debug)]
struct Trial {
    guessed_ns: f64,
    ns: f64,
    /// Whether no other session could use the device meanwhile.
    alone: bool,
}

/// A ring of the latest values, newest last.
#[derive(Debug)]
struct Latest<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Latest<T, N> {
    fn push(&mut self, one: T) {
        if self.0.len() >= N {
            self.0.remove(0);
        }
        self.0.push(one);
    }
}

/// The sampled grids of one function, and the trials of its guesses.
#[derive(Debug)]
pub struct GridModel {
    samples: u32,
    points: Latest<Point, SIZES>,
    trials: Latest<Trial, SAMPLES>,
    /// The factor by which launches take longer than the bound.
    times: f64,
}

impl Default for GridModel {
    fn default() -> Self {
        Self { samples: 0, points: Latest(Vec::new()), trials: Latest(Vec::new()), times: 1.0 }
    }
}

impl GridModel {
    /// Guesses the duration on a grid of `threads` threads; `None`: too little is known, or the launch may be too long
    /// to guess.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in between")]
    pub fn guess(&self, threads: u64) -> Option<Guess> {
        let bound = self.bound(threads)?;
        let ns = bound * self.times;
        (LEAST_GUESS_NS..=MOST_GUESS_NS).contains(&ns).then_some(Guess { bound, ns: ns as u64 })
    }

    /// So many threads were seen to take so long. `trial`: what was guessed for the sample, if that was drawn, and what
    /// it took itself.
    pub fn add(&mut self, threads: u64, ns: u64, trial: Option<(Guess, u64)>, alone: bool) {
        if let Some((Guess { bound, .. }, ns)) = trial {
            self.add_trial(Trial { guessed_ns: bound, ns: ns as f64, alone });
        }
        self.add_size(threads, ns);
    }

    /// The least bound from the sampled sizes, in nanoseconds.
    fn bound(&self, threads: u64) -> Option<f64> {
        if (self.samples as usize) < ENOUGH_SAMPLES {
            return None;
        }
        let threads = threads as f64;
        let bounds =
            self.points.0.iter().map(|point| point.ns * (threads / point.threads).max(1.0));
        bounds.reduce(f64::min)
    }

    fn add_size(&mut self, threads: u64, ns: u64) {
        self.samples = self.samples.saturating_add(1);
        let point = Point { threads: threads.max(1) as f64, ns: (ns as f64).max(LEAST_GUESS_NS) };
        // Removed and added again, so that the latest sizes are kept.
        self.points.0.retain(|known| known.threads.to_bits() != point.threads.to_bits());
        self.points.push(point);
    }

    fn add_trial(&mut self, trial: Trial) {
        self.trials.push(trial);
        self.times = self.measured(trial.alone).max(1.0);
    }

    /// The sum of measured times divided by the sum of guesses, of undisturbed trials only if the latest one is
    /// undisturbed. Beside another session trials may include its time slices, which makes the factor too large. A
    /// smaller factor would be a loophole: beside others, only estimates tell who used the device.
    fn measured(&self, alone: bool) -> f64 {
        let those = |only_alone: bool| {
            let those = self.trials.0.iter().filter(move |trial| trial.alone || !only_alone);
            those.fold((0, 0.0, 0.0), |(count, guessed_ns, ns), trial| {
                (count + 1, guessed_ns + trial.guessed_ns, ns + trial.ns)
            })
        };
        let (mut count, mut guessed_ns, mut ns) = those(alone);
        if count < ENOUGH_SAMPLES {
            (count, guessed_ns, ns) = those(false);
        }
        if count == 0 { 1.0 } else { ns / guessed_ns }
    }
}

/// A guess.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Guess {
    /// The bound from the sampled sizes, in nanoseconds.
    bound: f64,
    /// Nanoseconds to charge.
    pub ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Charges for launches of `threads` that take `ns` each, relative to the true times; each `every`-th launch is a
    /// trial.
    fn charged(
        family: &mut GridModel,
        every: usize,
        launches: impl Iterator<Item = (u64, u64)>,
        alone: bool,
    ) -> f64 {
        let (mut charged, mut taken) = (0.0, 0.0);
        for (index, (threads, ns)) in launches.enumerate() {
            let Some(guess) = family.guess(threads) else {
                family.add(threads, ns, None, alone);
                continue;
            };
            charged += guess.ns as f64;
            taken += ns as f64;
            if index % every == 0 {
                family.add(threads, ns, Some((guess, ns)), alone);
            }
        }
        charged / taken
    }

    /// Pseudo-random numbers.
    fn random(index: u64) -> u64 {
        let mixed = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) >> 20
    }

    #[test]
    fn nothing_is_guessed_of_a_function_that_was_hardly_sampled() {
        let mut family = GridModel::default();
        for _ in 0..2 {
            family.add(100, 5_000, None, true);
            assert_eq!(family.guess(100), None);
        }
        family.add(100, 5_000, None, true);
        assert_eq!(family.guess(100).unwrap().ns, 5_000);
    }

    #[test]
    fn a_guess_is_as_long_as_what_is_larger_and_in_proportion_to_what_is_smaller() {
        let mut family = GridModel::default();
        (0..3).for_each(|_| family.add(100, 5_000, None, true));
        let guess = |family: &GridModel, threads| family.guess(threads).unwrap().ns;
        assert_eq!(
            [1, 99, 200, 1_000].map(|threads| guess(&family, threads)),
            [5_000, 5_000, 10_000, 50_000]
        );
        family.add(1_000, 20_000, None, true);
        assert_eq!(
            [1, 200, 1_000, 2_000].map(|threads| guess(&family, threads)),
            [5_000, 10_000, 20_000, 40_000]
        );
        assert!(guess(&family, 4_000_000) > 70_000_000);
        assert_eq!(family.guess(u64::MAX), None);
    }

    /// `a + b` times the threads, for any `a` and `b`: never less than the truth, and not much more.
    #[test]
    fn what_follows_its_grid_is_never_guessed_too_short() {
        for (a, b) in [(0, 50), (5_000, 10), (200_000, 1), (30_000, 0)] {
            let takes = |threads: u64| a + b * threads;
            let mut family = GridModel::default();
            for index in 0..2_000 {
                let threads = 200 + random(index) % 20_000;
                match family.guess(threads) {
                    Some(guess) => assert!(guess.ns >= takes(threads) * 99 / 100, "{a} {b}"),
                    None => family.add(threads, takes(threads), None, true),
                }
            }
            let launches = (0..4_000).map(|index| 200 + random(index) % 20_000);
            let part = charged(&mut family, 30, launches.map(|t| (t, takes(t))), true);
            assert!((0.99..1.25).contains(&part), "{a} {b}: {part}");
        }
    }

    #[test]
    fn tiny_and_huge_grids_in_turn() {
        let takes = |threads: u64| 3_000 + threads / 2;
        let launches = (0..4_000).map(|index| {
            let threads = if index % 2 == 0 { 1 } else { 4_000_000 } + random(index) % 1_000;
            (threads, takes(threads))
        });
        let part = charged(&mut GridModel::default(), 7, launches, true);
        assert!((0.99..1.3).contains(&part), "{part}");
    }

    /// The argument determines the time: the larger the grid, the shorter, which nothing could have shown before.
    #[test]
    fn what_does_not_follow_its_grid_is_charged_by_trials() {
        for (tiny_ns, alone) in [(100_000, true), (5_000_000, true), (100_000, false)] {
            let launches = (0..20_000).map(|index| {
                let tiny = random(index + 7).is_multiple_of(4);
                let threads = if tiny { 1 } else { 1_000_000 } + random(index) % 1_000;
                (threads, if tiny { tiny_ns } else { 10_000 })
            });
            let part = charged(&mut GridModel::default(), 30, launches, alone);
            assert!(part > 0.9, "{tiny_ns}: {part}");
        }
    }

    #[test]
    fn what_was_taken_alone_counts_alone() {
        let mut family = GridModel::default();
        for index in 0..30 {
            let guess = family.guess(100);
            let (ns, alone) = if index < 20 { (50_000, false) } else { (5_000, true) };
            family.add(100, 5_000, guess.map(|guess| (guess, ns)), alone);
            let expected = match index {
                0 | 1 => continue,
                2 => 5_000,
                3..22 => 50_000,
                _ => 5_000,
            };
            let charged = family.guess(100).unwrap().ns;
            assert!(charged == expected || index < 22 && charged > 20_000, "{index}: {charged}");
        }
    }
}
