//! Rate limits that delay callers instead of refusing them: a token bucket per caller.
//!
//! A [`Line`] earns calls over time and saves up a burst. A call that finds none left waits until it is earned. So each
//! caller's load on the server is bounded, and other callers are not delayed.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::waiting::OnDrop;

/// Number of lines at which idle ones are dropped.
const KEPT: usize = 64;

/// Rate limit of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Long-term rate, in calls per second.
    pub each_second: u32,
    /// Burst: calls without delay after a pause.
    pub at_once: u32,
}

impl Pace {
    fn time_of(self, calls: u32) -> Duration {
        Duration::from_secs(1) * calls / self.each_second.max(1)
    }
}

/// A token bucket, shared by callers with the same key.
#[derive(Debug)]
pub struct Line {
    pace: Pace,
    /// When all calls spent so far are earned. A time in the past means a full bucket.
    earned_at: Mutex<Instant>,
}

impl Line {
    /// A line with its full burst saved up.
    #[must_use]
    pub fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self { pace, earned_at: Mutex::new(Instant::now()) })
    }

    /// Spends one call; returns how long the caller must wait for it.
    pub fn spend(&self) -> Duration {
        self.spend_at(1, Instant::now())
    }

    /// Spends one call and waits for it. A caller that gives up gets its call back; otherwise retries would wait longer
    /// and longer.
    pub async fn pass(&self) {
        let wait = self.spend();
        if !wait.is_zero() {
            let given_up = OnDrop::new(|| self.give_back());
            pause(wait).await;
            given_up.disarm();
        }
    }

    fn give_back(&self) {
        let mut earned_at = self.earned_at.lock().unwrap_or_else(PoisonError::into_inner);
        *earned_at = earned_at.checked_sub(self.pace.time_of(1)).unwrap_or(*earned_at);
    }

    fn spend_at(&self, calls: u32, now: Instant) -> Duration {
        let saved = self.pace.time_of(self.pace.at_once);
        let mut earned_at = self.earned_at.lock().unwrap_or_else(PoisonError::into_inner);
        // Computed as if the whole burst were spent now; the burst is subtracted below.
        let spent = (*earned_at).max(now) + self.pace.time_of(calls);
        *earned_at = spent;
        spent.saturating_duration_since(now + saved)
    }

    fn has_all(&self, now: Instant) -> bool {
        *self.earned_at.lock().unwrap_or_else(PoisonError::into_inner) <= now
    }
}

/// Sleeps for `wait`, unless it is zero.
pub(super) async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// A line per caller key.
#[derive(Debug)]
pub struct Lines<K> {
    pace: Pace,
    lines: Mutex<HashMap<K, Arc<Line>>>,
}

impl<K: Eq + Hash> Lines<K> {
    /// No lines yet; each will get this pace.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self { pace, lines: Mutex::default() }
    }

    /// The line of `key`, created at its first use.
    pub fn of(&self, key: K) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEPT && !lines.contains_key(&key) {
            let now = Instant::now();
            // An unused line with its full burst equals a new one.
            lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.has_all(now));
        }
        Arc::clone(lines.entry(key).or_insert_with(|| Line::new(self.pace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { each_second: 100, at_once: 20 };

    #[test]
    fn what_was_saved_up_is_spent_at_once_and_then_each_call_waits_for_its_time() {
        let (line, start) = (Line::new(PACE), Instant::now());
        for _ in 0..20 {
            assert_eq!(line.spend_at(1, start), Duration::ZERO);
        }
        for n in 1..=5 {
            assert_eq!(line.spend_at(1, start), Duration::from_millis(10 * n));
        }
        // Several calls at once delay the next one accordingly.
        line.spend_at(4, start);
        assert_eq!(line.spend_at(1, start), Duration::from_millis(100));
        let later = start + Duration::from_secs(1);
        assert_eq!(line.spend_at(20, later), Duration::ZERO);
        assert_eq!(line.spend_at(1, later), Duration::from_millis(10));
        // A long pause saves up no more than the burst.
        let later = start + Duration::from_secs(1_000);
        assert_eq!(line.spend_at(21, later), Duration::from_millis(10));
    }

    #[test]
    fn in_the_long_run_nobody_has_more_than_the_pace() {
        let (line, start) = (Line::new(PACE), Instant::now());
        let (mut now, mut calls) = (start, 0);
        while now < start + Duration::from_secs(10) {
            now += line.spend_at(1, now);
            calls += 1;
        }
        assert!((1_000..=1_021).contains(&calls), "{calls}");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_its_place_to_the_next() {
        let line = Line::new(Pace { each_second: 1, at_once: 1 });
        line.pass().await;
        for _ in 0..100 {
            let soon = Duration::from_millis(1);
            assert!(tokio::time::timeout(soon, line.pass()).await.is_err());
        }
        assert!(line.spend() <= Duration::from_secs(1));
    }

    #[test]
    fn lines_that_nobody_needs_are_forgotten_and_debts_are_not() {
        let lines = Lines::new(PACE);
        let held = lines.of(0);
        lines.of(1).spend_at(200, Instant::now());
        for key in 2..1_000 {
            lines.of(key);
        }
        let left = lines.lines.lock().unwrap();
        assert!(left.len() <= KEPT && left.contains_key(&0) && left.contains_key(&1));
        drop(left);
        assert!(Arc::ptr_eq(&held, &lines.of(0)));
        assert!(lines.of(1).spend() > Duration::from_secs(1));
    }
}
