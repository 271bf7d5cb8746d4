//! Owners that are guaranteed more than the device has.

use limits::ComputeLimit;
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{balance, go_on, near, sparse};

/// Tenants with their owners, after they have run for a while: what each gets, in millionths.
fn rates(tenants: &[(u64, Tenant)]) -> (Simulation, Vec<u64>) {
    let mut simulation = Simulation::empty(5);
    for &(owner, tenant) in tenants {
        let session = simulation.arrive(tenant);
        simulation.scheduler.belongs_to(session, owner, simulation.now);
    }
    simulation.run_for(3 * SECOND);
    let rates = go_on(&mut simulation, 10 * SECOND);
    (simulation, rates)
}

#[test]
fn who_says_more_takes_nothing_from_who_says_less() {
    for count in [1, 2, 20] {
        for greedy in [Tenant::busy(1_000_000), balance(1_000_000, 10_000)] {
            let mut tenants = vec![(1, Tenant::busy(500_000))];
            tenants.extend((0..count).map(|_| (2, greedy)));
            let (simulation, rates) = rates(&tenants);
            assert!(near(rates[0], 500_000, 3), "{rates:?}");
            let longest = simulation.books[&SessionId(0)].waits.iter().max();
            assert!(longest.is_some_and(|&wait| wait < 400 * MS), "{longest:?} beside {count}");
        }
    }
}

#[test]
fn equal_parts_where_all_want_more() {
    let shares = [(1, 900_000), (2, 600_000), (3, 100_000)];
    let (_, rates) = rates(&shares.map(|(owner, share)| (owner, Tenant::busy(share))));
    for (rate, wanted) in rates.iter().zip([450_000, 450_000, 100_000]) {
        assert!(near(*rate, wanted, 3), "{rates:?}");
    }
}

/// Sessions that say much and do little take no turns, and nothing from their owner's others.
#[test]
fn who_is_idle_counts_for_nothing() {
    let with_owners = |owners: [u64; 2]| {
        let [one, other] = owners;
        let idle = sparse(1_000_000, 1);
        let mut tenants = vec![(one, Tenant::busy(300_000)), (other, Tenant::busy(700_000))];
        tenants.extend((0..10).map(|_| (other, idle)));
        rates(&tenants).1
    };
    let (of_one, of_two) = (with_owners([1, 1]), with_owners([1, 2]));
    for (mine, wanted) in of_two.iter().zip(&of_one) {
        assert!(near(*mine, *wanted, 1), "{of_two:?}, of one owner {of_one:?}");
    }
}

/// One owner divides the device by the shares, as before.
#[test]
fn within_an_owner_shares_stay_in_proportion() {
    let shares = [800_000, 400_000];
    let (_, rates) = rates(&shares.map(|share| (7, Tenant::busy(share))));
    assert!(near(rates[0], 666_667, 3) && near(rates[1], 333_333, 3), "{rates:?}");
    let quota = ComputeLimit::fixed(800_000);
    assert_eq!(Tenant::busy(800_000).quota, quota);
}
