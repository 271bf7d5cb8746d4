//! Random numbers from a seed.

/// A generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Makes a generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        if most == u64::MAX { z } else { z % (most + 1) }
    }

    /// A number from `least` to `most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.up_to(most.saturating_sub(least))
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.up_to(times.saturating_sub(1)) == 0
    }

    /// One of the values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.up_to(values.len() as u64 - 1) as usize]
    }

    /// The time until the next of random events that happen once in `mean` on average.
    pub fn random_time(&mut self, mean: u64) -> u64 {
        let chance = (self.up_to(1 << 40) + 1) as f64 / (1u64 << 40) as f64;
        (-chance.ln() * mean as f64) as u64
    }
}
