//! What one session has earned, used and owes on one device.

use utils::quota::Bucket;
use utils::units::PPM_ONE;

use super::tuning::Tuning;

#[derive(Debug)]
pub(super) struct Account {
    share_ppm: u32,
    bucket: Bucket,
    holding: bool,
    /// All time ever charged.
    charged_ns: u64,
    /// Time charged in relation to the share: the session with the least goes next. In
    /// nanoseconds at a whole share.
    virtual_ns: u128,
}

impl Account {
    pub(super) fn new(share_ppm: u32, now: u64, virtual_ns: u128) -> Self {
        let bucket = Bucket::empty_at(now);
        Self { share_ppm, bucket, holding: false, charged_ns: 0, virtual_ns }
    }

    pub(super) fn share_ppm(&self) -> u32 {
        self.share_ppm
    }

    pub(super) fn balance_ns(&self) -> i64 {
        self.bucket.balance_ns
    }

    pub(super) fn charged_ns(&self) -> u64 {
        self.charged_ns
    }

    pub(super) fn virtual_time(&self) -> u128 {
        self.virtual_ns
    }

    pub(super) fn is_holding(&self) -> bool {
        self.holding
    }

    pub(super) fn settle(&mut self, now: u64, tuning: &Tuning) {
        let passed = now.saturating_sub(self.bucket.settled_at_ns);
        self.bucket.settle(now, self.share_ppm, tuning.burst_ns(self.share_ppm), self.holding);
        if self.holding {
            self.charged_ns = self.charged_ns.saturating_add(passed);
            self.virtual_ns = self.virtual_ns.saturating_add(self.weighted(passed));
        }
    }

    pub(super) fn set_holding(&mut self, holding: bool, now: u64, tuning: &Tuning) {
        self.settle(now, tuning);
        self.holding = holding;
    }

    pub(super) fn set_share(&mut self, share_ppm: u32, now: u64, tuning: &Tuning) {
        self.settle(now, tuning);
        self.share_ppm = share_ppm;
    }

    pub(super) fn refund(&mut self, ns: u64, tuning: &Tuning) {
        self.bucket.refund(ns, tuning.burst_ns(self.share_ppm));
        self.charged_ns = self.charged_ns.saturating_sub(ns);
        self.virtual_ns = self.virtual_ns.saturating_sub(self.weighted(ns));
    }

    pub(super) fn catch_up(&mut self, virtual_now: u128) {
        self.virtual_ns = self.virtual_ns.max(virtual_now);
    }

    /// Whether a turn can start, as of the last settlement.
    pub(super) fn is_ready(&self, tuning: &Tuning) -> bool {
        u64::try_from(self.bucket.balance_ns)
            .is_ok_and(|balance| balance >= tuning.entry_ns(self.share_ppm))
    }

    /// When a turn can start if the session does not hold until then.
    pub(super) fn ready_at(&self, tuning: &Tuning) -> Option<u64> {
        let wait = self.bucket.ready_in(tuning.entry_ns(self.share_ppm), self.share_ppm)?;
        Some(self.bucket.settled_at_ns.saturating_add(wait))
    }

    /// How long a turn that starts now may be.
    pub(super) fn lease_length(&self, tuning: &Tuning) -> u64 {
        let affordable = if self.share_ppm >= PPM_ONE {
            u64::MAX
        } else {
            self.bucket.lease_length(self.share_ppm).unwrap_or(0)
        };
        affordable.min(tuning.longest_turn_ns(self.share_ppm))
    }

    fn weighted(&self, ns: u64) -> u128 {
        u128::from(ns) * u128::from(PPM_ONE) / u128::from(self.share_ppm.max(1))
    }
}
