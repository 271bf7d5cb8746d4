//! Back-off: how long something is left alone after a failure. The time grows with each further failure.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tuning::{FIRST_REST_NS, LONGEST_REST_NS};

/// See the module. Two threads that begin one at once make it no worse.
#[derive(Debug)]
pub struct Rest {
    until: AtomicU64,
    last_ns: AtomicU64,
}

impl Rest {
    /// Nothing has failed.
    pub const fn none() -> Self {
        Self { until: AtomicU64::new(0), last_ns: AtomicU64::new(0) }
    }

    /// Whether it may be tried.
    #[inline]
    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until.load(Relaxed)
    }

    /// Twice as long as the last one, unless that was over for as long as it lasted.
    pub fn begin(&self, now: u64) {
        let last = self.last_ns.load(Relaxed);
        let helped = now.saturating_sub(self.until.load(Relaxed)) > last;
        let next = if last == 0 || helped { FIRST_REST_NS } else { last.saturating_mul(2) };
        let next = next.min(LONGEST_REST_NS);
        self.last_ns.store(next, Relaxed);
        self.until.store(now.saturating_add(next), Relaxed);
    }

    /// As if there had never been one.
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
