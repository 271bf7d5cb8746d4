//! The schedulers' clock. It leaves out the time in which the daemon itself stood still (stopped by a
//! signal, frozen with its cgroup, kept from the CPU): nobody could be answered then, so it is
//! neither earned nor charged, and no lease runs out by it. While the machine is suspended the
//! system's clock stands still as well.

/// How much later than meant, and how long after the last time, the clock has to be read for the
/// daemon to have stood still: longer than leases last and than the limiter waits for an answer, and
/// longer than a busy machine keeps anybody waiting.
const STALL_NS: u64 = 150_000_000;

/// For how long after a stall calls from before its end may come in.
const AFTERMATH_NS: u64 = 100_000_000;

/// The clock, given the time since the daemon's start.
#[derive(Debug, Default)]
pub(super) struct Clock {
    left_out_ns: u64,
    /// The system's time when it was last read.
    read_at: u64,
    /// What it showed after the last stall.
    resumed_at: Option<u64>,
}

impl Clock {
    /// What it shows now, and for how long the daemon has stood still until now, if it has. `due`:
    /// when it was to be read at the latest, on this clock.
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

    /// When the system's clock will be where this one shows `at`, unless there is a stall.
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
        // Nobody had to look: that is no stall, and neither is a little delay.
        assert_eq!(clock.read(15_000 * MS, 14_900 * MS), (15_000 * MS, None));
        assert_eq!(clock.read(15_150 * MS, 15_000 * MS), (15_150 * MS, None));
        // Late, but others have read it meanwhile.
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
