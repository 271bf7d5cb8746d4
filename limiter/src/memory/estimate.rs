//! Estimates from successive reconciliations how much memory the driver took by itself.

/// After this many lower bounds in a row, no exact figure is sought soon.
const BOUNDS: u32 = 32;

/// The result of one reconciliation, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sight {
    /// Taken on the device for this process and not charged to any process.
    pub(super) bytes: u64,
    /// If not exact, `bytes` is a lower bound.
    pub(super) exact: bool,
    /// Taken for other processes of the session and not yet charged by them.
    pub(super) others: u64,
}

/// The bytes to charge as kind `driver`.
#[derive(Default, Debug)]
pub(super) struct DriverMemory {
    pub(super) bytes: u64,
    last: Option<u64>,
    /// Lower bounds seen since the last exact figure.
    bounds: u32,
}

impl DriverMemory {
    /// Adds a result. An increase counts when two results in a row show it, a decrease when it is exact. Returns
    /// whether to check again soon.
    pub(super) fn notice(&mut self, sight: Sight) -> bool {
        let before = self.last.replace(sight.bytes);
        if sight.bytes > self.bytes {
            self.bounds = 0;
            let twice = before.unwrap_or(0).min(sight.bytes);
            self.bytes = self.bytes.max(twice);
            return self.bytes < sight.bytes;
        }
        if sight.exact || sight.bytes == self.bytes {
            (self.bytes, self.bounds) = (sight.bytes, 0);
            return false;
        }
        self.bounds = self.bounds.saturating_add(1);
        self.bounds < BOUNDS
    }

    /// Adds the result of an allocation's own check. It counts at once, unless it is a lower bound below the present
    /// figure.
    pub(super) fn notice_now(&mut self, sight: Sight) {
        if sight.exact || sight.bytes > self.bytes {
            *self = Self { bytes: sight.bytes, last: Some(sight.bytes), ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(bytes: u64) -> Sight {
        Sight { bytes, exact: true, others: 0 }
    }

    fn bound(bytes: u64) -> Sight {
        Sight { bytes, exact: false, others: 0 }
    }

    #[test]
    fn an_increase_counts_when_it_is_seen_twice() {
        let mut estimate = DriverMemory::default();
        assert!(estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 0);
        assert!(!estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 100);
        // Seen once only, so not charged.
        assert!(estimate.notice(exact(500)));
        assert!(!estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 100);
    }

    #[test]
    fn what_keeps_growing_is_followed_one_step_behind() {
        let mut estimate = DriverMemory::default();
        for step in 1..50 {
            assert!(estimate.notice(bound(step * 10)));
            assert_eq!(estimate.bytes, (step - 1) * 10);
        }
    }

    #[test]
    fn a_decrease_counts_at_once_when_it_is_certain() {
        let mut estimate = DriverMemory { bytes: 100, ..DriverMemory::default() };
        assert!(!estimate.notice(exact(30)));
        assert_eq!(estimate.bytes, 30);
    }

    #[test]
    fn what_an_allocation_sees_counts_at_once() {
        let mut estimate = DriverMemory::default();
        estimate.notice_now(bound(100));
        assert_eq!(estimate.bytes, 100);
        // A lower bound below the figure says nothing.
        estimate.notice_now(bound(30));
        assert_eq!(estimate.bytes, 100);
        estimate.notice_now(exact(30));
        assert_eq!(estimate.bytes, 30);
    }

    #[test]
    fn bounds_from_below_never_lower_it() {
        let mut estimate = DriverMemory { bytes: 100, ..DriverMemory::default() };
        for _ in 1..BOUNDS {
            assert!(estimate.notice(bound(60)));
        }
        // An exact figure is not sought forever.
        assert!(!estimate.notice(bound(60)));
        assert!(!estimate.notice(bound(0)));
        assert_eq!(estimate.bytes, 100);
        assert!(!estimate.notice(exact(60)));
        assert!(estimate.notice(bound(0)));
        assert_eq!(estimate.bytes, 60);
    }
}
