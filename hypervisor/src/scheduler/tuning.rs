//! The lengths of things. All in nanoseconds.

use utils::quota;

const MS: u64 = 1_000_000;

/// The constants of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// A share is meant over this time: what a session may save up by idling is what it earns in
    /// one period, and a turn is at most what it earns in one period.
    pub period_ns: u64,
    /// The longest turn. Longer ones would make others wait, shorter ones drain more often.
    pub quantum_ns: u64,
    /// The shortest turn. Below it, starting and draining outweigh the work.
    pub shortest_ns: u64,
    /// A session that has run dry starts its next turn when it can afford this much, or half of
    /// what it earns in a period if that is less (but never less than `shortest_ns`).
    pub comfortable_ns: u64,
    /// What is left of a turn must be at least this for another worker of the session to be let in.
    pub shortest_rest_ns: u64,
    /// How long after its end a lease that was not reported stands in the way of others.
    pub grace_ns: u64,
    /// The longest time that the messages of one lease may take at the daemon's expense.
    pub longest_way_ns: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            period_ns: 100 * MS,
            quantum_ns: 30 * MS,
            shortest_ns: 2 * MS,
            comfortable_ns: 10 * MS,
            shortest_rest_ns: MS / 2,
            grace_ns: 250 * MS,
            longest_way_ns: MS,
        }
    }
}

impl Tuning {
    /// What a worker's word may take off the measured time of a lease. Grant and report travel for
    /// a tenth of a millisecond during which an honest worker does not use the device; believing a
    /// dishonest one by 1/32 raises a share of 25 % to at most 25.8 %.
    pub fn allowance(&self, measured_ns: u64) -> u64 {
        (measured_ns / 32).min(self.longest_way_ns)
    }

    /// The most a session may have saved up: a period's worth. Where that is hardly one turn, a turn
    /// on top of it, or a small share would stop earning each time it has to wait for others.
    pub(super) fn burst_ns(&self, share_ppm: u32) -> u64 {
        let period = quota::earned(self.period_ns, share_ppm);
        let turn = quota::balance_for(self.shortest_ns, share_ppm);
        if period < 2 * turn { period + turn } else { period }
    }

    /// The longest turn of a session.
    pub(super) fn longest_turn_ns(&self, share_ppm: u32) -> u64 {
        quota::earned(self.period_ns, share_ppm).clamp(self.shortest_ns, self.quantum_ns)
    }

    /// The balance at which a session may start a turn.
    pub(super) fn entry_ns(&self, share_ppm: u32) -> u64 {
        let half = quota::earned(self.period_ns, share_ppm) / 2;
        let turn = half.clamp(self.shortest_ns, self.comfortable_ns);
        quota::balance_for(turn, share_ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_can_reach_its_entry() {
        let tuning = Tuning::default();
        for share in 1..=utils::units::PPM_ONE {
            assert!(tuning.entry_ns(share) <= tuning.burst_ns(share), "{share}");
            assert!(tuning.shortest_ns <= tuning.longest_turn_ns(share), "{share}");
        }
    }
}
