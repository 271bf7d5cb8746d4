//! Random numbers.

/// Random numbers (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The time until something happens that happens once in `mean` at random.
    pub(crate) fn random_time(&mut self, mean: u64) -> u64 {
        let chance = (self.up_to(1 << 40) + 1) as f64 / (1u64 << 40) as f64;
        (-chance.ln() * mean as f64) as u64
    }

    /// A number from 0 to `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % (most + 1)
    }
}
