//! Limits how often an event that recurs is reported. Pure: time is an argument.

use std::time::{Duration, Instant};

/// Minimum time between two reports of the same series.
const AGAIN: Duration = Duration::from_secs(10);
/// Minimum time between two series; until then, a different text is counted in the previous series.
const ANEW: Duration = Duration::from_secs(60);

/// The reports made about a counter that other processes increment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Often {
    seen: u64,
    pending: u64,
    told: Option<Instant>,
    series: Option<(String, Instant)>,
}

/// A report to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// How often it happened since the last report.
    pub(crate) count: u64,
    /// The series to which it is added.
    pub(crate) series: String,
}

impl Often {
    /// Starts at `seen`, without reporting what was counted before.
    pub(crate) const fn from(seen: u64) -> Self {
        Self { seen, pending: 0, told: None, series: None }
    }

    /// Takes the counter's value. `series`: identifies the text of a report.
    pub(crate) fn take(&mut self, count: u64, series: &str, now: Instant) -> Option<Due> {
        // Other processes write the counter, and may decrease it.
        self.pending = self.pending.saturating_add(count.saturating_sub(self.seen));
        self.seen = count;
        let is_early = |since: Instant, time| now.saturating_duration_since(since) < time;
        if self.pending == 0 || self.told.is_some_and(|told| is_early(told, AGAIN)) {
            return None;
        }
        self.told = Some(now);
        let series = match &self.series {
            Some((known, begun)) if known == series || is_early(*begun, ANEW) => known.clone(),
            _ => {
                self.series = Some((series.to_owned(), now));
                series.to_owned()
            }
        };
        Some(Due { count: std::mem::take(&mut self.pending), series })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn due(count: u64, series: &str) -> Option<Due> {
        Some(Due { count, series: series.to_owned() })
    }

    #[test]
    fn the_first_at_once_and_others_together() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut often = Often::from(3);
        assert_eq!(often.take(3, "a", at(0)), None);
        assert_eq!(often.take(4, "a", at(1)), due(1, "a"));
        assert_eq!(often.take(900, "a", at(2)), None);
        assert_eq!(often.take(904, "b", at(11)), due(900, "a"));
        assert_eq!(often.take(904, "b", at(30)), None);
        assert_eq!(often.take(905, "b", at(61)), due(1, "b"));
        // The counter is decreased and then increased.
        assert_eq!(often.take(2, "b", at(80)), None);
        assert_eq!(often.take(4, "b", at(90)), due(2, "b"));
    }

    proptest! {
        /// For any counter values: at most one report in 10 s, one series in 60 s, and no count lost or invented.
        #[test]
        fn nobody_is_flooded(steps in prop::collection::vec((0_u64..5, 0_u64..8, 0_u8..4), 1..200)) {
            let (mut often, start) = (Often::default(), Instant::now());
            let (mut now, mut count, mut told) = (0, 0, 0);
            let (mut last, mut begun): (Option<u64>, Option<(u64, String)>) = (None, None);
            for (more, seconds, series) in steps {
                (count, now) = (count + more, now + seconds);
                let at = start + Duration::from_secs(now);
                let Some(due) = often.take(count, &series.to_string(), at) else { continue };
                told += due.count;
                prop_assert!(due.count > 0 && last.is_none_or(|last| now - last >= 10));
                last = Some(now);
                if begun.as_ref().is_none_or(|(_, known)| *known != due.series) {
                    prop_assert!(begun.is_none_or(|(since, _)| now - since >= 60));
                    begun = Some((now, due.series));
                }
            }
            let at = start + Duration::from_secs(now + 10);
            told += often.take(count, "x", at).map_or(0, |due| due.count);
            prop_assert_eq!(told, count);
        }
    }
}
