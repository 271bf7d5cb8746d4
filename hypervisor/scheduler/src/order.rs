//! When a session's next turn is, in relation to others: virtual time, deadlines, rounds.

use limits::Priority;
use limits::turns::{self, Handover};
use limits::units::PPM_ONE;

use crate::types::Paid;

/// A session's place among those that take turns.
#[derive(Debug)]
pub(crate) struct Order {
    /// The share by which it takes turns: see `division`.
    share_ppm: u32,
    /// Guaranteed time used in relation to the share, in nanoseconds at a whole share. The session
    /// with the least goes next.
    virtual_ns: u128,
    /// The virtual time until which its last turn was to last.
    deadline: u128,
    /// In this time, each session that takes turns gets its share once.
    round_ns: u64,
    /// It takes no part in longer ones.
    longest_round_ns: u64,
    /// What its turns cost.
    handover: Handover,
    /// Spare time used in relation to the weight.
    spare_virtual_ns: u128,
}

impl Order {
    pub(crate) fn new(share_ppm: u32) -> Self {
        Self {
            share_ppm,
            virtual_ns: 0,
            deadline: 0,
            round_ns: turns::PERIOD_NS,
            longest_round_ns: u64::MAX,
            handover: Handover::default(),
            spare_virtual_ns: 0,
        }
    }

    pub(crate) fn share_ppm(&self) -> u32 {
        self.share_ppm
    }

    /// Takes turns by `part` of `whole` of its share.
    pub(crate) fn take_turns_by(&mut self, guaranteed_ppm: u32, (part, whole): (u64, u64)) {
        let ppm = u64::from(guaranteed_ppm) * part / whole.max(1);
        self.share_ppm = u32::try_from(ppm).unwrap_or(u32::MAX).max(1);
    }

    pub(crate) fn handover(&self) -> Handover {
        self.handover
    }

    /// It takes turns together with those on other devices from now on, or does not any more.
    pub(crate) fn set_together(&mut self, together: bool) {
        self.handover = if together { Handover::Together } else { Handover::default() };
        self.longest_round_ns = u64::MAX;
    }

    /// The session with the least of it goes next.
    pub(crate) fn virtual_time(&self, paid: Paid) -> u128 {
        match paid {
            Paid::Own => self.virtual_ns,
            Paid::Spare => self.spare_virtual_ns,
        }
    }

    /// The session with the least goes next: by its deadline, or by the spare time that it used.
    pub(crate) fn place(&self, paid: Paid) -> u128 {
        match paid {
            Paid::Own => self.next_deadline(),
            Paid::Spare => self.spare_virtual_ns,
        }
    }

    /// The balance of a bucket with such a share with which a turn may start.
    pub(crate) fn entry_ns(&self, share_ppm: u32) -> u64 {
        turns::entry_ns(share_ppm, self.round_ns, self.handover)
    }

    /// How long its turn should be.
    pub(crate) fn full_turn_ns(&self) -> u64 {
        turns::turn_ns(self.share_ppm, self.round_ns)
    }

    /// The virtual time until which its next turn is to last. A turn that was longer or shorter than
    /// it should be changes the length of the next one and not its time, as far as a turn can be
    /// changed.
    pub(crate) fn next_deadline(&self) -> u128 {
        let turn = self.virtually(self.full_turn_ns());
        let least = self.virtually(turns::SHORTEST_TURN_NS).max(turn / 4);
        (self.deadline + turn).clamp(self.virtual_ns + least, self.virtual_ns + turn / 4 * 5)
    }

    /// How long the next turn should be.
    pub(crate) fn next_turn_ns(&self) -> u64 {
        let rest = self.next_deadline().saturating_sub(self.virtual_ns);
        let length = rest * u128::from(self.share_ppm) / u128::from(PPM_ONE);
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    pub(crate) fn turn_begins(&mut self) {
        self.deadline = self.next_deadline();
    }

    /// Joins those that take turns: it lags behind them by a round at most, and is not ahead.
    pub(crate) fn join_turns(&mut self, virtual_now: u128) {
        let earliest = virtual_now.saturating_sub(self.round_ns.into());
        self.virtual_ns = self.virtual_ns.clamp(earliest, virtual_now);
        self.deadline = self.virtual_ns;
    }

    /// Joins those that use spare time: idling earns no precedence.
    pub(crate) fn join_spare(&mut self, virtual_now: u128) {
        self.spare_virtual_ns = self.spare_virtual_ns.max(virtual_now);
    }

    /// Takes part in rounds of this length at most, from when the next ones are set.
    pub(crate) fn set_longest_round(&mut self, round_ns: u64) {
        self.longest_round_ns = round_ns;
    }

    /// Takes part in rounds of this length from now on. Whether that is another one than before.
    pub(crate) fn set_round(&mut self, round_ns: u64, priority: Priority) -> bool {
        // What keeps a session of low priority from starving comes once a period: each turn delays those preferred.
        let round_ns = match priority {
            // What is worth a turn has to be within what may be saved up.
            Priority::High => round_ns.min(self.longest_round_ns).min(self.handover.period_ns()),
            Priority::Low => turns::PERIOD_NS,
        };
        core::mem::replace(&mut self.round_ns, round_ns) != round_ns
    }

    /// It has used guaranteed time in a turn.
    pub(crate) fn use_own(&mut self, ns: u64) {
        self.virtual_ns += self.virtually(ns);
    }

    /// It has used spare time.
    pub(crate) fn use_spare(&mut self, ns: u64, weight: u32) {
        self.spare_virtual_ns += u128::from(ns) * u128::from(PPM_ONE) / u128::from(weight.max(1));
    }

    /// A time in relation to the share.
    fn virtually(&self, ns: u64) -> u128 {
        u128::from(ns) * u128::from(PPM_ONE) / u128::from(self.share_ppm.max(1))
    }
}
