//! How a device's time is dealt out: the arithmetic that a daemon's scheduler and a session's own
//! account share.
//!
//! * A session earns its share all the time ([`crate::bucket`]), and may save up what it earns in a
//!   [period](PERIOD_NS), and a short turn ([`burst_ns`]).
//! * One that fills the device takes turns with others that do. In a round each gets its share once,
//!   so a turn is the share of a round.
//! * A turn starts when its session has saved up enough for it to be worth a handover
//!   ([`entry_ns`]).

use crate::bucket;
use crate::units::PPM_ONE;

const MS: u64 = 1_000_000;

/// A share is kept over this time, and rounds are no longer, but for those of [several devices](Handover::period_ns).
pub const PERIOD_NS: u64 = 100 * MS;
/// The longest lease. One that may go on is prolonged.
pub const LONGEST_LEASE_NS: u64 = 30 * MS;
/// The shortest turn. Below it, the handover outweighs the work.
pub const SHORTEST_TURN_NS: u64 = MS;
/// A turn on one device may start with this much, even if a longer one could be had by waiting: it is enough to
/// measure a utilization. One of spare time is as long.
pub const COMFORTABLE_TURN_NS: u64 = 10 * MS;
/// The guaranteed share of a session of low priority is at most this, in millionths.
pub const LOW_PRIORITY_PPM: u32 = 20_000;
/// Rounds between gates in streams, for each session that takes turns: the shortest, and the longest.
const SHORTEST_ROUND_NS: u64 = 4_300_000;
const LONGEST_ROUND_NS: u64 = 10 * MS;
/// Rounds between gates in streams are so short that nobody waits for longer, where they may be.
const LONGEST_WAIT_NS: u64 = 11 * MS;
/// Rounds in which sessions take part that hold several devices, for each session: beside others, and where all do.
/// A handover costs training on two H100s some 16 ms.
const TOGETHER_BESIDE_OTHERS_NS: u64 = 50 * MS;
const TOGETHER_NS: u64 = 150 * MS;
/// From this utilization up a process fills the device: it is dense. Others leave it idle part of
/// the time.
pub const DENSE_PPM: u64 = 850_000;
/// Utilization is averaged over this much held time.
pub const MEMORY_NS: u64 = 200 * MS;

/// How a process's gates work. What a handover costs follows from it, and so the length of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handover {
    /// Its streams wait at the gate: it can be stopped at once, and a handover costs what the device needs to go over
    /// to another process: 140 us on an H200.
    InStream,
    /// Its threads wait at the gate. When a lease ends, what was launched has to run out: some
    /// 350 us.
    #[default]
    OnThread,
    /// Its devices are held together: a handover waits for the slowest of them.
    Together,
}

/// Those that take turns on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakingTurns {
    /// How many sessions they are.
    pub sessions: u64,
    /// The sum of their shares, and the least one, in millionths.
    pub sum_ppm: u64,
    /// The least one.
    pub least_ppm: u64,
    /// The costliest handover of theirs.
    pub handover: Handover,
    /// The cheapest one.
    pub cheapest: Handover,
    /// What each of them has queued at least when its turns end.
    pub queued_ns: u64,
}

impl TakingTurns {
    /// How long a round is for each session. A turn costs a handover, so a round is the longer, the more take turns.
    ///
    /// A program that has little queued waits for its results within a turn, and each turn of another delays it. One
    /// that has more queued than a turn takes does not notice how its time is cut, and turns are longer for its sake.
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
            Handover::Together if self.cheapest == Handover::Together => TOGETHER_NS,
            Handover::Together => TOGETHER_BESIDE_OTHERS_NS,
        }
    }

    /// In which time each of so many sessions gets its share once. Where their shares are more than the
    /// device, or would be if another one came that is like the only one, all get less.
    #[must_use]
    pub fn round_ns(mut self) -> u64 {
        if self.sessions < 2 {
            (self.sessions, self.sum_ppm) = (2, self.sum_ppm.saturating_mul(2));
        }
        let longest = self.cheapest.period_ns();
        let round = self.round_for_each_ns().saturating_mul(self.sessions).min(longest);
        round.saturating_mul(PPM_ONE.into()) / self.sum_ppm.max(PPM_ONE.into())
    }
}

impl Handover {
    /// A share is kept over this time: two of the longest turns that it is worth.
    #[must_use]
    pub const fn period_ns(self) -> u64 {
        match self {
            Self::InStream | Self::OnThread => PERIOD_NS,
            Self::Together => 2 * TOGETHER_NS,
        }
    }

    /// The turn that a session waits for, of one that would be `turn_ns` long: half of it, or a comfortable one.
    /// Several devices are worth a whole one.
    fn least_turn_ns(self, turn_ns: u64) -> u64 {
        match self {
            Self::InStream | Self::OnThread => {
                (turn_ns / 2).clamp(SHORTEST_TURN_NS, COMFORTABLE_TURN_NS)
            }
            Self::Together => turn_ns.clamp(SHORTEST_TURN_NS, TOGETHER_NS),
        }
    }
}

/// The most that a session may save up: one period's earnings and one of the shortest turns. In a
/// crowd, a session's next turn comes a period after the last one, or a little later: without the
/// turn on top, it would stop earning while it waits. Of several devices it waits for a whole turn, and then the
/// others' turns may come first: so it may save up for two.
pub fn burst_ns(share_ppm: u32, handover: Handover) -> u64 {
    let saved_ns = match handover {
        Handover::InStream | Handover::OnThread => handover.period_ns(),
        Handover::Together => 2 * handover.period_ns(),
    };
    bucket::earned(saved_ns, share_ppm) + bucket::balance_for(SHORTEST_TURN_NS, share_ppm)
}

/// How long a turn is: the share of a round.
pub fn turn_ns(share_ppm: u32, round_ns: u64) -> u64 {
    bucket::earned(round_ns, share_ppm).max(SHORTEST_TURN_NS)
}

/// The balance at which a session may start a turn.
pub fn entry_ns(share_ppm: u32, round_ns: u64, handover: Handover) -> u64 {
    let turn = handover.least_turn_ns(bucket::earned(round_ns, share_ppm));
    bucket::balance_for(turn, share_ppm)
}

/// Whether a process fills the device, as far as is known. One that is not known may.
pub fn is_dense(utilization_ppm: Option<u64>) -> bool {
    utilization_ppm.is_none_or(|ppm| ppm >= DENSE_PPM)
}

/// `part` in millionths of `whole`; 0 of nothing.
pub fn ratio_ppm(part: u64, whole: u64) -> u64 {
    let ppm = (u128::from(part) * u128::from(PPM_ONE)).checked_div(u128::from(whole));
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// A mean over the last nanoseconds (how many, each call says), of values in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mean {
    /// The mean.
    pub ppm: u64,
    /// Over how much time it is the mean; 0: nothing is known.
    pub weight_ns: u64,
}

impl Mean {
    /// Adds a value that held for a while.
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
                let entry = entry_ns(share, handover.period_ns(), handover);
                assert!(entry <= burst_ns(share, handover), "{share} {handover:?}");
            }
        }
    }

    #[test]
    fn who_waits_for_several_devices_earns_on_while_the_others_have_their_turns() {
        let handover = Handover::Together;
        let round_ns = handover.period_ns();
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
            let cheapest = handover;
            let all =
                TakingTurns { sessions, sum_ppm, least_ppm, handover, cheapest, queued_ns: 0 };
            all.round_ns() / MS
        };
        assert_eq!(round(2, 1_000_000, Handover::InStream), 8);
        assert_eq!(round(2, 2_000_000, Handover::InStream), 4);
        assert_eq!(round(8, 1_000_000, Handover::InStream), 34);
        assert_eq!(round(2, 500_000, Handover::OnThread), 60);
        assert_eq!(round(40, 1_000_000, Handover::InStream), 100);
        assert_eq!(round(1, 500_000, Handover::InStream), 8);
        assert_eq!(round(1, 1_000_000, Handover::OnThread), 30);
        assert_eq!(round(2, 1_000_000, Handover::Together), 300);
        let handover = Handover::Together;
        let cheapest = Handover::InStream;
        let [sum_ppm, least_ppm] = [1_000_000, 500_000];
        let mixed =
            TakingTurns { sessions: 2, sum_ppm, least_ppm, handover, cheapest, queued_ns: 0 };
        assert_eq!(mixed.round_ns() / MS, 100);
    }

    #[test]
    fn who_has_much_queued_has_longer_turns_and_nobody_waits_long() {
        let round = |least_ppm, queued_ms| {
            let handover = Handover::InStream;
            let queued_ns = queued_ms * MS;
            let sum_ppm = 1_000_000;
            let cheapest = handover;
            TakingTurns { sessions: 2, sum_ppm, least_ppm, handover, cheapest, queued_ns }
                .round_ns()
        };
        assert_eq!(round(500_000, 1), 2 * SHORTEST_ROUND_NS);
        assert_eq!(round(500_000, 7), 14 * MS);
        assert_eq!(round(500_000, 100), 20 * MS);
        // At a quarter it waits for three quarters of the round.
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
