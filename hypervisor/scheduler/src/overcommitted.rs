//! Owners that are guaranteed more than the device has. Everybody may say any share of himself, so
//! a larger one must not take from those who said less.
//!
//! The device is divided among the owners whose sessions take turns: each gets what it is
//! guaranteed, or an equal part of what the modest ones leave. Within an owner shares stay in
//! proportion. Only the order and the length of turns follow from that. What a session earns stays
//! its share, because others may be idle.

use std::collections::BTreeMap;

use limits::units::PPM_ONE;

use super::Scheduler;

/// A session counts as active for so long after it last asked or held.
const ACTIVE_NS: u64 = 1_000_000_000;
/// How often the division is made anew.
const PERIOD_NS: u64 = 100_000_000;

/// What each of these gets of the device, all in millionths: no more than it wants, and no less
/// than an equal part if it wants that much.
fn divide(wanted: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut by_size: Vec<(u64, u64)> =
        wanted.iter().map(|(&owner, &wanted)| (wanted, owner)).collect();
    by_size.sort_unstable();
    let (mut left, mut owners) = (u64::from(PPM_ONE), by_size.len() as u64);
    let mut parts = BTreeMap::new();
    for (wanted, owner) in by_size {
        let part = wanted.min(left / owners.max(1));
        parts.insert(owner, part);
        left -= part;
        owners -= 1;
    }
    parts
}

impl Scheduler {
    /// Sets by which share each session takes turns.
    pub(super) fn divide_among_owners(&mut self, now: u64) {
        if now < self.divide_at {
            return;
        }
        self.divide_at = now.saturating_add(PERIOD_NS);
        let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
        for session in self.sessions.values() {
            let takes_turns = session.members.iter().any(|member| {
                let waits = self.asking.contains(member) || self.holding.contains(member);
                self.workers.get(member).is_some_and(|worker| {
                    let is_active = waits || worker.was_active_within(ACTIVE_NS, now);
                    is_active && worker.density.is_dense()
                })
            });
            if let Some(owner) = session.owner.filter(|_| takes_turns) {
                *wanted.entry(owner).or_default() += u64::from(session.account.guaranteed_ppm());
            }
        }
        // Alone, an owner divides the device by its own shares.
        let is_crowded = wanted.len() > 1 && wanted.values().sum::<u64>() > u64::from(PPM_ONE);
        let parts = if is_crowded { divide(&wanted) } else { BTreeMap::new() };
        for session in self.sessions.values_mut() {
            let part =
                session.owner.and_then(|owner| Some((parts.get(&owner)?, wanted.get(&owner)?)));
            session.account.take_turns_by(part.map(|(&part, &wanted)| (part, wanted)));
        }
    }
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
