//! The order of turns: virtual time, deadlines, rounds. Each account has one [`Order`].

use limits::Priority;
use limits::turns::{self, Handover};
use limits::units::PPM_ONE;

use crate::types::Paid;

/// A session's place among the sessions that take turns.
#[derive(Debug)]
pub(crate) struct Order {
    /// The share by which it takes turns; see `division`.
    share_ppm: u32,
    /// Guaranteed time used relative to the share, in nanoseconds at a whole share. The session with the least is next.
    virtual_ns: u128,
    /// The virtual time at which its last turn was to end.
    deadline: u128,
    /// The length of a round, in which each session that takes turns gets its share once (ns).
    round_ns: u64,
    /// The longest rounds in which the session takes part (ns).
    longest_round_ns: u64,
    /// The kind of handover between its turns.
    handover: Handover,
    /// Spare time used relative to the weight.
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

    /// Sets the share by which the session takes turns to `part` of `whole` of its guarantee.
    pub(crate) fn take_turns_by(&mut self, guaranteed_ppm: u32, (part, whole): (u64, u64)) {
        let ppm = u64::from(guaranteed_ppm) * part / whole.max(1);
        self.share_ppm = u32::try_from(ppm).unwrap_or(u32::MAX).max(1);
    }

    pub(crate) fn handover(&self) -> Handover {
        self.handover
    }

    /// Sets whether the session takes turns together with those on other devices.
    pub(crate) fn set_together(&mut self, together: bool) {
        self.handover = if together { Handover::Together } else { Handover::default() };
        self.longest_round_ns = u64::MAX;
    }

    /// The used time that decides; the session with the least is next.
    pub(crate) fn virtual_time(&self, paid: Paid) -> u128 {
        match paid {
            Paid::Own => self.virtual_ns,
            Paid::Spare => self.spare_virtual_ns,
        }
    }

    /// The value that decides: the deadline, or the spare time used. The session with the least is next.
    pub(crate) fn place(&self, paid: Paid) -> u128 {
        match paid {
            Paid::Own => self.next_deadline(),
            Paid::Spare => self.spare_virtual_ns,
        }
    }

    /// The balance with which a turn may start, for a bucket with this share (ns).
    pub(crate) fn entry_ns(&self, share_ppm: u32) -> u64 {
        turns::entry_ns(share_ppm, self.round_ns, self.handover)
    }

    /// The intended length of its turn (ns).
    pub(crate) fn full_turn_ns(&self) -> u64 {
        turns::turn_ns(self.share_ppm, self.round_ns)
    }

    /// The virtual time at which its next turn is to end. A turn that was too long or too short changes the length of
    /// the next turn, not its time, as far as a turn's length can change.
    pub(crate) fn next_deadline(&self) -> u128 {
        let turn = self.virtually(self.full_turn_ns());
        let least = self.virtually(turns::SHORTEST_TURN_NS).max(turn / 4);
        (self.deadline + turn).clamp(self.virtual_ns + least, self.virtual_ns + turn / 4 * 5)
    }

    /// The intended length of the next turn (ns).
    pub(crate) fn next_turn_ns(&self) -> u64 {
        let rest = self.next_deadline().saturating_sub(self.virtual_ns);
        let length = rest * u128::from(self.share_ppm) / u128::from(PPM_ONE);
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    pub(crate) fn turn_begins(&mut self) {
        self.deadline = self.next_deadline();
    }

    /// Joins the sessions that take turns: at most one round behind them, and not ahead.
    pub(crate) fn join_turns(&mut self, virtual_now: u128) {
        let earliest = virtual_now.saturating_sub(self.round_ns.into());
        self.virtual_ns = self.virtual_ns.clamp(earliest, virtual_now);
        self.deadline = self.virtual_ns;
    }

    /// Joins the sessions that use spare time: idling earns no precedence.
    pub(crate) fn join_spare(&mut self, virtual_now: u128) {
        self.spare_virtual_ns = self.spare_virtual_ns.max(virtual_now);
    }

    /// Sets the longest rounds in which the session takes part, from the next time that rounds are set.
    pub(crate) fn set_longest_round(&mut self, round_ns: u64) {
        self.longest_round_ns = round_ns;
    }

    /// Sets the length of its rounds. Returns whether it has changed.
    pub(crate) fn set_round(&mut self, round_ns: u64, priority: Priority) -> bool {
        let round_ns = match priority {
            Priority::High => round_ns.min(self.longest_round_ns),
            Priority::Low => turns::low_priority_round_ns(self.share_ppm),
        };
        core::mem::replace(&mut self.round_ns, round_ns) != round_ns
    }

    /// Adds guaranteed time that was used in a turn.
    pub(crate) fn use_own(&mut self, ns: u64) {
        self.virtual_ns += self.virtually(ns);
    }

    /// Adds spare time that was used.
    pub(crate) fn use_spare(&mut self, ns: u64, weight: u32) {
        self.spare_virtual_ns += u128::from(ns) * u128::from(PPM_ONE) / u128::from(weight.max(1));
    }

    /// A time relative to the share.
    fn virtually(&self, ns: u64) -> u128 {
        u128::from(ns) * u128::from(PPM_ONE) / u128::from(self.share_ppm.max(1))
    }
}
