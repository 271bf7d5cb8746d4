//! When a daemon that is gone is tried again.

use crate::tuning::{DISTRUST_RETRY_NS, FIRST_RETRY_NS, LAST_RETRY_NS};

/// A daemon could not be reached, or was not believed.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    since: u64,
    retry_at: u64,
    /// How long to wait after the next failure.
    pause: u64,
}

impl Absence {
    /// It was there until now.
    pub const fn begin(now: u64) -> Self {
        Self { since: now, retry_at: 0, pause: FIRST_RETRY_NS }
    }

    /// It has failed once more; `distrust`: it answers, but is not believed.
    pub fn fails(&mut self, now: u64, distrust: bool) {
        let pause = if distrust { DISTRUST_RETRY_NS } else { self.pause };
        self.retry_at = now.saturating_add(pause);
        self.pause = self.pause.saturating_mul(2).min(LAST_RETRY_NS);
    }

    /// Whether it is to be tried again.
    pub const fn is_over(&self, now: u64) -> bool {
        now >= self.retry_at
    }

    /// For how long it has been gone.
    pub const fn lasts_ns(&self, now: u64) -> u64 {
        now.saturating_sub(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_last() {
        let mut absence = Absence::begin(5);
        assert!(absence.is_over(5));
        let (mut now, mut pause) = (5, FIRST_RETRY_NS);
        for _ in 0..8 {
            absence.fails(now, false);
            assert!(!absence.is_over(now + pause - 1) && absence.is_over(now + pause));
            now += pause;
            pause = (pause * 2).min(LAST_RETRY_NS);
        }
        absence.fails(now, true);
        assert!(!absence.is_over(now + DISTRUST_RETRY_NS - 1));
        assert_eq!(absence.lasts_ns(now), now - 5);
    }
}
