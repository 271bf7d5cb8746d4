//! How much of the device's time the session may use under leases that the page did not grant.
//!
//! A daemon decides by an account of its own. It is believed as long as the session stays near its
//! limit by the session's own measure. A true daemon's account differs a little: beside other
//! sessions it corrects estimates by a fifth at most. So a quarter of the limit and two points more
//! are allowed, and what that makes in half a second may be saved up.

use super::Ledger;
use crate::clock;
use core::sync::atomic::Ordering::Relaxed;
use limits::bucket::{Bucket, earned};
use limits::units::PPM_ONE;
use limits::{ComputeLimit, Policy};

/// For so long what the session's own account granted may be why nothing is left.
const OWN_COUNTS_NS: u64 = 2_000_000_000;
/// What a session may save up: what it may use in this time.
const SLACK_PERIOD_NS: u64 = 500_000_000;
/// How much more than the limit is allowed: this part of it, ...
const SLACK_PART: u32 = 4;
/// ... and this much of the device's time.
const SLACK_PPM: u32 = 20_000;

/// The part of the device's time that a session may use, whoever grants it. `None`: all of it.
fn allowed_ppm(limit: &ComputeLimit) -> Option<u32> {
    let most = match limit.policy {
        Policy::None => return None,
        Policy::Fixed => limit.share_ppm,
        Policy::Balance => limit.ceiling_ppm()?,
    };
    let most = most.min(PPM_ONE);
    Some(most + most / SLACK_PART + SLACK_PPM).filter(|&allowed| allowed < PPM_ONE)
}

impl Ledger<'_> {
    /// For how long the session may use the device from now on under a lease from elsewhere; zero:
    /// not at all.
    pub fn allowed_elsewhere(&mut self, now_ns: u64) -> u64 {
        match self.settle_elsewhere(now_ns) {
            Some((bucket, ppm)) => bucket.lease_length(ppm).unwrap_or(0),
            None => u64::MAX,
        }
    }

    /// Whether all that the session used lately was granted elsewhere. While a daemon is late, the session's own account
    /// grants the same time once more: then a true one may seem to grant too much.
    pub fn is_granted_elsewhere_only(&self, now_ns: u64) -> bool {
        let own_at_ns = self.0.own_at_ns.load(Relaxed);
        own_at_ns == 0 || now_ns.abs_diff(own_at_ns) >= OWN_COUNTS_NS
    }

    /// Notes that the session used the device in the last `held_ns`, whoever allowed that. Returns what counts:
    /// processes that hold at once have used no more together than the time that has passed.
    pub(super) fn note_use(&mut self, now_ns: u64, held_ns: u64, used_ns: u64) -> u64 {
        let from = now_ns.saturating_sub(held_ns);
        let cursor = self.0.elsewhere_until_ns.load(Relaxed).clamp(from, now_ns);
        let counts = used_ns.min(now_ns - cursor);
        self.0.elsewhere_until_ns.store(cursor + counts, Relaxed);
        if let Some((mut bucket, _)) = self.settle_elsewhere(now_ns) {
            bucket.charge(counts);
            self.keep_elsewhere(bucket);
        }
        counts
    }

    fn settle_elsewhere(&mut self, now_ns: u64) -> Option<(Bucket, u32)> {
        let ppm = allowed_ppm(&self.0.limits().compute)?;
        let most = earned(SLACK_PERIOD_NS, ppm);
        let mut bucket = Bucket {
            balance_ns: self.0.elsewhere_ns.load(Relaxed),
            settled_at_ns: clock::at_most(self.0.elsewhere_at_ns.load(Relaxed), now_ns),
        };
        if bucket.settled_at_ns == 0 {
            let balance_ns = i64::try_from(most).unwrap_or(i64::MAX);
            bucket = Bucket { balance_ns, settled_at_ns: now_ns };
        }
        bucket.settle(now_ns, ppm, most, false);
        // The page may hold any number.
        bucket.balance_ns = bucket.balance_ns.min(i64::try_from(most).unwrap_or(i64::MAX));
        self.keep_elsewhere(bucket);
        Some((bucket, ppm))
    }

    fn keep_elsewhere(&mut self, bucket: Bucket) {
        self.0.elsewhere_ns.store(bucket.balance_ns, Relaxed);
        self.0.elsewhere_at_ns.store(bucket.settled_at_ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limits::Priority;

    #[test]
    fn what_is_allowed_is_near_the_limit() {
        let fixed = |ppm| allowed_ppm(&ComputeLimit::fixed(ppm));
        assert_eq!(fixed(500_000), Some(645_000));
        assert_eq!(fixed(10_000), Some(32_500));
        assert_eq!(fixed(783_999), Some(999_998));
        assert_eq!((fixed(784_000), fixed(PPM_ONE), fixed(u32::MAX)), (None, None, None));
        let balance = |share, soft_ppm| {
            allowed_ppm(&ComputeLimit { soft_ppm, ..ComputeLimit::balance(share, 1) })
        };
        assert_eq!(balance(100_000, None), None);
        assert_eq!(balance(100_000, Some(400_000)), Some(520_000));
        assert_eq!(balance(400_000, Some(100_000)), Some(520_000));
        assert_eq!(allowed_ppm(&ComputeLimit::NONE), None);
        let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::fixed(100_000) };
        assert_eq!(allowed_ppm(&low), Some(145_000));
    }
}
