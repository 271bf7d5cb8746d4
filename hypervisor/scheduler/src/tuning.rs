//! The lengths of things, in nanoseconds, and the bounds of classes, in millionths.

use limits::bucket;

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
    /// The longest turn in spare time: a session that is owed its share waits no longer for it.
    pub spare_turn_ns: u64,
    /// The shortest lease, and the shortest prolongation of one.
    pub shortest_rest_ns: u64,
    /// How long after its end, or after the last word about it, a lease stands in the way of others.
    pub grace_ns: u64,
    /// How long after its end a lease stands in the way of others whatever is said about it: work
    /// that takes longer is left to the hardware's own time-slicing.
    pub longest_drain_ns: u64,
    /// An ask that is repeated within this time goes on: nothing is lost by asking in short polls.
    pub repeat_ns: u64,
    /// For so long after its poll a worker is taken to be on its way with the next one.
    pub linger_ns: u64,
    /// The longest that one that takes turns may lag behind others, in virtual time.
    pub longest_lag_ns: u64,
    /// The guaranteed share of a session of low priority is at most this, in millionths.
    pub floor_ppm: u32,
    /// A worker is dense from this density up, ...
    pub dense_ppm: u64,
    /// ... and sparse below this one; between them it stays what it was.
    pub sparse_ppm: u64,
    /// Where all holders together use less than this, none is slowed by the others.
    pub saturated_ppm: u64,
    /// One that has work queued for so much more of the time than it uses is slowed by the others.
    pub waiting_ppm: u64,
    /// Slicing that leaves more than this unused is dear.
    pub waste_ppm: u64,
    /// Density is smoothed over this much held time.
    pub memory_ns: u64,
    /// A density that was last measured so long ago gives way to the next measurement.
    pub stale_ns: u64,
    /// Held time that a first measurement takes.
    pub known_ns: u64,
    /// Time that a probe wants the device for one worker alone.
    pub probe_ns: u64,
    /// The longest that others are kept away for a probe.
    pub probe_limit_ns: u64,
    /// The shortest time between probes of one worker. It doubles up to `probe_rest_ns` while they
    /// bring nothing new.
    pub probe_every_ns: u64,
    /// How long workers must have been in doubt that have come to have work queued always.
    pub suspicion_ns: u64,
    /// After a time in which workers were suspected none is for this many times its length.
    pub trust_times: u64,
    /// For so long it does not become longer between probes of a new worker.
    pub beginning_ns: u64,
    /// The longest time between probes of a worker that goes on being in doubt.
    pub probe_rest_ns: u64,
    /// After a probe there is none on the device for this many times its length.
    pub probe_spacing: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            period_ns: 100 * MS,
            quantum_ns: 30 * MS,
            shortest_ns: 2 * MS,
            comfortable_ns: 10 * MS,
            spare_turn_ns: 10 * MS,
            shortest_rest_ns: MS / 2,
            grace_ns: 250 * MS,
            longest_drain_ns: 2_000 * MS,
            repeat_ns: 100 * MS,
            linger_ns: 2 * MS,
            longest_lag_ns: 1_000 * MS,
            floor_ppm: 50_000,
            dense_ppm: 900_000,
            sparse_ppm: 800_000,
            saturated_ppm: 850_000,
            waiting_ppm: 100_000,
            waste_ppm: 60_000,
            memory_ns: 200 * MS,
            stale_ns: 500 * MS,
            known_ns: 10 * MS,
            probe_ns: 15 * MS,
            probe_limit_ns: 100 * MS,
            probe_every_ns: 1_000 * MS,
            suspicion_ns: 500 * MS,
            trust_times: 2,
            beginning_ns: 1_000 * MS,
            probe_rest_ns: 8_000 * MS,
            probe_spacing: 20,
        }
    }
}

impl Tuning {
    /// The most a session may have saved up: a period's worth. Where that is hardly one turn, a turn
    /// on top of it, or a small share would stop earning each time it has to wait for others.
    pub fn burst_ns(&self, share_ppm: u32) -> u64 {
        let period = bucket::earned(self.period_ns, share_ppm);
        let turn = bucket::balance_for(self.shortest_ns, share_ppm);
        if period < 2 * turn { period + turn } else { period }
    }

    /// The longest turn of a session.
    pub fn longest_turn_ns(&self, share_ppm: u32) -> u64 {
        bucket::earned(self.period_ns, share_ppm).clamp(self.shortest_ns, self.quantum_ns)
    }

    /// The length of a turn's lease, where work runs past its end for so long: with that, a turn is an eighth longer
    /// at most, or what is left of it would be too short.
    pub(super) fn turn_before_ns(&self, turn_ns: u64, overrun_ns: u64) -> u64 {
        (turn_ns + turn_ns / 8).saturating_sub(overrun_ns).clamp(self.shortest_ns, turn_ns)
    }

    /// The balance at which a session may start a turn.
    pub(super) fn entry_ns(&self, share_ppm: u32) -> u64 {
        let half = bucket::earned(self.period_ns, share_ppm) / 2;
        let turn = half.clamp(self.shortest_ns, self.comfortable_ns);
        bucket::balance_for(turn, share_ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_can_reach_its_entry() {
        let tuning = Tuning::default();
        for share in 1..=limits::units::PPM_ONE {
            assert!(tuning.entry_ns(share) <= tuning.burst_ns(share), "{share}");
            assert!(tuning.shortest_ns <= tuning.longest_turn_ns(share), "{share}");
        }
    }
}
