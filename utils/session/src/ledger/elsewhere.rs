//! How much of the device's time the session may use under leases that the page did not grant.
//!
//! The daemon decides by an account of its own. Its leases are accepted as long as the session stays near its limit by
//! the session's own measure. A correct daemon's account differs a little: for sessions that overlap, it corrects
//! estimates by up to a fifth. So 1.25 x the limit + 2 points is accepted, and half a second of that may be saved up.

use super::Ledger;
use crate::clock;
use core::sync::atomic::Ordering::Relaxed;
use limits::bucket::{Bucket, earned};
use limits::units::PPM_ONE;
use limits::{ComputeLimit, Policy};

/// For this long after its last grant, the own account may be the reason why nothing is left.
const OWN_COUNTS_NS: u64 = 2_000_000_000;
/// A session may save up what it may use in this time.
const SLACK_PERIOD_NS: u64 = 500_000_000;
/// The accepted excess over the limit: a quarter of it, ...
const SLACK_PART: u32 = 4;
/// ... plus 2 % of the device's time, in millionths.
const SLACK_PPM: u32 = 20_000;

/// The share (millionths) that a session may use, whoever grants it. `None`: all of the device.
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
    /// For how long (ns) the session may use the device from now on under a lease from elsewhere; 0: not at all.
    pub fn allowed_elsewhere(&mut self, now_ns: u64) -> u64 {
        match self.settle_elsewhere(now_ns) {
            Some((bucket, ppm)) => bucket.lease_length(ppm).unwrap_or(0),
            None => u64::MAX,
        }
    }

    /// Whether the session's recent use was granted elsewhere only. While a daemon is late, the own account grants the
    /// same time again, so that a correct daemon may seem to grant too much.
    pub fn is_granted_elsewhere_only(&self, now_ns: u64) -> bool {
        let own_at_ns = self.0.own_at_ns.load(Relaxed);
        own_at_ns == 0 || now_ns.abs_diff(own_at_ns) >= OWN_COUNTS_NS
    }

    /// Records use of the device in the last `held_ns`, whoever granted it. Returns the time that counts (ns):
    /// processes that hold the device at once cannot have used more than the time that has passed.
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
