//! How many kernels a tenant had completed at which time, and what two tenants did while both ran.

/// Seconds on a common clock, and the kernels completed by then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProgressPoint {
    pub(super) at: f64,
    pub(super) kernels: f64,
}

/// One tenant's progress, in order of time.
#[derive(Debug, Clone, Default)]
pub(super) struct Track {
    points: Vec<ProgressPoint>,
}

/// The time in which all tenants ran.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Overlap {
    /// Its length.
    pub(super) seconds: f64,
    /// Kernels a second, one for each tenant.
    pub(super) rates: Vec<f64>,
}

/// The time that "now" stands for in the live view, in seconds.
const RECENT: f64 = 2.0;
/// An overlap shorter than this says nothing about a share, in seconds.
const SHORTEST: f64 = 0.4;

impl Track {
    /// Adds a point; one that is not later than the last is dropped.
    pub(super) fn push(&mut self, point: ProgressPoint) {
        if self.points.last().is_none_or(|last| last.at < point.at) {
            self.points.push(point);
        }
    }

    /// Kernels a second over the last moments, 0 before there are two points.
    pub(super) fn recent_rate(&self) -> f64 {
        let Some((first, last)) = self.ends() else { return 0.0 };
        self.rate((last - RECENT).max(first), last)
    }

    fn ends(&self) -> Option<(f64, f64)> {
        Some((self.points.first()?.at, self.points.last()?.at))
    }

    fn rate(&self, from: f64, to: f64) -> f64 {
        if to <= from {
            return 0.0;
        }
        (self.kernels_at(to) - self.kernels_at(from)) / (to - from)
    }

    /// How many kernels were completed at a moment. Between two points, progress is assumed to be
    /// even.
    fn kernels_at(&self, at: f64) -> f64 {
        let after = self.points.partition_point(|point| point.at < at);
        let neighbours =
            (after.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(after));
        match neighbours {
            (Some(a), Some(b)) => a.kernels + (b.kernels - a.kernels) * (at - a.at) / (b.at - a.at),
            (Some(only), None) | (None, Some(only)) => only.kernels,
            (None, None) => 0.0,
        }
    }
}

/// Compares the tracks over the time that they have in common; `None` if it is too short.
pub(super) fn overlap(tracks: &[Track]) -> Option<Overlap> {
    let ends = tracks.iter().map(Track::ends).collect::<Option<Vec<_>>>()?;
    let from = ends.iter().map(|end| end.0).fold(f64::NEG_INFINITY, f64::max);
    let to = ends.iter().map(|end| end.1).fold(f64::INFINITY, f64::min);
    let seconds = to - from;
    (seconds >= SHORTEST && seconds.is_finite())
        .then(|| Overlap { seconds, rates: tracks.iter().map(|t| t.rate(from, to)).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(start: f64, rates: &[f64]) -> Track {
        let mut track = Track::default();
        let mut kernels = 0.0;
        for (second, rate) in (0..).zip(rates) {
            track.push(ProgressPoint { at: start + f64::from(second), kernels });
            kernels += rate;
        }
        track
    }

    #[test]
    fn only_the_common_time_counts() {
        // The second starts 1.5 s later. Before that the first ran alone, twice as fast.
        let tracks = [
            track(0.0, &[80.0, 80.0, 40.0, 40.0, 40.0, 0.0]),
            track(2.0, &[10.0, 10.0, 10.0, 0.0]),
        ];
        let overlap = overlap(&tracks).unwrap();
        assert_eq!(overlap, Overlap { seconds: 3.0, rates: vec![40.0, 10.0] });
    }

    #[test]
    fn points_between_are_interpolated() {
        let tracks = [track(0.0, &[10.0, 30.0, 10.0, 0.0]), track(0.5, &[8.0, 8.0, 0.0])];
        let overlap = overlap(&tracks).unwrap();
        assert_eq!(overlap.seconds, 2.0);
        assert_eq!(overlap.rates, [(5.0 + 30.0 + 5.0) / 2.0, 8.0]);
    }

    #[test]
    fn no_common_time_is_no_result() {
        assert_eq!(overlap(&[track(0.0, &[1.0, 1.0]), track(5.0, &[1.0, 1.0])]), None);
        assert_eq!(overlap(&[track(0.0, &[1.0, 1.0]), Track::default()]), None);
        assert_eq!(overlap(&[]), None);
    }

    #[test]
    fn the_recent_rate_forgets() {
        let mut slow_then_fast = track(0.0, &[1.0, 1.0, 1.0, 50.0, 50.0, 0.0]);
        assert_eq!(slow_then_fast.recent_rate(), 50.0);
        slow_then_fast.push(ProgressPoint { at: 1.0, kernels: 0.0 });
        assert_eq!(slow_then_fast.recent_rate(), 50.0, "a late point changes nothing");
        assert_eq!(Track::default().recent_rate(), 0.0);
    }
}
