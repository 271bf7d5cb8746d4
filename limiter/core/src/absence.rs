//! Back-off towards a daemon that is gone: when to try it again. Used by the governor's client of the daemon.

use crate::tuning::{DISTRUST_RETRY_NS, FIRST_RETRY_NS, LAST_RETRY_NS};

/// A period in which the daemon could not be reached, or was not trusted.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    since: u64,
    retry_at: u64,
    /// How long to wait after the next failure (ns).
    pause: u64,
}

impl Absence {
    /// Begins an absence at `now` (ns).
    pub const fn begin(now: u64) -> Self {
        Self { since: now, retry_at: 0, pause: FIRST_RETRY_NS }
    }

    /// Records another failure; `distrust`: the daemon answers, but is not trusted.
    pub fn fails(&mut self, now: u64, distrust: bool) {
        let pause = if distrust { DISTRUST_RETRY_NS } else { self.pause };
        self.retry_at = now.saturating_add(pause);
        self.pause = self.pause.saturating_mul(2).min(LAST_RETRY_NS);
    }

    /// Whether the daemon should be tried again.
    pub const fn is_over(&self, now: u64) -> bool {
        now >= self.retry_at
    }

    /// How long the daemon has been gone, in nanoseconds.
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
