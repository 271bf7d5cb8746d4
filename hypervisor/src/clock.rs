//! The schedulers' clock. It excludes the time in which the daemon itself stalled: stopped by a signal, frozen with its
//! cgroup, or without CPU. The daemon could answer no call then, so nothing is earned or charged for that time, and no
//! lease expires. The system's clock excludes suspension of the machine.

/// A stall: the clock is read this much later than planned, and this long after the previous reading. Longer than
/// leases last, longer than the limiter waits for an answer, and longer than a busy machine delays a process.
const STALL_NS: u64 = 150_000_000;

/// How long after a stall calls may arrive that were sent before its end.
const AFTERMATH_NS: u64 = 100_000_000;

/// The schedulers' clock: the time since the daemon's start, without stalls, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Clock {
    left_out_ns: u64,
    /// System time of the latest reading.
    read_at: u64,
    /// This clock's time after the latest stall.
    resumed_at: Option<u64>,
}

impl Clock {
    /// Reads the clock; returns its time, and the length of a stall that has just ended. `due`: when the clock should
    /// have been read at the latest, on this clock.
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

    /// Whether calls may still arrive that were sent before the end of a stall.
    pub(super) fn has_just_resumed(&self, now: u64) -> bool {
        self.resumed_at.is_some_and(|at| now.saturating_sub(at) < AFTERMATH_NS)
    }

    /// The system time at which this clock will show `at`, unless the daemon stalls.
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
        // No reading was due, so a long interval or a short delay is no stall.
        assert_eq!(clock.read(15_000 * MS, 14_900 * MS), (15_000 * MS, None));
        assert_eq!(clock.read(15_150 * MS, 15_000 * MS), (15_150 * MS, None));
        // Late, but the clock was read meanwhile.
        assert_eq!(clock.read(15_290 * MS, 15_100 * MS), (15_290 * MS, None));
        assert!(!clock.has_just_resumed(15_290 * MS));
        // The system's clock does not run backwards.
        assert_eq!(clock.read(0, 15_600 * MS), (15_290 * MS, None));
    }

    #[test]
    fn stalls_are_left_out_one_after_the_other() {
        let mut clock = Clock::default();
        assert_eq!(clock.read(1_000 * MS, 1_000 * MS), (1_000 * MS, None));
        // Due at 1.1 s, stopped until 6 s.
        assert_eq!(clock.read(6_000 * MS, 1_100 * MS), (1_000 * MS, Some(5_000 * MS)));
        assert!(clock.has_just_resumed(1_099 * MS) && !clock.has_just_resumed(1_100 * MS));
        assert_eq!(clock.to_system(1_100 * MS), 6_100 * MS);
        assert_eq!(clock.read(6_100 * MS, 1_100 * MS), (1_100 * MS, None));
        assert_eq!(clock.read(6_501 * MS, 1_200 * MS), (1_100 * MS, Some(401 * MS)));
        assert_eq!(clock.read(6_511 * MS, 1_200 * MS), (1_110 * MS, None));
    }
}
