//! All executions of the protocol: the governor's and the daemon's steps in any order. The decisions are those of the
//! parent module; the rest is a model: the words, a governor that asks, withdraws at any moment and sleeps on the bell,
//! and a daemon that grants leases, opens gates for them and ends them early.

use super::{Opening, STOPPING, Step, WITHDRAWING, is_stopped};
use std::collections::{HashSet, VecDeque};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Governor {
    /// Has no lease, and a closed gate.
    Rests,
    /// Waits for the answer to a request that named the word with this count.
    Asks { named: u8 },
    /// Is withdrawing, after `at` steps.
    Withdraws { at: usize },
    /// Has read the bell, and is opening.
    Opens { lease: Option<u64>, rings: u8, opening: Opening },
    /// Sleeps until the bell differs from `rings`.
    Sleeps { lease: Option<u64>, rings: u8 },
    /// Its lease has ended; closes the gate next.
    Closes,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    count: u8,
    open: bool,
    stop: u64,
    bell: u8,
    governor: Governor,
    /// The request that the daemon knows; it may have been withdrawn since.
    asked: Option<u8>,
    /// The answer in transit: to the request with this count, with this lease.
    answer: Option<(u8, u64)>,
    /// The last granted lease.
    granted: u64,
    /// The daemon's next step in ending `granted` early.
    stopping: Option<usize>,
    /// How many leases the daemon may still end early, and the governor take without the daemon.
    stops: u8,
    own: u8,
}

impl World {
    const MOST_GRANTS: u64 = 3;

    fn new() -> Self {
        Self {
            count: 0,
            open: false,
            stop: 0,
            bell: 0,
            governor: Governor::Rests,
            asked: None,
            answer: None,
            granted: 0,
            stopping: None,
            stops: 3,
            own: 2,
        }
    }

    /// Carries out a step; returns the value read.
    fn carry_out(&mut self, step: Step, named: u8) -> u64 {
        match step {
            Step::Open => self.open = true,
            Step::Close => self.open = false,
            Step::Count => self.count += 1,
            Step::Withdraw => (self.count, self.open) = (self.count + 1, false),
            Step::Grant => self.open |= self.count == named,
            Step::LookAtStop => return self.stop,
            Step::StoreStop => self.stop = self.granted,
            Step::Ring => self.bell += 1,
        }
        0
    }

    fn opens(&self, lease: Option<u64>) -> Governor {
        Governor::Opens { lease, rings: self.bell, opening: Opening::new(lease) }
    }

    /// The states after the governor's next step.
    fn governed(&self, withdrawing: &[Step]) -> Vec<Self> {
        let mut all = Vec::new();
        let mut next = self.clone();
        match self.governor.clone() {
            Governor::Rests => {
                if self.granted < Self::MOST_GRANTS && self.count < 4 && !self.open {
                    next.carry_out(Step::Count, 0);
                    // The message arrives whenever the daemon is ready. The answer to an earlier request is dropped.
                    next.governor = Governor::Asks { named: next.count };
                    all.push(Self { asked: Some(next.count), answer: None, ..next });
                }
                if self.own > 0 {
                    let governor = self.opens(None);
                    all.push(Self { own: self.own - 1, governor, ..self.clone() });
                }
            }
            Governor::Asks { named } => {
                if let Some((_, lease)) = self.answer.filter(|(to, _)| *to == named) {
                    next.answer = None;
                    next.governor = next.opens(Some(lease));
                    all.push(next);
                }
                all.push(Self { governor: Governor::Withdraws { at: 0 }, ..self.clone() });
            }
            Governor::Withdraws { at } => {
                next.governor = match withdrawing.get(at) {
                    Some(step) => {
                        next.carry_out(*step, 0);
                        Governor::Withdraws { at: at + 1 }
                    }
                    None => Governor::Rests,
                };
                all.push(next);
            }
            Governor::Opens { lease, rings, mut opening } => {
                next.governor = match opening.next() {
                    Ok(step) => {
                        let stop = next.carry_out(step, 0);
                        opening.saw(stop);
                        Governor::Opens { lease, rings, opening }
                    }
                    Err(true) => Governor::Sleeps { lease, rings },
                    Err(false) => Governor::Rests,
                };
                all.push(next);
            }
            Governor::Sleeps { lease, rings } => {
                all.push(Self { governor: Governor::Closes, ..self.clone() });
                if self.bell != rings {
                    next.governor = self.opens(lease);
                    all.push(next);
                }
            }
            Governor::Closes => {
                next.carry_out(Step::Close, 0);
                next.governor = Governor::Rests;
                all.push(next);
            }
        }
        all
    }

    /// The states after the daemon's next step: ending a lease early, or granting one.
    fn decided(&self, stopping: &[Step], looks: bool) -> Vec<Self> {
        let mut next = self.clone();
        if let Some(at) = self.stopping {
            next.carry_out(stopping[at], 0);
            next.stopping = (at + 1 < stopping.len()).then_some(at + 1);
            return vec![next];
        }
        let mut all = Vec::new();
        if let Some(named) = self.asked {
            let mut next = self.clone();
            next.granted += 1;
            next.asked = None;
            next.answer = Some((named, next.granted));
            if looks {
                next.carry_out(Step::Grant, named);
            } else {
                next.carry_out(Step::Open, 0);
            }
            all.push(next);
        }
        if self.stops > 0 && self.granted > 0 {
            next.stops -= 1;
            next.stopping = Some(0);
            all.push(next);
        }
        all
    }

    /// The invariant once the daemon has done all its steps.
    fn is_right(&self) -> bool {
        match self.governor {
            _ if self.stopping.is_some() => true,
            // Without the governor, which may be late.
            Governor::Sleeps { lease, .. } if is_stopped(lease, self.stop) => !self.open,
            // No lease loses its gate by another one's end, unless the governor is about to wake.
            Governor::Sleeps { rings, .. } => self.open || self.bell != rings,
            // Nobody would watch an open gate.
            Governor::Rests => !self.open,
            // Open only for the lease whose answer the governor is about to get.
            Governor::Asks { named } => {
                !self.open
                    || self.answer.is_some_and(|(to, lease)| to == named && lease != self.stop)
            }
            Governor::Withdraws { .. } | Governor::Opens { .. } | Governor::Closes => true,
        }
    }
}

/// Visits every reachable state; returns their number, or a state that violates the invariant.
fn explore(stopping: &[Step], withdrawing: &[Step], looks: bool) -> Result<usize, World> {
    let mut known = HashSet::from([World::new()]);
    let mut ahead = VecDeque::from([World::new()]);
    while let Some(world) = ahead.pop_front() {
        if !world.is_right() {
            return Err(world);
        }
        let decided = world.decided(stopping, looks);
        for next in world.governed(withdrawing).into_iter().chain(decided) {
            if known.insert(next.clone()) {
                ahead.push_back(next);
            }
        }
    }
    Ok(known.len())
}

#[test]
fn a_lease_that_was_ended_has_no_open_gate_and_any_other_one_has() {
    assert!(explore(&STOPPING, &WITHDRAWING, true).unwrap() > 1_000);
}

/// The model discriminates: every other order of the daemon's steps fails.
#[test]
fn no_other_order_will_do() {
    use Step::{Close, Ring, StoreStop};
    for steps in [
        [StoreStop, Ring, Close],
        [Close, StoreStop, Ring],
        [Close, Ring, StoreStop],
        [Ring, StoreStop, Close],
        [Ring, Close, StoreStop],
    ] {
        assert!(explore(&steps, &WITHDRAWING, true).is_err(), "{steps:?}");
    }
}

/// A late grant would open an unwatched gate if the governor did not count, did not close, or did so in two steps, or
/// if the daemon ignored the word.
#[test]
fn no_grant_comes_after_its_ask_was_given_up() {
    use Step::{Close, Count};
    for steps in [&[Close, Count][..], &[Count], &[Close], &[]] {
        assert!(explore(&STOPPING, steps, true).is_err(), "{steps:?}");
    }
    assert!(explore(&STOPPING, &WITHDRAWING, false).is_err());
}
