//! Idle time: weights, ceilings, priorities.

use limits::ComputeLimit;
use limits::Priority;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{balance, go_on, near, run};

#[test]
fn idle_time_goes_to_balance_by_weight() {
    let (_, rates) = run(&[balance(300_000, 1), balance(300_000, 3)], 60 * SECOND);
    assert!(near(rates[0], 400_000, 1) && near(rates[1], 600_000, 1), "{rates:?}");
    let (_, rates) = run(&[balance(200_000, 1)], 20 * SECOND);
    assert!(rates[0] > 999_000, "{rates:?}");
    // A session with a fixed share has that share and no more.
    let (_, rates) = run(&[Tenant::busy(400_000), balance(100_000, 1)], 60 * SECOND);
    assert!(near(rates[0], 400_000, 1) && near(rates[1], 600_000, 1), "{rates:?}");
    let set = [balance(50_000, 5), balance(50_000, 3), balance(50_000, 2)];
    let (_, rates) = run(&set, 60 * SECOND);
    for (rate, wanted) in rates.iter().zip([475_000, 305_000, 220_000]) {
        assert!(near(*rate, wanted, 2), "{rates:?}");
    }
}

#[test]
fn a_guaranteed_share_is_reached_within_200_ms() {
    for density in [1_000_000, 950_000, 600_000] {
        let greedy = Tenant::new(ComputeLimit::balance(100_000, 10), density);
        let tenants = [greedy, greedy, balance(500_000, 1)];
        let sleeper = Tenant { phases: (SECOND, SECOND), ..tenants[2] };
        let mut simulation = Simulation::new(&[tenants[0], tenants[1], sleeper], 5);
        // Its utilization has to be known.
        simulation.run_for(7 * SECOND);
        for _ in 0..20 {
            // From the moment it wakes: 200 ms to reach its share, then its share of the next 200
            // ms.
            simulation.run_for(200 * MS);
            let rates = go_on(&mut simulation, 200 * MS);
            assert!(rates[2] >= 420_000, "{density}: {rates:?}");
            simulation.run_for(1_600 * MS);
        }
    }
}

#[test]
fn soft_ceilings_hold() {
    let soft = |share, soft, density| {
        let quota = ComputeLimit { soft_ppm: Some(soft), ..ComputeLimit::balance(share, 1) };
        Tenant::new(quota, density)
    };
    let (_, rates) = run(&[soft(200_000, 500_000, 1_000_000)], 60 * SECOND);
    assert!(near(rates[0], 500_000, 1), "{rates:?}");
    let tenants = [soft(200_000, 300_000, 1_000_000), soft(100_000, 250_000, 700_000)];
    let (_, rates) = run(&tenants, 60 * SECOND);
    assert!(near(rates[0], 300_000, 1) && near(rates[1], 250_000, 1), "{rates:?}");
    // A ceiling below the share has no effect.
    let (_, rates) = run(&[soft(400_000, 100_000, 1_000_000)], 60 * SECOND);
    assert!(near(rates[0], 400_000, 1), "{rates:?}");
}

#[test]
fn low_priority_gets_its_floor_and_what_high_leaves() {
    let low = |quota: ComputeLimit| {
        Tenant::new(ComputeLimit { priority: Priority::Low, ..quota }, 1_000_000)
    };
    let greedy = balance(300_000, 1);
    for (share, floor) in [(300_000, 100_000), (100_000, 100_000), (20_000, 20_000)] {
        let (_, rates) = run(&[greedy, low(ComputeLimit::balance(share, 9))], 60 * SECOND);
        assert!(near(rates[1], floor, 1) && rates[0] > 980_000 - floor, "{share}: {rates:?}");
    }
    let (_, rates) = run(&[low(ComputeLimit::fixed(300_000))], 60 * SECOND);
    assert!(near(rates[0], 300_000, 1), "{rates:?}");
    let (_, rates) =
        run(&[Tenant::busy(500_000), low(ComputeLimit::balance(20_000, 1))], 60 * SECOND);
    assert!(near(rates[0], 500_000, 1) && near(rates[1], 500_000, 2), "{rates:?}");
    let sometimes = Tenant { phases: (SECOND, SECOND), ..greedy };
    let (_, rates) = run(&[sometimes, low(ComputeLimit::balance(100_000, 1))], 60 * SECOND);
    assert!(near(rates[1], 525_000, 3), "{rates:?}");
}
