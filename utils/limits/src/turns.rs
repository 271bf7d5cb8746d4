//! Lengths of turns and rounds: the arithmetic shared by the daemon's scheduler and a session's own account.
//!
//! * A session continuously earns its share ([`crate::bucket`]), and may save the earnings of a [period](PERIOD_NS)
//!   plus a short turn ([`burst_ns`]).
//! * Sessions that fill the device take turns. In a round each gets its share once, so a turn is the session's share of
//!   a round.
//! * A turn starts when its session has saved enough to be worth a handover ([`entry_ns`]).

use crate::bucket;
use crate::units::PPM_ONE;

const MS: u64 = 1_000_000;

/// Time over which a share is kept, and longest round.
pub const PERIOD_NS: u64 = 100 * MS;
/// The longest lease. Longer use needs renewal.
pub const LONGEST_LEASE_NS: u64 = 30 * MS;
/// The shortest turn. Below it, the handover would outweigh the work.
pub const SHORTEST_TURN_NS: u64 = MS;
/// Enough to start a turn on one device, even if waiting would allow a longer one: enough to measure a utilization.
/// Also the length of a turn of idle time.
pub const COMFORTABLE_TURN_NS: u64 = 10 * MS;
/// Highest guaranteed share of a session of low priority, in millionths.
pub const LOW_PRIORITY_PPM: u32 = 100_000;
/// Its turns of guaranteed time: short, because each delays sessions of high priority.
const LOW_PRIORITY_TURN_NS: u64 = 2 * MS;
/// Shortest and longest round per session that takes turns, with gates in streams.
const SHORTEST_ROUND_NS: u64 = 4_300_000;
const LONGEST_ROUND_NS: u64 = 10 * MS;
/// Longest wait for a turn that rounds with gates in streams aim at.
const LONGEST_WAIT_NS: u64 = 11 * MS;
/// Round per session with gangs (sessions that hold several devices). Two trainings on two H200s keep 0.99 of one's speed
/// together in turns of 40 ms and 1.00 in turns of 75; simulated jobs with gates on threads keep 0.96 and 0.97.
const TOGETHER_NS: u64 = 50 * MS;
/// Utilization from which a process fills the device: it is dense. Processes below it (sparse) leave the device idle
/// part of the time.
pub const DENSE_PPM: u64 = 850_000;
/// Held time over which utilization is averaged.
pub const MEMORY_NS: u64 = 200 * MS;

/// Where a process's gates are. Determines the cost of a handover, and so the length of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handover {
    /// In its streams: the process can be stopped at once, and a handover costs only the device's context switch, 140
    /// us on an H200.
    InStream,
    /// On its threads: when a lease ends, launched work has to finish, some 350 us.
    #[default]
    OnThread,
    /// Its devices are held together: a handover waits for the slowest device.
    Together,
}

/// The sessions that take turns on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakingTurns {
    /// Number of sessions.
    pub sessions: u64,
    /// Sum of their shares, in millionths.
    pub sum_ppm: u64,
    /// Smallest share, in millionths.
    pub least_ppm: u64,
    /// Costliest handover among them.
    pub handover: Handover,
    /// Least work that each of them has queued at the end of its turns.
    pub queued_ns: u64,
}

impl TakingTurns {
    /// Round per session. Each turn costs a handover, so a round grows with the number of sessions.
    ///
    /// A program with little queued work waits for results within a turn, and each turn of another session delays it. A
    /// program with more queued work than a turn takes does not notice how its time is divided, so its turns are
    /// longer.
    fn round_for_each_ns(&self) -> u64 {
        match self.handover {
            Handover::InStream => {
                let others_ppm = u64::from(PPM_ONE).saturating_sub(self.least_ppm);
                let round_ns = LONGEST_WAIT_NS.saturating_mul(PPM_ONE.into());
                let bound_ns = round_ns.checked_div(others_ppm * self.sessions).unwrap_or(u64::MAX);
                let longest_ns = LONGEST_ROUND_NS.min(bound_ns).max(SHORTEST_ROUND_NS);
                self.queued_ns.clamp(SHORTEST_ROUND_NS, longest_ns)
            }
            Handover::OnThread => 30 * MS,
            Handover::Together => TOGETHER_NS,
        }
    }

    /// Time in which each session gets its share once. If the shares exceed the device, or would with a second session
    /// like the only one, all get less.
    #[must_use]
    pub fn round_ns(mut self) -> u64 {
        if self.sessions < 2 {
            (self.sessions, self.sum_ppm) = (2, self.sum_ppm.saturating_mul(2));
        }
        let round = self.round_for_each_ns().saturating_mul(self.sessions).min(PERIOD_NS);
        round.saturating_mul(PPM_ONE.into()) / self.sum_ppm.max(PPM_ONE.into())
    }
}

impl Handover {
    /// The shortest turn worth starting, of a full turn of `turn_ns`: half of it, but at most a comfortable one. A gang
    /// waits for the whole turn.
    fn least_turn_ns(self, turn_ns: u64) -> u64 {
        match self {
            Self::InStream | Self::OnThread => {
                (turn_ns / 2).clamp(SHORTEST_TURN_NS, COMFORTABLE_TURN_NS)
            }
            Self::Together => turn_ns.clamp(SHORTEST_TURN_NS, TOGETHER_NS),
        }
    }
}

/// The most that a session may save: the earnings of one period, plus a shortest turn. With many sessions the next turn
/// comes a period after the last one or a little later; without the extra turn the session would stop earning while it
/// waits. A gang waits for a whole turn, and others' turns may come first, so it may save the earnings of two periods.
pub fn burst_ns(share_ppm: u32, handover: Handover) -> u64 {
    let saved_ns = match handover {
        Handover::InStream | Handover::OnThread => PERIOD_NS,
        Handover::Together => 2 * PERIOD_NS,
    };
    bucket::earned(saved_ns, share_ppm) + bucket::balance_for(SHORTEST_TURN_NS, share_ppm)
}

/// The round of a session of low priority with this guaranteed share.
pub fn low_priority_round_ns(share_ppm: u32) -> u64 {
    let whole = u64::from(PPM_ONE);
    (LOW_PRIORITY_TURN_NS * whole / u64::from(share_ppm.max(1))).min(PERIOD_NS)
}

/// Length of a turn: the share of a round.
pub fn turn_ns(share_ppm: u32, round_ns: u64) -> u64 {
    bucket::earned(round_ns, share_ppm).max(SHORTEST_TURN_NS)
}

/// The balance at which a session may start a turn.
pub fn entry_ns(share_ppm: u32, round_ns: u64, handover: Handover) -> u64 {
    let turn = handover.least_turn_ns(bucket::earned(round_ns, share_ppm));
    bucket::balance_for(turn, share_ppm)
}

/// Whether a process fills the device. Assumed if its utilization is unknown.
pub fn is_dense(utilization_ppm: Option<u64>) -> bool {
    utilization_ppm.is_none_or(|ppm| ppm >= DENSE_PPM)
}

/// `part` as millionths of `whole`; 0 if `whole` is 0.
pub fn ratio_ppm(part: u64, whole: u64) -> u64 {
    let ppm = (u128::from(part) * u128::from(PPM_ONE)).checked_div(u128::from(whole));
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// A running mean of values in millionths over recent time; each call passes the length of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean {
    /// The mean.
    pub ppm: u64,
    /// Time that the mean covers, in nanoseconds; 0: no value yet.
    pub weight_ns: u64,
}

impl Mean {
    /// Adds a value that held for `for_ns`; the mean covers at most `memory_ns`.
    pub fn add(&mut self, ppm: u64, for_ns: u64, memory_ns: u64) {
        let kept = u128::from(self.weight_ns.min(memory_ns.saturating_sub(for_ns)));
        let sum = u128::from(self.ppm) * kept + u128::from(ppm) * u128::from(for_ns);
        let mean = sum.checked_div(kept + u128::from(for_ns)).unwrap_or(self.ppm.into());
        self.ppm = u64::try_from(mean).unwrap_or(u64::MAX);
        self.weight_ns = self.weight_ns.saturating_add(for_ns).min(memory_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_can_reach_its_entry() {
        for share in 1..=PPM_ONE {
            for handover in [Handover::InStream, Handover::OnThread, Handover::Together] {
                let entry = entry_ns(share, PERIOD_NS, handover);
                assert!(entry <= burst_ns(share, handover), "{share} {handover:?}");
            }
        }
    }

    #[test]
    fn who_waits_for_several_devices_earns_on_while_the_others_have_their_turns() {
        let handover = Handover::Together;
        let round_ns = PERIOD_NS;
        for share in 1..=PPM_ONE {
            let others_ns = round_ns - bucket::earned(round_ns, share);
            let missed = entry_ns(share, round_ns, handover) + bucket::earned(others_ns, share);
            assert!(missed <= burst_ns(share, handover), "{share}");
        }
    }

    #[test]
    fn a_round_is_short_for_two_and_a_period_for_many() {
        let round = |sessions: u64, sum_ppm: u64, handover| {
            let least_ppm = sum_ppm / sessions;
            let all = TakingTurns { sessions, sum_ppm, least_ppm, handover, queued_ns: 0 };
            all.round_ns() / MS
        };
        assert_eq!(round(2, 1_000_000, Handover::InStream), 8);
        assert_eq!(round(2, 2_000_000, Handover::InStream), 4);
        assert_eq!(round(8, 1_000_000, Handover::InStream), 34);
        assert_eq!(round(2, 500_000, Handover::OnThread), 60);
        assert_eq!(round(40, 1_000_000, Handover::InStream), 100);
        assert_eq!(round(1, 500_000, Handover::InStream), 8);
        assert_eq!(round(1, 1_000_000, Handover::OnThread), 30);
        assert_eq!(round(2, 1_000_000, Handover::Together), 100);
        assert_eq!(round(3, 1_000_000, Handover::Together), 100);
    }

    #[test]
    fn who_has_much_queued_has_longer_turns_and_nobody_waits_long() {
        let round = |least_ppm, queued_ms| {
            let handover = Handover::InStream;
            let queued_ns = queued_ms * MS;
            let sum_ppm = 1_000_000;
            TakingTurns { sessions: 2, sum_ppm, least_ppm, handover, queued_ns }.round_ns()
        };
        assert_eq!(round(500_000, 1), 2 * SHORTEST_ROUND_NS);
        assert_eq!(round(500_000, 7), 14 * MS);
        assert_eq!(round(500_000, 100), 20 * MS);
        // With a share of a quarter a session waits for three quarters of the round.
        let wait = round(250_000, 100) * 3 / 4;
        assert!((wait / 1000).abs_diff(11_000) <= 1, "{wait}");
        assert!((round(10_000, 100) * 99 / 100 / 1000).abs_diff(11_000) <= 1);
    }

    #[test]
    fn a_mean_forgets() {
        let mut mean = Mean::default();
        mean.add(500_000, MS, MEMORY_NS);
        assert_eq!(mean.ppm, 500_000);
        mean.add(1_000_000, MEMORY_NS, MEMORY_NS);
        assert_eq!(mean, Mean { ppm: 1_000_000, weight_ns: MEMORY_NS });
        mean.add(7, 0, 0);
        assert_eq!(mean.ppm, 1_000_000);
    }
}
