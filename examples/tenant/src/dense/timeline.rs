//! Times at which a stream's kernels completed, by the device's clock.

/// Shortest pause, in milliseconds. A pause is also longer than a tenth of the work after it; shorter delays are noise.
const LEAST_PAUSE_MS: f64 = 1.0;
const LEAST_PAUSE_PART: f64 = 0.1;

/// Completions in a stream, or in several streams together.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Undisturbed time between two completions in one stream, in milliseconds.
    kernel_ms: f64,
    /// Length of a window, in milliseconds; infinite without windows.
    window_ms: f64,
    /// Time of the latest completion, since the start.
    now_ms: f64,
    /// Per group: time since the previous group, per kernel.
    pub(super) gaps_ms: Vec<f64>,
    /// Per group that was held up: for how long.
    pub(super) pauses_ms: Vec<f64>,
    /// Kernels per window. A kernel that crosses a boundary counts in parts.
    pub(super) windows: Vec<f64>,
}

impl Timeline {
    /// `kernel_ms`: time between two completions; `window`: length in seconds.
    pub(super) fn new(kernel_ms: f64, window: Option<f64>) -> Self {
        let window_ms = window.map_or(f64::INFINITY, |seconds| seconds * 1e3);
        let (gaps_ms, pauses_ms, windows) = (Vec::new(), Vec::new(), Vec::new());
        Self { kernel_ms, window_ms, now_ms: 0.0, gaps_ms, pauses_ms, windows }
    }

    /// Records the completion of a group of kernels, `gap_ms` after the previous group.
    pub(super) fn completed(&mut self, gap_ms: f64, kernels: u64) {
        let (gap_ms, kernels) = (gap_ms.max(0.0), kernels as f64);
        let work_ms = kernels * self.kernel_ms;
        self.gaps_ms.push(gap_ms / kernels);
        if gap_ms - work_ms > LEAST_PAUSE_MS.max(work_ms * LEAST_PAUSE_PART) {
            self.pauses_ms.push(gap_ms - work_ms);
        }
        self.now_ms += gap_ms;
        if self.window_ms.is_finite() {
            self.count(kernels, work_ms.min(gap_ms));
        }
    }

    /// Skips time without work.
    pub(super) fn skip(&mut self, ms: f64) {
        self.now_ms += ms.max(0.0);
    }

    /// Spreads kernels over the windows: they took `work_ms` and ended now.
    fn count(&mut self, kernels: f64, work_ms: f64) {
        let last = (self.now_ms / self.window_ms) as usize;
        if self.windows.len() <= last {
            self.windows.resize(last + 1, 0.0);
        }
        let begin = self.now_ms - work_ms;
        let first = (begin / self.window_ms) as usize;
        let mut rest = kernels;
        for index in first..last {
            let from = begin.max(index as f64 * self.window_ms);
            let part = kernels * ((index + 1) as f64 * self.window_ms - from) / work_ms;
            self.windows[index] += part;
            rest -= part;
        }
        self.windows[last] += rest;
    }

    /// Adds another stream's completions in the same time.
    pub(super) fn merge(&mut self, other: Self) {
        self.now_ms = self.now_ms.max(other.now_ms);
        self.gaps_ms.extend(other.gaps_ms);
        self.pauses_ms.extend(other.pauses_ms);
        if self.windows.len() < other.windows.len() {
            self.windows.resize(other.windows.len(), 0.0);
        }
        for (mine, more) in self.windows.iter_mut().zip(other.windows) {
            *mine += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;

    fn close(found: &[f64], wanted: &[f64]) {
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
        }
    }

    #[test]
    fn a_kernel_across_a_boundary_counts_in_parts() {
        let mut line = Timeline::new(400.0, Some(1.0));
        for _ in 0..6 {
            line.completed(400.0, 1);
        }
        close(&line.windows, &[2.5, 2.5, 1.0]);
        let mut long = Timeline::new(2500.0, Some(1.0));
        long.completed(2600.0, 1);
        close(&long.windows, &[0.36, 0.4, 0.24]);
    }

    #[test]
    fn waiting_counts_in_no_window_and_is_a_pause() {
        let mut line = Timeline::new(0.1, Some(0.1));
        line.completed(1.6, 16);
        // Held up for 250 ms.
        line.completed(251.6, 16);
        close(&line.windows, &[16.0, 0.0, 16.0]);
        close(&line.pauses_ms, &[250.0]);
        close(&line.gaps_ms, &[0.1, 251.6 / 16.0]);
    }

    #[test]
    fn time_that_is_skipped_is_no_pause() {
        let mut line = Timeline::new(0.1, Some(0.1));
        line.completed(1.6, 16);
        line.skip(250.0);
        line.completed(1.6, 16);
        close(&line.windows, &[16.0, 0.0, 16.0]);
        assert!(line.pauses_ms.is_empty());
    }

    #[test]
    fn a_kernel_that_takes_a_little_longer_is_no_pause() {
        let mut line = Timeline::new(100.0, None);
        line.completed(105.0, 1);
        line.completed(115.0, 1);
        close(&line.pauses_ms, &[15.0]);
        assert!(line.windows.is_empty());
    }

    #[test]
    fn faster_than_expected_and_not_measurable_at_all() {
        let mut line = Timeline::new(1.0, Some(1.0));
        line.completed(0.0, 8);
        line.completed(2.0, 8);
        close(&line.windows, &[16.0]);
    }

    #[test]
    fn streams_add_up() {
        let (mut a, mut b) = (Timeline::new(500.0, Some(1.0)), Timeline::new(500.0, Some(1.0)));
        a.completed(500.0, 1);
        b.completed(500.0, 1);
        b.completed(1000.0, 1);
        a.merge(b);
        close(&a.windows, &[2.0, 1.0]);
        assert_eq!(a.gaps_ms.len(), 3);
        close(&a.pauses_ms, &[500.0]);
    }
}
