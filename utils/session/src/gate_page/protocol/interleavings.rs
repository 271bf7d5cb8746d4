//! All executions of the protocol: the governor's and the daemon's steps in any order. The
//! decisions are those of the module above. The rest is a model: the words, a governor that sleeps
//! on the bell, and a daemon that grants leases and ends them early.

use super::{Opening, STOPPING, Step, is_stopped};
use std::collections::{HashSet, VecDeque};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Governor {
    /// Has no lease, and its gate is closed.
    Rests,
    /// Has seen the bell, and opens.
    Opens { lease: Option<u64>, rings: u8, opening: Opening },
    /// Sleeps until the bell shows something else.
    Sleeps { lease: Option<u64>, rings: u8 },
    /// Its lease has ended; it closes the gate.
    Closes,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    open: bool,
    stop: u64,
    bell: u8,
    governor: Governor,
    /// The last lease that was granted.
    granted: u64,
    /// The daemon's next step in ending `granted` early.
    stopping: Option<usize>,
    /// How often the daemon may still end a lease early, and the governor take one of its own.
    stops: u8,
    own: u8,
}

impl World {
    const MOST_GRANTS: u64 = 3;

    fn new() -> Self {
        Self {
            open: false,
            stop: 0,
            bell: 0,
            governor: Governor::Rests,
            granted: 0,
            stopping: None,
            stops: 3,
            own: 2,
        }
    }

    /// Carries out one step; returns what it has read.
    fn carry_out(&mut self, step: Step) -> u64 {
        match step {
            Step::Open => self.open = true,
            Step::Close => self.open = false,
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
    fn governed(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut next = self.clone();
        match self.governor.clone() {
            Governor::Rests => {
                // The daemon grants nothing while it ends a lease.
                if self.stopping.is_none() && self.granted < Self::MOST_GRANTS {
                    next.granted += 1;
                    next.governor = self.opens(Some(next.granted));
                    all.push(next);
                }
                if self.own > 0 {
                    let governor = self.opens(None);
                    all.push(Self { own: self.own - 1, governor, ..self.clone() });
                }
            }
            Governor::Opens { lease, rings, mut opening } => {
                next.governor = match opening.next() {
                    Ok(step) => {
                        let stop = next.carry_out(step);
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
                next.carry_out(Step::Close);
                next.governor = Governor::Rests;
                all.push(next);
            }
        }
        all
    }

    /// The state after the daemon's next step.
    fn stopped(&self, steps: &[Step]) -> Option<Self> {
        let mut next = self.clone();
        match self.stopping {
            Some(at) => {
                next.carry_out(steps[at]);
                next.stopping = (at + 1 < steps.len()).then_some(at + 1);
            }
            None if self.stops > 0 && self.granted > 0 => {
                next.stops -= 1;
                next.stopping = Some(0);
            }
            None => return None,
        }
        Some(next)
    }

    /// What must hold once the daemon has done all its steps.
    fn is_right(&self) -> bool {
        match self.governor {
            _ if self.stopping.is_some() => true,
            // Without the governor's help: it may be late.
            Governor::Sleeps { lease, .. } if is_stopped(lease, self.stop) => !self.open,
            // No lease loses its gate for another one's end, or the governor is on its way.
            Governor::Sleeps { rings, .. } => self.open || self.bell != rings,
            Governor::Rests => !self.open,
            Governor::Opens { .. } | Governor::Closes => true,
        }
    }
}

/// Visits every reachable state, and returns their number, or one that is not right.
fn explore(steps: &[Step]) -> Result<usize, World> {
    let mut known = HashSet::from([World::new()]);
    let mut ahead = VecDeque::from([World::new()]);
    while let Some(world) = ahead.pop_front() {
        if !world.is_right() {
            return Err(world);
        }
        for next in world.governed().into_iter().chain(world.stopped(steps)) {
            if known.insert(next.clone()) {
                ahead.push_back(next);
            }
        }
    }
    Ok(known.len())
}

#[test]
fn a_lease_that_was_ended_has_no_open_gate_and_any_other_one_has() {
    assert!(explore(&STOPPING).unwrap() > 1_000);
}

/// The model can tell: each other order of the daemon's steps fails.
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
        assert!(explore(&steps).is_err(), "{steps:?}");
    }
}
