//! Divides an overcommitted device among owners. Every owner can set any share, so a larger claim must not take time
//! from smaller ones.
//!
//! The device is divided among the owners whose sessions take turns: each gets what it is guaranteed, or an equal part
//! of what the smaller claims leave. Within an owner, shares stay in proportion. Only the order and the length of turns
//! follow from the division; a session still earns its own share, because others may be idle.

use std::collections::BTreeMap;

use limits::turns::PERIOD_NS;

use crate::roster::Roster;
use crate::tuning::ACTIVE_NS;
use crate::types::WHOLE;

/// The part of the device for each claim, all in millionths: at most the claim, and at least an equal part if that much
/// is claimed.
fn divide(wanted: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut by_size: Vec<(u64, u64)> =
        wanted.iter().map(|(&owner, &wanted)| (wanted, owner)).collect();
    by_size.sort_unstable();
    let (mut left, mut owners) = (WHOLE, by_size.len() as u64);
    let mut parts = BTreeMap::new();
    for (wanted, owner) in by_size {
        let part = wanted.min(left / owners.max(1));
        parts.insert(owner, part);
        left -= part;
        owners -= 1;
    }
    parts
}

/// How a device is divided among owners.
#[derive(Debug, Default)]
pub(crate) struct Division {
    /// When it is divided again.
    next_at: u64,
}

impl Division {
    /// Sets the share by which each session takes turns.
    pub(crate) fn set(&mut self, roster: &mut Roster, now: u64) {
        if now < self.next_at {
            return;
        }
        self.next_at = now.saturating_add(PERIOD_NS);
        let wanted = wanted(roster, now);
        // A single owner divides the device by its own shares.
        let is_crowded = wanted.len() > 1 && wanted.values().sum::<u64>() > WHOLE;
        let parts = if is_crowded { divide(&wanted) } else { BTreeMap::new() };
        for (_, session) in roster.sessions_mut() {
            let part =
                session.owner.and_then(|owner| Some((*parts.get(&owner)?, *wanted.get(&owner)?)));
            session.account.take_turns_by(part);
        }
    }
}

/// The sum of guarantees of each owner's sessions that take turns, in millionths.
fn wanted(roster: &Roster, now: u64) -> BTreeMap<u64, u64> {
    let mut wanted = BTreeMap::new();
    for (id, session) in roster.sessions() {
        let takes_turns = roster
            .members(id)
            .any(|(_, worker)| worker.is_dense() && worker.is_active_within(ACTIVE_NS, now));
        if let Some(owner) = session.owner.filter(|_| takes_turns) {
            *wanted.entry(owner).or_default() += u64::from(session.account.guaranteed_ppm());
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(wanted: &[u64]) -> Vec<u64> {
        let wanted = (0..).zip(wanted.iter().map(|percent| percent * 10_000)).collect();
        divide(&wanted).into_values().map(|ppm| ppm / 10_000).collect()
    }

    #[test]
    fn nobody_loses_what_is_below_an_equal_part() {
        assert_eq!(parts(&[50, 2000]), [50, 50]);
        assert_eq!(parts(&[30, 2000]), [30, 70]);
        assert_eq!(parts(&[80, 100]), [50, 50]);
        assert_eq!(parts(&[10, 40, 90, 300]), [10, 30, 30, 30]);
        assert_eq!(parts(&[20, 30]), [20, 30]);
        assert_eq!(parts(&[]), [0; 0]);
    }
}
