//! Tenants whose gates are in their streams: short turns, and holders that can be stopped.

use limits::{ComputeLimit, Priority};
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{balance, go_on, near};

const LENGTH: u64 = 60 * SECOND;

/// The 95th or another percentile, in nanoseconds.
fn percentile(list: &[u64], percent: usize) -> u64 {
    let mut list = list.to_vec();
    list.sort_unstable();
    list.get(list.len() * percent / 100).copied().unwrap_or(0)
}

/// Runs tenants with gates in their streams, and forgets what was recorded before they are known.
fn run(tenants: &[Tenant]) -> (Simulation, Vec<u64>) {
    let tenants: Vec<Tenant> = tenants.iter().map(|tenant| tenant.in_stream()).collect();
    let mut simulation = Simulation::new(&tenants, 7);
    simulation.run_for(3 * SECOND);
    for books in simulation.books.values_mut() {
        (books.waits, books.latencies, books.stopped) = (Vec::new(), Vec::new(), 0);
    }
    let rates = go_on(&mut simulation, LENGTH);
    (simulation, rates)
}

fn waits(simulation: &Simulation, session: u64) -> &[u64] {
    &simulation.books[&SessionId(session)].waits
}

/// A tenant that needs a tenth of the device, in requests of 4 ms at random times.
fn server(quota: ComputeLimit) -> Tenant {
    Tenant::new(quota, 1_000_000).serves(50 * MS, 4 * MS)
}

#[test]
fn turns_are_short_and_shares_exact() {
    for first in [500_000, 250_000, 750_000, 100_000] {
        let tenants = [first, 1_000_000 - first].map(|share| Tenant::busy(share).in_stream());
        let mut simulation = Simulation::new(&tenants, 7);
        simulation.run_for(2 * SECOND);
        for books in simulation.books.values_mut() {
            books.waits = Vec::new();
        }
        let mut sums = [0, 0];
        for second in 0..60 {
            let rates = go_on(&mut simulation, SECOND);
            let sum = rates[0] + rates[1];
            assert!(sum >= 980_000, "{rates:?}, second {second}");
            assert!(near(rates[0], first.into(), 2), "{rates:?}, second {second}");
            assert!(near(rates[1], u64::from(1_000_000 - first), 2), "{rates:?}, second {second}");
            sums[0] += rates[0];
            sums[1] += rates[1];
        }
        let part = sums[0] * 1_000_000 / (sums[0] + sums[1]);
        assert!(near(part, first.into(), 1), "{part} of {first}");
        for session in 0..2 {
            let wait = percentile(waits(&simulation, session), 95);
            assert!(wait <= 12 * MS, "{first}, {session}: waits {wait}");
        }
    }
}

/// The sum stays what it is for two: a round is longer, the more take turns.
#[test]
fn a_crowd_has_longer_rounds() {
    for count in [3, 8, 16] {
        let (simulation, rates) = run(&vec![Tenant::busy(1_000_000 / count); count as usize]);
        assert!(rates.iter().sum::<u64>() >= 980_000, "{rates:?}");
        assert!(rates.iter().all(|&rate| near(rate, u64::from(1_000_000 / count), 1)), "{rates:?}");
        let wait = percentile(waits(&simulation, 0), 95);
        assert!(wait <= u64::from(count) * 6 * MS, "{count}: waits {wait}");
    }
}

/// One that cannot be stopped keeps turns as long as they were.
#[test]
fn one_with_gates_on_its_threads_makes_turns_long() {
    let other = Tenant { way_ns: 100_000, ..Tenant::busy(500_000) };
    let mut simulation = Simulation::new(&[Tenant::busy(500_000).in_stream(), other], 7);
    simulation.run_for(2 * SECOND);
    let rates = go_on(&mut simulation, 20 * SECOND);
    assert!(near(rates[0], 500_000, 1) && near(rates[1], 500_000, 1), "{rates:?}");
    assert!(percentile(waits(&simulation, 0), 50) >= 20 * MS);
}

#[test]
fn a_preferred_server_waits_for_what_runs_and_training_keeps_the_rest() {
    let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::balance(500_000, 1) };
    for (share, overrun_ns) in [(500_000, 0), (500_000, MS), (200_000, MS), (900_000, MS)] {
        let training = Tenant { overrun_ns, ..Tenant::new(low, 1_000_000) };
        let (simulation, rates) = run(&[server(ComputeLimit::balance(share, 1)), training]);
        let left = 1_000_000 - rates[0];
        assert!(rates[0] >= 70_000, "{rates:?}");
        assert!(rates[1] >= left / 100 * 90, "{rates:?}");
        let wait = percentile(waits(&simulation, 0), 99);
        // One that has used up what it had waits for a short turn of the low one's floor.
        let most = if share < 500_000 { 2 * MS } else { 3 * MS / 2 };
        assert!(wait <= most, "{share}, {overrun_ns}: waits {wait}");
    }
}

#[test]
fn a_server_that_uses_less_than_its_share_goes_first_when_it_wakes() {
    let (simulation, rates) =
        run(&[server(ComputeLimit::balance(500_000, 1)), balance(500_000, 1)]);
    assert!(rates[1] >= 850_000, "{rates:?}");
    let wait = percentile(waits(&simulation, 0), 99);
    assert!(wait <= 8 * MS, "waits {wait}");
}

/// A decode loop: 0.8 ms of work, then 50 us of nothing.
#[test]
fn a_decode_loop_keeps_its_pace_beside_a_dense_one() {
    let alone = 800_000 * 1_000 / 850;
    for quota in [ComputeLimit::fixed(500_000), ComputeLimit::balance(500_000, 1)] {
        let (simulation, rates) = run(&[Tenant::new(quota, alone), Tenant::new(quota, 1_000_000)]);
        assert!(rates[0] >= alone / 100 * 48 && rates[1] >= 480_000, "{rates:?}");
        let wait = percentile(waits(&simulation, 0), 99);
        assert!(wait <= 6 * MS, "waits {wait}");
    }
}

/// A greedy session of high priority leaves a low one its floor.
#[test]
fn a_low_one_has_its_floor_beside_a_greedy_high_one() {
    for (share, floor) in [(300_000, 100_000), (20_000, 20_000)] {
        let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::balance(share, 9) };
        let (_, rates) = run(&[balance(300_000, 1), Tenant::new(low, 1_000_000)]);
        assert!(near(rates[1], floor, 1) && rates[0] >= 970_000 - floor, "{share}: {rates:?}");
    }
}

/// The device is handed over as soon as a turn is done, to whoever asks then: turns have to be as long as weights say.
#[test]
fn spare_time_goes_by_weight() {
    for (weights, expected) in [([9, 3], 700_000), ([1, 3], 300_000), ([10, 2], 766_667)] {
        let tenants = weights.map(|weight| balance(100_000, weight));
        let (_, rates) = run(&tenants);
        assert!(near(rates[0], expected, 3), "{rates:?} for {weights:?}");
        assert!(rates[0] + rates[1] >= 970_000, "{rates:?} for {weights:?}");
    }
    let (_, rates) = run(&[1, 2, 3].map(|weight| balance(100_000, weight)));
    for (index, expected) in [216_000, 333_000, 450_000].into_iter().enumerate() {
        assert!(near(rates[index], expected, 3), "{rates:?}");
    }
}
