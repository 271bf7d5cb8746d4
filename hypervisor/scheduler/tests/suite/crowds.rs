//! Several workers that take turns: how long each waits, and how soon it is found that they are
//! dense.

use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{go_on, near, run, sparse};

/// A program's first second is not typical: it loads and warms up.
#[test]
fn those_that_begin_to_fill_the_device_together_are_known_within_seconds() {
    // In the last two sets, the tenants have slowed each other down for a while before they change,
    // which hides the change.
    let sets: [(&[u32], u64, u64, u64); 5] = [
        (&[125_000; 8], 100_000, 3_000 * MS, 4 * SECOND),
        (&[500_000; 2], 600_000, 300 * MS, 4 * SECOND),
        (&[500_000; 2], 400_000, 5_000 * MS, 4 * SECOND),
        (&[125_000; 8], 600_000, 1_000 * MS, 12 * SECOND),
        (&[500_000, 300_000, 200_000], 500_000, 20_000 * MS, 20 * SECOND),
    ];
    for (shares, before_ppm, after, within) in sets {
        let tenants: Vec<Tenant> = shares.iter().map(|&share| sparse(share, before_ppm)).collect();
        let mut simulation = Simulation::new(&tenants, 3);
        simulation.run_for(after);
        for session in 0..shares.len() as u64 {
            simulation.set_density(SessionId(session), 1_000_000);
        }
        simulation.run_for(within);
        let (from, worked) = (simulation.now, simulation.worked_ns());
        let rates = go_on(&mut simulation, 3 * SECOND);
        let worked = (simulation.worked_ns() - worked) * 1000 / (simulation.now - from);
        assert!(worked >= 970, "{worked} thousandths used of the device: {shares:?}, {rates:?}");
        for (&rate, &share) in rates.iter().zip(shares) {
            assert!(near(rate, share.into(), 2), "{rates:?}: {shares:?}");
        }
    }
}

/// The tenants load, warm up and wait, each at its own time. Then they fill the device.
#[test]
fn those_that_start_one_after_the_other_are_known_soon() {
    for (count, share, seed) in [(8, 125_000, 1), (8, 125_000, 2), (3, 300_000, 3), (2, 500_000, 4)]
    {
        let mut simulation = Simulation::empty(seed);
        let mut sessions = Vec::new();
        for _ in 0..count {
            let tenant = Tenant { way_ns: MS / 5, overrun_ns: MS / 2, ..sparse(share, 50_000) };
            sessions.push(simulation.arrive(tenant));
            let pause = simulation.up_to(60 * MS);
            simulation.run_for(pause);
        }
        for density in [550_000, 700_000, 600_000] {
            for &session in &sessions {
                let pause = simulation.up_to(15 * MS);
                simulation.run_for(pause);
                simulation.set_density(session, density);
            }
        }
        for &session in &sessions {
            simulation.set_density(session, 1_000_000);
        }
        simulation.run_for(1_500 * MS);
        let (from, worked) = (simulation.now, simulation.worked_ns());
        let rates = go_on(&mut simulation, 2 * SECOND);
        let worked = (simulation.worked_ns() - worked) * 1000 / (simulation.now - from);
        assert!(worked >= 900 * count * u64::from(share) / 1_000_000, "{worked}: {rates:?}");
    }
}

/// Kernels take some milliseconds, and the last one launched runs on when a turn ends. Turns are
/// shorter by as much.
#[test]
fn what_runs_past_each_turn_does_not_make_others_wait() {
    let sets: [(&[u32], u64); 3] = [
        (&[125_000; 8], 4 * MS),
        (&[300_000, 200_000, 150_000, 100_000, 100_000, 50_000, 50_000, 50_000], 4 * MS),
        (&[333_333; 3], 10 * MS),
    ];
    for (set, overrun_ns) in sets {
        let busy = |&share: &u32| Tenant { overrun_ns, ..Tenant::busy(share) };
        let tenants: Vec<Tenant> = set.iter().map(busy).collect();
        let (simulation, rates) = run(&tenants, 60 * SECOND);
        for (index, &share) in set.iter().enumerate() {
            assert!(near(rates[index], share.into(), 1), "{set:?}: {rates:?}");
            let wait = simulation.books[&SessionId(index as u64)].wait_p95();
            // With the smallest share, a turn is hardly longer than the work that runs past it.
            let most = if share < 100_000 { 130 } else { 105 };
            assert!(wait <= most * MS, "{set:?}, {index}: waits {wait}");
        }
    }
}

/// All shares together are the whole device, and handovers take time, so a round is longer than a
/// period. No tenant waits for more than one round.
#[test]
fn in_a_crowd_nobody_waits_for_more_than_a_round() {
    let sets: [&[u32]; 4] = [
        &[125_000; 8],
        &[300_000, 200_000, 150_000, 100_000, 100_000, 50_000, 50_000, 50_000],
        &[500_000, 300_000, 200_000],
        &[750_000, 250_000],
    ];
    for (set, overrun_ns) in sets.iter().flat_map(|set| [(set, MS * 2 / 5), (set, MS * 5 / 2)]) {
        let busy = |&share: &u32| Tenant { overrun_ns, way_ns: 400_000, ..Tenant::busy(share) };
        let tenants: Vec<Tenant> = set.iter().map(busy).collect();
        let (simulation, rates) = run(&tenants, 60 * SECOND);
        for (index, &share) in set.iter().enumerate() {
            assert!(near(rates[index], share.into(), 1), "{set:?}: {rates:?}");
            let wait = simulation.books[&SessionId(index as u64)].wait_p95();
            assert!(wait <= 106 * MS, "{set:?}, {index}, overrun {overrun_ns}: waits {wait}");
        }
    }
}

/// It holds for any length of earlier use and for any speed at which the share was used.
#[test]
fn whoever_comes_to_take_turns_waits_behind_nobody_and_keeps_nobody_waiting() {
    let mut simulation = Simulation::new(&[Tenant::busy(1_000_000)], 9);
    simulation.run_for(60 * SECOND);
    simulation.arrive(Tenant::busy(1_000_000));
    simulation.run_for(SECOND);
    let rates = go_on(&mut simulation, 3 * SECOND);
    assert!(near(rates[0], 500_000, 2) && near(rates[1], 500_000, 2), "{rates:?}");

    // Two tenants that want more than there is use their shares more slowly than a sparse one does.
    let tenants = [Tenant::busy(900_000), Tenant::busy(900_000), sparse(200_000, 200_000)];
    let mut simulation = Simulation::new(&tenants, 9);
    simulation.run_for(120 * SECOND);
    simulation.set_density(SessionId(2), 1_000_000);
    simulation.run_for(2 * SECOND);
    let rates = go_on(&mut simulation, 3 * SECOND);
    assert!(near(rates[2], 100_000, 2), "{rates:?}");
}
