//! Back-off: how long something is not tried after a failure. The time grows with each further failure.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tuning::{FIRST_REST_NS, LONGEST_REST_NS};

/// A back-off, shared by threads. Two threads that begin one at once do no harm.
#[derive(Debug)]
pub struct Rest {
    until: AtomicU64,
    last_ns: AtomicU64,
}

impl Rest {
    /// No failure yet.
    pub const fn none() -> Self {
        Self { until: AtomicU64::new(0), last_ns: AtomicU64::new(0) }
    }

    /// Whether another try is allowed.
    #[inline]
    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until.load(Relaxed)
    }

    /// Records a failure: rests twice as long as the last time, unless the last rest has been over for as long as it
    /// lasted.
    pub fn begin(&self, now: u64) {
        let last = self.last_ns.load(Relaxed);
        let helped = now.saturating_sub(self.until.load(Relaxed)) > last;
        let next = if last == 0 || helped { FIRST_REST_NS } else { last.saturating_mul(2) };
        let next = next.min(LONGEST_REST_NS);
        self.last_ns.store(next, Relaxed);
        self.until.store(now.saturating_add(next), Relaxed);
    }

    /// Forgets all failures.
    pub fn end(&self) {
        self.last_ns.store(0, Relaxed);
        self.until.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_they_do_not_help() {
        let rest = Rest::none();
        let mut now = 10 * LONGEST_REST_NS;
        let mut length = FIRST_REST_NS;
        for _ in 0..12 {
            assert!(rest.is_over(now));
            rest.begin(now);
            assert!(!rest.is_over(now + length - 1));
            now += length + 1;
            length = (length * 2).min(LONGEST_REST_NS);
        }
        now += LONGEST_REST_NS;
        rest.begin(now);
        assert!(rest.is_over(now + FIRST_REST_NS));
        rest.begin(now);
        rest.end();
        assert!(rest.is_over(0));
    }
}
