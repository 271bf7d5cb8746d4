//! The scheduler's constants: times in nanoseconds, bounds in millionths.

use limits::bucket;
use limits::units::PPM_ONE;

use super::Handover;

const MS: u64 = 1_000_000;

/// The constants of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// A share is kept over this time. A session may save up what it earns in one period, and a
    /// turn is at most as long as that.
    pub period_ns: u64,
    /// The longest lease. One that may go on is prolonged.
    pub lease_ns: u64,
    /// A round lasts for so long for each session that takes turns, if one of them has its gates on
    /// its threads, ...
    pub on_thread_ns: u64,
    /// ... and if all have them in their streams. A turn costs a handover, so a round is the longer
    /// the more take turns, up to a period.
    pub in_stream_ns: u64,
    /// The shortest turn. Below it, starting and draining outweigh the work.
    pub shortest_ns: u64,
    /// A session that has used up its time starts its next turn when it can afford this much. If
    /// half of what it earns in a round is less, that is enough, but never less than
    /// `shortest_ns`.
    pub comfortable_ns: u64,
    /// The longest turn in spare time: a session that is owed its share waits no longer than this.
    pub spare_turn_ns: u64,
    /// The shortest lease, and the shortest prolongation of one.
    pub shortest_rest_ns: u64,
    /// How much of the time between two reports may be missing from them: messages take a while.
    pub message_ns: u64,
    /// For how long after its end, or after the last report, a lease keeps others waiting.
    pub grace_ns: u64,
    /// For how long after its end a lease keeps others waiting at most, whatever is reported.
    /// Longer work is left to the hardware's own slicing.
    pub longest_drain_ns: u64,
    /// An ask that is repeated within this time continues the earlier one: short polls lose
    /// nothing.
    pub repeat_ns: u64,
    /// For this long after its poll, a worker is assumed to be about to send the next one.
    pub linger_ns: u64,
    /// The guaranteed share of a session of low priority is at most this, in millionths.
    pub floor_ppm: u32,
    /// A worker is dense from this utilization up, ...
    pub dense_ppm: u64,
    /// ... and sparse below this one. Between the two it stays what it was.
    pub sparse_ppm: u64,
    /// If all holders together use less than this, none slows another down.
    pub saturated_ppm: u64,
    /// A worker is slowed down if it has work queued for this much more of the time than it uses.
    pub waiting_ppm: u64,
    /// Utilization is smoothed over this much held time.
    pub memory_ns: u64,
    /// A utilization that was last measured this long ago gives way to the next measurement.
    pub stale_ns: u64,
    /// How much held time a first measurement takes.
    pub known_ns: u64,
    /// How long a probe gives the device to one worker alone.
    pub probe_ns: u64,
    /// The longest time that a probe keeps others away.
    pub probe_limit_ns: u64,
    /// The shortest time between probes of one worker. It doubles, up to `probe_rest_ns`, while
    /// probes show nothing new.
    pub probe_every_ns: u64,
    /// How long a worker that became backlogged must have been in doubt before it is suspected.
    pub suspicion_ns: u64,
    /// When the last suspicion has ended, none begins for this many times the time that suspicions
    /// lasted.
    pub trust_times: u64,
    /// In this time after a worker's first report, the time between its probes does not grow.
    pub beginning_ns: u64,
    /// The longest time between probes of a worker that stays in doubt.
    pub probe_rest_ns: u64,
    /// After a probe, none starts on the device for this many times its length.
    pub probe_spacing: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            period_ns: 100 * MS,
            lease_ns: 30 * MS,
            on_thread_ns: 30 * MS,
            in_stream_ns: 5 * MS,
            shortest_ns: MS,
            comfortable_ns: 10 * MS,
            spare_turn_ns: 10 * MS,
            shortest_rest_ns: MS / 2,
            message_ns: 2 * MS,
            grace_ns: 250 * MS,
            longest_drain_ns: 2_000 * MS,
            repeat_ns: 100 * MS,
            linger_ns: 2 * MS,
            floor_ppm: 50_000,
            dense_ppm: 900_000,
            sparse_ppm: 800_000,
            saturated_ppm: 850_000,
            waiting_ppm: 100_000,
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
    /// The most that a session may save up: one period's earnings. If that is hardly one turn, one
    /// turn is added. Without it, a small share would stop earning each time it has to wait for
    /// others.
    pub fn burst_ns(&self, share_ppm: u32) -> u64 {
        let period = bucket::earned(self.period_ns, share_ppm);
        let turn = bucket::balance_for(self.shortest_ns, share_ppm);
        if period < 2 * turn { period + turn } else { period }
    }

    /// In which time each of so many sessions gets its share once. Where their shares are more than
    /// the device, or would be if another one came that is like the only one, all get less.
    pub(super) fn round_ns(&self, sessions: u64, sum_ppm: u64, handover: Handover) -> u64 {
        let each = match handover {
            Handover::InStream => self.in_stream_ns,
            Handover::OnThread => self.on_thread_ns,
        };
        let (sessions, sum_ppm) =
            if sessions < 2 { (2, sum_ppm.saturating_mul(2)) } else { (sessions, sum_ppm) };
        let round_ns = each.saturating_mul(sessions).min(self.period_ns);
        round_ns.saturating_mul(PPM_ONE.into()) / sum_ppm.max(PPM_ONE.into())
    }

    /// How long a turn is: what the share is of a round.
    pub fn turn_ns(&self, share_ppm: u32, round_ns: u64) -> u64 {
        bucket::earned(round_ns, share_ppm).max(self.shortest_ns)
    }

    /// The length of a turn's lease, if work usually runs `overrun_ns` past its end. The lease is
    /// shortened so that it and the overrun together are at most an eighth longer than the turn,
    /// but not below the shortest turn.
    pub(super) fn turn_before_ns(&self, turn_ns: u64, overrun_ns: u64) -> u64 {
        let lease = (turn_ns + turn_ns / 8).saturating_sub(overrun_ns);
        lease.max(self.shortest_ns).min(turn_ns)
    }

    /// The balance at which a session may start a turn.
    pub(super) fn entry_ns(&self, share_ppm: u32, round_ns: u64) -> u64 {
        let half = bucket::earned(round_ns, share_ppm) / 2;
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
            let entry = tuning.entry_ns(share, tuning.period_ns);
            assert!(entry <= tuning.burst_ns(share), "{share}");
        }
    }
}
