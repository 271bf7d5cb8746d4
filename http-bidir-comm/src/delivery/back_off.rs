//! How long to leave a server alone that did not answer.

use std::time::Duration;

/// Pauses that grow twice as long with each failure, up to a bound, each with a random part: clients
/// that lost their server together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// The longest first pause.
    pub first: Duration,
    /// No pause is longer.
    pub most: Duration,
}

impl Default for BackOff {
    /// From 0.1 s to 10 s.
    fn default() -> Self {
        Self { first: Duration::from_millis(100), most: Duration::from_secs(10) }
    }
}

impl BackOff {
    /// The pause after failure number `failures` in a row, counted from 0. `random` is any number;
    /// the pause is between half and all of `first` times 2 to the power of `failures`.
    ///
    /// ```
    /// use std::time::Duration;
    /// let back_off = http_bidir_comm::BackOff::default();
    /// assert_eq!(back_off.pause(0, 0), Duration::from_millis(50));
    /// assert_eq!(back_off.pause(3, u64::MAX), Duration::from_millis(800));
    /// assert_eq!(back_off.pause(1_000_000, u64::MAX), back_off.most);
    /// ```
    #[must_use]
    pub fn pause(&self, failures: u32, random: u64) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(factor).min(self.most);
        let half = longest / 2;
        let of_the_rest = u128::from(random) * (longest - half).as_nanos() / u128::from(u64::MAX);
        half + Duration::from_nanos(u64::try_from(of_the_rest).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pause_is_bounded_and_at_least_half(
            first in 0u64..1 << 40, most in 0u64..1 << 40,
            failures in any::<u32>(), random in any::<u64>(),
        ) {
            let back_off =
                BackOff { first: Duration::from_nanos(first), most: Duration::from_nanos(most) };
            let pause = back_off.pause(failures, random);
            prop_assert!(pause <= back_off.most);
            prop_assert!(pause >= back_off.first.min(back_off.most) / 2);
            prop_assert!(pause <= back_off.pause(failures, u64::MAX));
            prop_assert!(back_off.pause(failures, 0) <= back_off.pause(failures.saturating_add(1), 0));
        }
    }
}
