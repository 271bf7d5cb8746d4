//! Each session has its share, and no more.

use limits::ComputeLimit;
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{check_windows, go_on, near, run, sparse};

#[test]
fn one_alone_gets_its_share() {
    for share in [10_000, 50_000, 100_000, 250_000, 500_000, 750_000, 900_000, 990_000] {
        let (simulation, rates) = run(&[Tenant::busy(share)], 60 * SECOND);
        assert!(rates[0].abs_diff(share.into()) < 2_000, "{share}: {rates:?}");
        check_windows(&simulation, 0, &Tenant::busy(share));
    }
}

#[test]
fn charged_is_what_was_held_by_a_lone_dense_one_and_what_was_used_by_others() {
    let (mut simulation, _) = run(&[Tenant::busy(300_000)], 20 * SECOND);
    let view = simulation.scheduler.view(simulation.now);
    let held = simulation.books[&SessionId(0)].held_between(0, simulation.now);
    assert_eq!(view.sessions[0].charged_ns, held);

    let tenants = [sparse(400_000, 300_000), Tenant::busy(500_000), Tenant::busy(300_000)];
    let (mut simulation, _) = run(&tenants, 60 * SECOND);
    let view = simulation.scheduler.view(simulation.now);
    let mut sum = 0;
    for session in view.sessions {
        let used = simulation.books[&session.session].used_ns;
        assert!(session.charged_ns.abs_diff(used) <= 30 * MS + used / 100, "{session:?}: {used}");
        sum += session.charged_ns;
    }
    assert!(sum <= simulation.now - 5 * SECOND + 30 * MS);
}

#[test]
fn two_to_sixteen_busy_tenants_over_minutes() {
    let sets: [&[u32]; 7] = [
        &[500_000, 500_000],
        &[750_000, 250_000],
        &[500_000, 300_000, 200_000],
        &[400_000, 300_000, 100_000, 50_000, 50_000],
        &[333_333; 3],
        &[125_000; 8],
        &[62_500; 16],
    ];
    for set in sets {
        let tenants: Vec<Tenant> = set.iter().map(|&share| Tenant::busy(share)).collect();
        let (simulation, rates) = run(&tenants, 180 * SECOND);
        for (index, &share) in set.iter().enumerate() {
            let off = rates[index].abs_diff(share.into());
            assert!(off * 100 <= u64::from(share), "{set:?}: {rates:?}");
            let books = &simulation.books[&SessionId(index as u64)];
            assert!(books.wait_p95() <= 120 * MS, "{set:?}, {index}: waits {}", books.wait_p95());
        }
    }
}

#[test]
fn messages_under_way_cost_everybody_alike() {
    let with_gaps = |share| Tenant { way_ns: 150_000, think_ns: 100_000, ..Tenant::busy(share) };
    let (_, rates) = run(&[with_gaps(750_000), with_gaps(250_000)], 120 * SECOND);
    let sum = rates[0] + rates[1];
    assert!(sum > 970_000, "{rates:?}");
    assert!((rates[0] * 100 / sum).abs_diff(75) <= 1, "{rates:?}");
}

#[test]
fn more_than_the_device_has_is_shared_by_weight() {
    let (_, rates) = run(&[Tenant::busy(900_000), Tenant::busy(300_000)], 120 * SECOND);
    assert!(rates[0] + rates[1] > 999_000, "{rates:?}");
    assert!(near(rates[0], 750_000, 1), "{rates:?}");
    let (_, rates) = run(&[Tenant::busy(1_000_000), Tenant::busy(1_000_000)], 60 * SECOND);
    assert!(near(rates[0], 500_000, 1), "{rates:?}");
}

#[test]
fn long_kernels_are_paid_for() {
    let long = Tenant { overrun_ns: 160 * MS, ..Tenant::busy(250_000) };
    let (_, rates) = run(&[long, Tenant::busy(750_000)], 600 * SECOND);
    assert!(rates[0].abs_diff(250_000) < 5_000, "{rates:?}");
    // While the device is overrun, the other session cannot have it. It makes up only what its
    // burst kept.
    assert!(rates[1] > 600_000, "{rates:?}");
}

#[test]
fn a_returning_session_gets_its_share_at_once_and_no_more() {
    let sometimes = Tenant { phases: (SECOND, 3 * SECOND), ..Tenant::busy(500_000) };
    let (simulation, rates) = run(&[sometimes, Tenant::busy(500_000)], 120 * SECOND);
    assert!(near(rates[0], 125_000, 2), "{rates:?}");
    assert!(rates[1] > 480_000, "{rates:?}");
    check_windows(&simulation, 0, &sometimes);
}

#[test]
fn a_new_quota_counts_within_100_ms() {
    let mut simulation = Simulation::new(&[Tenant::busy(200_000)], 1);
    simulation.run_for(5 * SECOND);
    for share in [600_000, 100_000, 900_000, 300_000] {
        simulation.set_quota(SessionId(0), ComputeLimit::fixed(share));
        simulation.run_for(100 * MS);
        let rates = go_on(&mut simulation, SECOND);
        assert!(near(rates[0], share.into(), 4), "{share}: {rates:?}");
    }
    simulation.set_quota(SessionId(0), ComputeLimit::balance(300_000, 1));
    simulation.run_for(100 * MS);
    assert!(go_on(&mut simulation, SECOND)[0] > 990_000);
    simulation.set_quota(SessionId(0), ComputeLimit::fixed(300_000));
    simulation.run_for(100 * MS);
    let rates = go_on(&mut simulation, SECOND);
    assert!(near(rates[0], 300_000, 4), "{rates:?}");
}
