//! Dense and sparse tenants: who holds beside whom, and how their class is found out.

use limits::ComputeLimit;
use scheduler::{Class, SessionId};

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{balance, go_on, near, run, sparse};

#[test]
fn alone_or_sparse_together_nobody_has_to_stop() {
    let lone = [Tenant::busy(1_000_000)];
    let pair = [sparse(500_000, 470_000), sparse(500_000, 450_000)];
    let saturated =
        [600_000, 550_000].map(|density| Tenant::new(ComputeLimit::fixed(1_000_000), density));
    let four = [100_000; 4].map(|density| sparse(250_000, density));
    for tenants in [&lone[..], &pair, &saturated, &four] {
        let mut simulation = Simulation::new(tenants, 1);
        simulation.run_for(2 * SECOND);
        let stops = |simulation: &Simulation| -> Vec<u64> {
            simulation.books.values().map(|books| books.stops).collect()
        };
        let before = stops(&simulation);
        let rates = go_on(&mut simulation, 60 * SECOND);
        let stopped: u64 =
            stops(&simulation).iter().zip(before).map(|(after, before)| after - before).sum();
        // If the device is saturated, each tenant is probed now and then.
        assert!(stopped <= if tenants.len() == 2 { 60 } else { 0 }, "{stopped} stops: {tenants:?}");
        let sum: u64 = rates.iter().sum();
        let wanted: u64 = tenants.iter().map(|tenant| tenant.density_ppm).sum();
        // To try both ways costs a hundredth.
        assert!(sum * 100 >= wanted.min(980_000) * 97, "{rates:?}: {tenants:?}");
    }
}

/// Reports about time beside others are imprecise. Tenants are classified correctly all the same,
/// and what their turns have shown is not forgotten.
#[test]
fn rough_words_do_not_make_dense_ones_look_sparse() {
    for seed in 1..=8 {
        let share = 1_000_000 / 8;
        let rough =
            Tenant { rough: true, way_ns: MS / 5, overrun_ns: MS / 2, ..sparse(share, 100_000) };
        let mut simulation = Simulation::empty(seed);
        for session in 0..8 {
            simulation.arrive(rough);
            let pause = simulation.up_to(60 * MS);
            simulation.run_for(pause);
            simulation.set_density(SessionId(session), 1_000_000);
        }
        simulation.run_for(4 * SECOND);
        let (from, worked) = (simulation.now, simulation.worked_ns());
        simulation.run_for(10 * SECOND);
        let worked = (simulation.worked_ns() - worked) * 1000 / (simulation.now - from);
        assert!(worked >= 980, "{worked} thousandths used of the device, seed {seed}");
    }
}

#[test]
fn rough_words_do_not_make_sparse_ones_look_dense() {
    for (seed, density) in [(1, 250_000), (2, 400_000), (3, 400_000), (4, 450_000)] {
        let rough = Tenant { rough: true, way_ns: MS / 5, ..sparse(500_000, density) };
        let (_, rates) =
            run(&[rough, Tenant { density_ppm: density + seed, ..rough }], 60 * SECOND);
        let sum = rates[0] + rates[1];
        assert!(sum * 100 >= (2 * density).min(980_000) * 98, "{rates:?} of two times {density}");
    }
}

/// What slicing gives a launch-bound tenant and one that fills the device, as on H200s: the first
/// gets 0.7 or 0.6 of its speed, the second 0.7 of the device.
#[test]
fn each_gets_its_guarantee_where_slicing_does_not_leave_it() {
    for (density, sliced, cost) in [(290_000, 700_000, 1_250_000), (200_000, 600_000, 2_080_000)] {
        let pairs: [(u32, u32); 3] = [(750_000, 250_000), (250_000, 750_000), (500_000, 500_000)];
        for (dense, sparse_one) in pairs {
            let decode = Tenant { density_ppm: density, ..balance(sparse_one, 1) };
            let mut simulation = Simulation::new(&[balance(dense, 1), decode], 5);
            simulation.sparse_cost_ppm = cost;
            simulation.sliced_ppm = sliced;
            simulation.run_for(2 * SECOND);
            let rates = go_on(&mut simulation, 10 * SECOND);
            let of_alone = rates[1] * 1_000_000 / density;
            assert!(rates[0] + 10_000 >= dense.into(), "{rates:?}, dense {dense}");
            assert!(of_alone + 10_000 >= sparse_one.into(), "{of_alone}, sparse {sparse_one}");
        }
    }
}

#[test]
fn sparse_beside_dense_keeps_its_pace() {
    // What the simulation's slicing alone would give the two: 0.5 and 0.45.
    let (_, rates) = run(&[sparse(500_000, 500_000), Tenant::busy(500_000)], 120 * SECOND);
    assert!(rates[0] >= 425_000, "{rates:?}");
    assert!(rates[1] >= 440_000, "{rates:?}");
    for (share, other) in [(250_000, 750_000), (750_000, 250_000)] {
        let (_, rates) = run(&[sparse(share, 500_000), Tenant::busy(other)], 120 * SECOND);
        assert!(rates[0] + 20_000 >= u64::from(share.min(480_000)), "{share}: {rates:?}");
        assert!(rates[1] + 40_000 >= u64::from(other), "{share}: {rates:?}");
    }
}

/// As on an H200: a sparse tenant that needs a quarter of the device takes two fifths of it from a
/// dense one.
#[test]
fn where_slicing_is_dear_it_is_left_alone_as_long_as_both_get_their_share() {
    let together = |share: u32, policy: fn(u32) -> ComputeLimit| {
        let tenants = [(share, 250_000), (1_000_000 - share, 1_000_000)];
        let tenants = tenants.map(|(share, density)| Tenant::new(policy(share), density));
        let mut simulation = Simulation::new(&tenants, 5);
        simulation.sparse_cost_ppm = 1_500_000;
        go_on(&mut simulation, 10 * SECOND);
        go_on(&mut simulation, 120 * SECOND)
    };
    let balance = |share| ComputeLimit::balance(share, 1);
    // What slicing alone gives: 0.25 and 0.575.
    let rates = together(500_000, balance);
    assert!(near(rates[0], 250_000, 1) && near(rates[1], 575_000, 2), "{rates:?}");
    // The dense tenant gets its share, and the sparse one the same part of its solo speed.
    let rates = together(250_000, balance);
    assert!(rates[0] >= 250_000 / 4 && rates[1] >= 730_000, "{rates:?}");
    let rates = together(250_000, ComputeLimit::fixed);
    assert!(rates[0] >= 250_000 / 4 && rates[1] >= 730_000, "{rates:?}");
    let rates = together(750_000, balance);
    assert!(near(rates[0], 250_000, 1) && rates[1] >= 550_000, "{rates:?}");
}

#[test]
fn density_adapts_within_a_second() {
    let class = |simulation: &mut Simulation, session: u64| {
        simulation.scheduler.view(simulation.now).sessions[session as usize].class
    };
    let tenants = [
        Tenant::new(ComputeLimit::fixed(500_000), 400_000),
        Tenant::new(ComputeLimit::fixed(400_000), 1_000_000),
    ];
    let mut simulation = Simulation::new(&tenants, 3);
    simulation.run_for(30 * SECOND);
    assert_eq!(class(&mut simulation, 0), Class::Sparse);
    assert_eq!(class(&mut simulation, 1), Class::Dense);
    // Beside a dense tenant the change cannot be seen, so the tenant is probed.
    simulation.set_density(SessionId(0), 1_000_000);
    simulation.run_for(1_200 * MS);
    assert_eq!(class(&mut simulation, 0), Class::Dense);
    simulation.set_density(SessionId(0), 300_000);
    simulation.run_for(SECOND);
    assert_eq!(class(&mut simulation, 0), Class::Sparse);
    // Alone.
    let mut simulation = Simulation::new(&tenants[..1], 3);
    simulation.run_for(30 * SECOND);
    simulation.set_density(SessionId(0), 1_000_000);
    simulation.run_for(SECOND);
    assert_eq!(class(&mut simulation, 0), Class::Dense);
}

#[test]
fn probes_cost_little() {
    let tenants = [Tenant::new(ComputeLimit::fixed(1_000_000), 570_000); 2];
    let (simulation, rates) = run(&tenants, 120 * SECOND);
    let sum = rates[0] + rates[1];
    // The hardware's slicing alone would give 0.98 of the device.
    assert!(sum * 100 >= 980_000 * 96, "{rates:?}");
    assert!(simulation.books[&SessionId(0)].wait_p95() <= 120 * MS);
    let crowd = vec![Tenant::new(ComputeLimit::fixed(1_000_000), 400_000); 8];
    let (_, rates) = run(&crowd, 60 * SECOND);
    let sum: u64 = rates.iter().sum();
    assert!(sum > 930_000, "{rates:?}");
    assert!(rates.iter().all(|&rate| near(rate, sum / 8, 2)), "{rates:?}");
}
