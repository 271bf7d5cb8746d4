//! The shape of a run: threads, streams, distance of events, and how far launches run ahead.

use crate::cli::Pattern;

/// Kernels in a captured graph.
pub(super) const GRAPH_KERNELS: u64 = 8;
const LANES: usize = 4;
/// Work between two events, in microseconds, but at most sixteen launches. Short kernels are not slowed down by an
/// event each.
const EVENT_US: f64 = 250.0;
const MOST_LAUNCHES_PER_EVENT: f64 = 16.0;
/// How far launches run ahead of completions, in kernels, and the longest such time.
const AHEAD_KERNELS: f64 = 64.0;
const AHEAD_US: f64 = 100_000.0;

/// The shape of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Launching threads.
    pub(super) threads: usize,
    /// Streams per thread.
    pub(super) lanes: usize,
    pub(super) kernels_per_launch: u64,
    /// Launches between two events.
    pub(super) launches_per_group: u64,
    /// Groups in flight per stream.
    pub(super) groups_ahead: usize,
}

impl Plan {
    pub(super) fn new(pattern: Pattern, kernel_us: f64) -> Self {
        let (threads, lanes) = match pattern {
            Pattern::Threads => (LANES, 1),
            Pattern::Multistream => (1, LANES),
            _ => (1, 1),
        };
        let kernels_per_launch = if pattern == Pattern::Graph { GRAPH_KERNELS } else { 1 };
        let launch_us = kernel_us * kernels_per_launch as f64;
        let per_group = (EVENT_US / launch_us).floor().clamp(1.0, MOST_LAUNCHES_PER_EVENT);
        let streams = (threads * lanes) as f64;
        let ahead = AHEAD_KERNELS.min(AHEAD_US / kernel_us) / streams;
        let groups = (ahead / (per_group * kernels_per_launch as f64)).floor().max(2.0);
        Self {
            threads,
            lanes,
            kernels_per_launch,
            launches_per_group: per_group as u64,
            groups_ahead: groups as usize,
        }
    }

    pub(super) fn kernels_per_group(self) -> u64 {
        self.kernels_per_launch * self.launches_per_group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_run_ahead_by_a_bounded_amount() {
        for pattern in [Pattern::Kernel, Pattern::Graph, Pattern::Multistream, Pattern::Threads] {
            for us in [0.1, 1.0, 15.0, 130.0, 2500.0, 20_000.0, 1e7] {
                let plan = Plan::new(pattern, us);
                let streams = (plan.threads * plan.lanes) as u64;
                let ahead = plan.groups_ahead as u64 * plan.kernels_per_group() * streams;
                let least = 2 * plan.kernels_per_group() * streams;
                assert!(ahead >= least, "the device never waits: {pattern:?} {us} {plan:?}");
                assert!(ahead <= least.max(64), "{pattern:?} {us} {plan:?}");
            }
        }
    }

    #[test]
    fn long_kernels_have_an_event_each() {
        assert_eq!(Plan::new(Pattern::Kernel, 2500.0).launches_per_group, 1);
        assert_eq!(Plan::new(Pattern::Kernel, 20_000.0).groups_ahead, 5);
        assert_eq!(Plan::new(Pattern::Kernel, 15.0).launches_per_group, 16);
    }
}
