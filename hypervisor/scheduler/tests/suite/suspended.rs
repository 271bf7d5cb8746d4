//! Devices on which nothing is granted for a while.

use limits::{ComputeLimit, Policy};
use proptest::prelude::*;
use scheduler::SessionId;

use crate::any_tenants::any_tenant;
use crate::simulation::node::{Node, near, player};
use crate::simulation::{MS, SECOND, Simulation, Tenant};

fn grants(simulation: &Simulation) -> usize {
    simulation.books.values().map(|book| book.waits.len()).sum()
}

fn set_suspended(simulation: &mut Simulation, suspended: bool) {
    if suspended {
        simulation.scheduler.suspend(simulation.now);
    } else {
        simulation.scheduler.resume(simulation.now);
    }
    simulation.decide();
}

#[test]
fn a_lease_in_the_stream_ends_at_once() {
    let quota = ComputeLimit { policy: Policy::Balance, ..ComputeLimit::fixed(500_000) };
    let mut simulation = Simulation::new(&[Tenant::new(quota, 1_000_000).in_stream()], 1);
    simulation.run_for(SECOND);
    while !simulation.scheduler.is_held_by(SessionId(0)) {
        simulation.run_for(MS);
    }
    set_suspended(&mut simulation, true);
    simulation.run_for(2 * MS);
    assert!(!simulation.scheduler.is_held_by(SessionId(0)));
}

/// A gang that lacks one of its devices holds none of the others, and keeps nobody off them.
#[test]
fn a_gang_waits_for_a_device_that_is_suspended() {
    let mut node = Node::new(&[player(&[0, 1], 500_000), player(&[0], 500_000)], true);
    near(&node.rates(5 * SECOND), &[500_000; 2], 5);
    let now = node.now;
    node.schedulers.get_mut(&1).unwrap().suspend(now);
    node.rates(200 * MS);
    near(&node.rates(5 * SECOND), &[0, 500_000], 2);
    let now = node.now;
    node.schedulers.get_mut(&1).unwrap().resume(now);
    node.rates(SECOND);
    near(&node.rates(5 * SECOND), &[500_000; 2], 5);
}

proptest! {
    /// Whoever the tenants are: nothing is granted until the device goes on, and then nobody has savings.
    #[test]
    fn nothing_is_granted_on_a_suspended_device(
        tenants in prop::collection::vec(any_tenant(), 1..6),
        seed in any::<u64>(),
        (before, length) in (0..3 * SECOND, 1..3 * SECOND),
    ) {
        let mut simulation = Simulation::new(&tenants, seed);
        simulation.run_for(before);
        set_suspended(&mut simulation, true);
        let granted = grants(&simulation);
        simulation.run_for(length);
        prop_assert_eq!(grants(&simulation), granted);
        simulation.scheduler.resume(simulation.now);
        let now = simulation.now;
        for session in simulation.scheduler.view(now).sessions {
            prop_assert!(session.balance_ns <= 0, "{session:?}");
        }
        simulation.decide();
        // Whoever has a small share, and ran far past its last lease, earns that first.
        for _ in 0..40 {
            if grants(&simulation) == granted {
                simulation.run_for(3 * SECOND);
            }
        }
        prop_assert!(grants(&simulation) > granted || simulation.books.is_empty());
    }
}
