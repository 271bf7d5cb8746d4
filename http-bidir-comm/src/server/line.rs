//! Callers who call too often wait.
//!
//! A line earns calls as time passes, and saves some up. Who finds none left waits until it has earned one. So what the
//! callers of one line make a server do is bounded, and the others find it idle.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::waiting::OnDrop;

/// Up to so many lines are kept, also if nobody needs them.
const KEPT: usize = 64;

/// How many calls a line may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In the long run.
    pub each_second: u32,
    /// At once, after a pause.
    pub at_once: u32,
}

impl Pace {
    fn time_of(self, calls: u32) -> Duration {
        Duration::from_secs(1) * calls / self.each_second.max(1)
    }
}

/// Those who share one pace.
#[derive(Debug)]
pub struct Line {
    pace: Pace,
    /// When all that was spent will have been earned. A moment that is further back than what can be saved up is as
    /// good as that.
    earned_at: Mutex<Instant>,
}

impl Line {
    /// One that has saved up all it may.
    #[must_use]
    pub fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self { pace, earned_at: Mutex::new(Instant::now()) })
    }

    /// Spends a call, and tells how long to wait for it.
    pub fn spend(&self) -> Duration {
        self.spend_at(1, Instant::now())
    }

    /// Waits for the place of one more call. Who gives up meanwhile gives it back: callers that try again and again
    /// would else wait longer and longer.
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
        // As if all that can be saved up was spent now.
        let spent = (*earned_at).max(now) + self.pace.time_of(calls);
        *earned_at = spent;
        spent.saturating_duration_since(now + saved)
    }

    fn has_all(&self, now: Instant) -> bool {
        *self.earned_at.lock().unwrap_or_else(PoisonError::into_inner) <= now
    }
}

/// Waits, if there is anything to wait for.
pub(super) async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// A line for each of those who call.
#[derive(Debug)]
pub struct Lines<K> {
    pace: Pace,
    lines: Mutex<HashMap<K, Arc<Line>>>,
}

impl<K: Eq + Hash> Lines<K> {
    /// Lines of one pace.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self { pace, lines: Mutex::default() }
    }

    /// The line of `key`.
    pub fn of(&self, key: K) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEPT && !lines.contains_key(&key) {
            let now = Instant::now();
            // A new one would be as good.
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
        // Several at once delay the next one by as much.
        line.spend_at(4, start);
        assert_eq!(line.spend_at(1, start), Duration::from_millis(100));
        let later = start + Duration::from_secs(1);
        assert_eq!(line.spend_at(20, later), Duration::ZERO);
        assert_eq!(line.spend_at(1, later), Duration::from_millis(10));
        // A long pause saves up no more.
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
