//! The schedulers' clock. It leaves out the time in which the daemon itself stood still: stopped by
//! a signal, frozen with its cgroup, or kept from the CPU. The daemon could answer no call then, so
//! that time is neither earned nor charged, and no lease runs out by it. While the machine is
//! suspended, the system's clock stands still as well.

/// The daemon has stood still if it reads the clock this much later than planned, and this long
/// after the last reading. This is longer than leases last, longer than the limiter waits for an
/// answer, and longer than a busy machine delays a process.
const STALL_NS: u64 = 150_000_000;

/// For how long after a stall calls may arrive that were sent before its end.
const AFTERMATH_NS: u64 = 100_000_000;

/// The schedulers' clock, computed from the system's time since the daemon's start.
#[derive(Debug, Default)]
pub(super) struct Clock {
    left_out_ns: u64,
    /// The system's time at the last reading.
    read_at: u64,
    /// What this clock showed after the last stall.
    resumed_at: Option<u64>,
}

impl Clock {
    /// What the clock shows now, and how long the daemon has just stood still, if it has. `due` is
    /// when the clock should have been read at the latest, on this clock.
    pub(super) fn read(&mut self, system: u64, due: u64) -> (u64, Option<u64>) {
        let silence = system.saturating_sub(self.read_at);
        let late = system.saturating_sub(self.to_system(due));
        let stalled = silence.min(late) > STALL_NS;
        if stalled {
            self.left_out_ns = self.left_out_ns.saturating_add(silence);
        }
        self.read_at = system.max(self.read_at);
        let now = self.read_at.saturating_sub(self.left_out_ns);
        if stalled {
            self.resumed_at = Some(now);
        }
        (now, stalled.then_some(silence))
    }

    /// Whether calls may still come in that were sent before the end of a stall.
    pub(super) fn has_just_resumed(&self, now: u64) -> bool {
        self.resumed_at.is_some_and(|at| now.saturating_sub(at) < AFTERMATH_NS)
    }

    /// The system's time at which this clock will show `at`, unless there is a stall.
    pub(super) fn to_system(&self, at: u64) -> u64 {
        at.saturating_add(self.left_out_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_passes_as_long_as_it_is_read_in_time() {
        let mut clock = Clock::default();
        for step in 1..100 {
            let now = step * 100 * MS;
            assert_eq!(clock.read(now, now), (now, None));
        }
        // No reading was due: that is no stall, and neither is a short delay.
        assert_eq!(clock.read(15_000 * MS, 14_900 * MS), (15_000 * MS, None));
        assert_eq!(clock.read(15_150 * MS, 15_000 * MS), (15_150 * MS, None));
        // Late, but others have read the clock meanwhile.
        assert_eq!(clock.read(15_290 * MS, 15_100 * MS), (15_290 * MS, None));
        assert!(!clock.has_just_resumed(15_290 * MS));
        // The system's clock does not run backwards.
        assert_eq!(clock.read(0, 15_600 * MS), (15_290 * MS, None));
    }

    #[test]
    fn stalls_are_left_out_one_after_the_other() {
        let mut clock = Clock::default();
        assert_eq!(clock.read(1_000 * MS, 1_000 * MS), (1_000 * MS, None));
        // Meant to be read at 1.1 s, stopped until 6 s.
        assert_eq!(clock.read(6_000 * MS, 1_100 * MS), (1_000 * MS, Some(5_000 * MS)));
        assert!(clock.has_just_resumed(1_099 * MS) && !clock.has_just_resumed(1_100 * MS));
        assert_eq!(clock.to_system(1_100 * MS), 6_100 * MS);
        assert_eq!(clock.read(6_100 * MS, 1_100 * MS), (1_100 * MS, None));
        assert_eq!(clock.read(6_501 * MS, 1_200 * MS), (1_100 * MS, Some(401 * MS)));
        assert_eq!(clock.read(6_511 * MS, 1_200 * MS), (1_110 * MS, None));
    }
}
