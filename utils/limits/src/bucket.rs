//! Time quotas as token buckets: passing time fills a bucket, holding the device empties it. Used by the session's
//! ledger and the daemon's scheduler.
//!
//! All times are in nanoseconds of one monotonic clock, passed in by the caller. Shares are in millionths of wall time
//! ([`PPM_ONE`] = 100 %). Sums are exact: earnings between two moments do not depend on how often the bucket was
//! settled in between, so an account does not drift.

use crate::units::PPM_ONE;

/// The deepest debt that an account keeps: 10 s. More is forgiven, so that an endless kernel does not lock a session
/// out for as long as it ran.
pub const DEEPEST_DEBT_NS: i64 = -10_000_000_000;

/// A session's time account on a device. Plain data: a caller that shares it between threads or processes may store the
/// two words itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Time left to hold the device. Negative: time that must be earned back first.
    pub balance_ns: i64,
    /// Moment up to which earnings and use are counted.
    pub settled_at_ns: u64,
}

impl Bucket {
    /// An empty bucket that starts to fill at `now_ns`.
    pub fn empty_at(now_ns: u64) -> Self {
        Self { balance_ns: 0, settled_at_ns: now_ns }
    }

    /// Settles the account up to `now_ns`: adds the share of the elapsed time, and subtracts that time if the device
    /// was held throughout (`holding`). The balance stays between [`DEEPEST_DEBT_NS`] and `burst_ns`. A `now_ns` in the
    /// past changes nothing.
    ///
    /// Call whenever `share_ppm` or `holding` changes, with the value in force *until* then.
    pub fn settle(&mut self, now_ns: u64, share_ppm: u32, burst_ns: u64, holding: bool) {
        if now_ns <= self.settled_at_ns {
            return;
        }
        let earned = earned_since_start(now_ns, share_ppm)
            - earned_since_start(self.settled_at_ns, share_ppm);
        let used = if holding { now_ns - self.settled_at_ns } else { 0 };
        self.balance_ns = self
            .balance_ns
            .saturating_add(saturate(earned))
            .saturating_sub(saturate(used))
            .min(saturate(burst_ns))
            .max(DEEPEST_DEBT_NS);
        self.settled_at_ns = now_ns;
    }

    /// Subtracts `ns` from the balance at once, but not below [`DEEPEST_DEBT_NS`].
    pub fn charge(&mut self, ns: u64) {
        self.balance_ns = self.balance_ns.saturating_sub(saturate(ns)).max(DEEPEST_DEBT_NS);
    }

    /// Subtracts `ns` from the saved time, without making a debt.
    pub fn spend(&mut self, ns: u64) {
        let saved = self.balance_ns.max(0);
        self.balance_ns -= saved.min(saturate(ns));
    }

    /// How long the device can be held from now until the balance is used up, including earnings meanwhile. `None`: the
    /// balance is not positive. With a share of 100 % it never runs out (`u64::MAX`).
    pub fn lease_length(&self, share_ppm: u32) -> Option<u64> {
        let balance = u64::try_from(self.balance_ns).ok().filter(|&ns| ns > 0)?;
        let drain_ppm = u64::from(PPM_ONE.saturating_sub(share_ppm));
        if drain_ppm == 0 {
            return Some(u64::MAX);
        }
        Some(narrow(u128::from(balance) * u128::from(PPM_ONE) / u128::from(drain_ppm)))
    }

    /// How long until the balance reaches `balance_ns` if the device is not held. `Some(0)`: it already has. `None`:
    /// never, because the share is zero. Does not check whether the burst allows such a balance.
    pub fn ready_in(&self, balance_ns: u64, share_ppm: u32) -> Option<u64> {
        let missing = i128::from(balance_ns) - i128::from(self.balance_ns);
        let Some(missing) = u128::try_from(missing).ok().filter(|&ns| ns > 0) else {
            return Some(0);
        };
        let share = share_ppm.min(PPM_ONE);
        let millionths = missing.saturating_mul(u128::from(PPM_ONE));
        match (share, u64::try_from(millionths)) {
            (0, _) => None,
            // Nearly always: a 64-bit division is several times as fast.
            (share, Ok(millionths)) => Some(millionths.div_ceil(u64::from(share))),
            (share, Err(_)) => Some(narrow(millionths.div_ceil(u128::from(share)))),
        }
    }
}

/// The balance needed to hold the device for `length_ns`, including earnings meanwhile: the inverse of
/// [`Bucket::lease_length`], rounded up.
pub fn balance_for(length_ns: u64, share_ppm: u32) -> u64 {
    let (drain, whole) = (u64::from(PPM_ONE.saturating_sub(share_ppm)), u64::from(PPM_ONE));
    // Equal to length * drain / PPM_ONE, rounded up, without the intermediate overflow.
    length_ns / whole * drain + (length_ns % whole * drain).div_ceil(whole)
}

/// Earnings of a share in `length_ns`, rounded down.
pub fn earned(length_ns: u64, share_ppm: u32) -> u64 {
    earned_since_start(length_ns, share_ppm)
}

/// Earnings since the clock's start, rounded down. Settling uses differences of this, which makes it exact: the next
/// settlement undoes the rounding of the previous one.
fn earned_since_start(now_ns: u64, share_ppm: u32) -> u64 {
    let (share, whole) = (u64::from(share_ppm.min(PPM_ONE)), u64::from(PPM_ONE));
    // Equal to now * share / PPM_ONE without the intermediate overflow.
    now_ns / whole * share + now_ns % whole * share / whole
}

fn saturate(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn narrow(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const UNCAPPED: u64 = i64::MAX as u64;

    #[test]
    fn a_quarter_share_earns_a_quarter_and_pays_for_holding() {
        let mut bucket = Bucket::empty_at(0);
        bucket.settle(40 * MS, 250_000, 25 * MS, false);
        assert_eq!(bucket.balance_ns, 10_000_000);
        assert_eq!(bucket.lease_length(250_000), Some(13_333_333));
        bucket.settle(60 * MS, 250_000, 25 * MS, true);
        assert_eq!(bucket.balance_ns, -5_000_000);
        assert_eq!(bucket.lease_length(250_000), None);
        assert_eq!(bucket.ready_in(0, 250_000), Some(20 * MS));
    }

    #[test]
    fn idling_earns_no_more_than_the_burst_and_debt_has_a_floor() {
        let mut bucket = Bucket::empty_at(0);
        bucket.settle(3_600_000 * MS, 500_000, 50 * MS, false);
        assert_eq!(bucket.balance_ns, 50_000_000);
        bucket.settle(7_200_000 * MS, 500_000, 50 * MS, true);
        assert_eq!(bucket.balance_ns, DEEPEST_DEBT_NS);
        bucket.charge(u64::MAX);
        assert_eq!(bucket.balance_ns, DEEPEST_DEBT_NS);
    }

    #[test]
    fn the_past_changes_nothing() {
        let mut bucket = Bucket { balance_ns: 7, settled_at_ns: 100 };
        bucket.settle(99, 1_000_000, 1_000, true);
        bucket.settle(100, 1_000_000, 1_000, true);
        assert_eq!(bucket, Bucket { balance_ns: 7, settled_at_ns: 100 });
    }

    #[test]
    fn whole_and_zero_shares() {
        let bucket = Bucket { balance_ns: 1, settled_at_ns: 0 };
        assert_eq!(bucket.lease_length(PPM_ONE), Some(u64::MAX));
        assert_eq!(bucket.lease_length(PPM_ONE + 5), Some(u64::MAX));
        assert_eq!(bucket.ready_in(2, 0), None);
        assert_eq!(bucket.ready_in(1, 0), Some(0));
        assert_eq!(balance_for(5 * MS, PPM_ONE), 0);
        assert_eq!(balance_for(5 * MS, 0), 5 * MS);
    }

    proptest! {
        /// The sum does not depend on how often the account is settled, to the nanosecond.
        #[test]
        fn no_drift(
            start in 0u64..u64::MAX / 2,
            steps in prop::collection::vec((0u64..3_000_000, any::<bool>()), 1..200),
            share in 0u32..=PPM_ONE,
        ) {
            let mut bucket = Bucket::empty_at(start);
            let (mut now, mut held) = (start, 0u64);
            for (step, holding) in steps {
                now += step;
                held += if holding { step } else { 0 };
                bucket.settle(now, share, UNCAPPED, holding);
            }
            let exact = (u128::from(now) * u128::from(share) / 1_000_000) as i128
                - (u128::from(start) * u128::from(share) / 1_000_000) as i128
                - i128::from(held);
            prop_assert_eq!(i128::from(bucket.balance_ns), exact);
        }

        /// No argument causes an overflow or leaves the bounds.
        #[test]
        fn bounds_hold_for_all_values(
            balance in any::<i64>(), at in any::<u64>(), now in any::<u64>(),
            share in any::<u32>(), burst in any::<u64>(), holding in any::<bool>(),
        ) {
            let mut bucket = Bucket { balance_ns: balance, settled_at_ns: at };
            bucket.settle(now, share, burst, holding);
            if now > at {
                prop_assert!(bucket.balance_ns >= DEEPEST_DEBT_NS);
                prop_assert!(bucket.balance_ns <= saturate(burst).max(DEEPEST_DEBT_NS));
            }
            bucket.charge(burst);
            let _ = (bucket.lease_length(share), bucket.ready_in(burst, share));
            let _ = (balance_for(now, share), earned(now, share));
        }

        /// The balance is reached after `ready_in`, and not one grain of the share earlier.
        #[test]
        fn ready_in_is_sufficient_and_not_late(
            balance in -1_000_000_000i64..1_000_000, want in 0u64..100_000_000,
            at in 0u64..u64::MAX / 4, share in 1u32..=PPM_ONE,
        ) {
            let bucket = Bucket { balance_ns: balance, settled_at_ns: at };
            let wait = bucket.ready_in(want, share).unwrap();
            let mut later = bucket;
            later.settle(at + wait, share, UNCAPPED, false);
            prop_assert!(later.balance_ns >= want as i64);
            let grain = 2 * u64::from(PPM_ONE).div_ceil(u64::from(share));
            if wait > grain {
                let mut early = bucket;
                early.settle(at + wait - grain, share, UNCAPPED, false);
                prop_assert!(early.balance_ns < want as i64);
            }
        }

        /// Holding for the lease's length uses up the balance, overdrawn by rounding at most.
        #[test]
        fn a_lease_uses_up_the_balance(
            balance in 1i64..1_000_000_000, at in 0u64..u64::MAX / 4, share in 0u32..PPM_ONE,
        ) {
            let mut bucket = Bucket { balance_ns: balance, settled_at_ns: at };
            let length = bucket.lease_length(share).unwrap();
            prop_assert!(balance_for(length, share) <= balance as u64);
            bucket.settle(at + length, share, UNCAPPED, true);
            prop_assert!((0..=2).contains(&bucket.balance_ns), "{}", bucket.balance_ns);
        }
    }
}
