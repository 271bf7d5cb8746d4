//! Several processes of one session.

use limits::ComputeLimit;
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{near, run, sparse};

#[test]
fn dense_processes_of_one_session_take_turns() {
    let many = Tenant { workers: 5, think_ns: MS, overrun_ns: 2 * MS, ..Tenant::busy(500_000) };
    let (simulation, rates) = run(&[many, Tenant::busy(500_000)], 120 * SECOND);
    assert!(near(rates[0], 500_000, 2) && near(rates[1], 500_000, 2), "{rates:?}");
    assert!(simulation.books[&SessionId(1)].wait_p95() <= 120 * MS);
    // All of them wait equally long: the one that was served least recently is next.
    let mut waits = simulation.books[&SessionId(0)].waits.clone();
    waits.sort_unstable();
    assert!(waits.last().is_some_and(|&longest| longest < SECOND), "{:?}", waits.last());
    let (_, rates) = run(&[Tenant { workers: 3, ..Tenant::busy(1_000_000) }], 20 * SECOND);
    assert!(rates[0] > 999_000, "{rates:?}");
}

#[test]
fn sparse_processes_of_one_session_hold_together() {
    let many = Tenant { workers: 4, ..sparse(500_000, 120_000) };
    let (simulation, rates) = run(&[many], 60 * SECOND);
    assert!(near(rates[0], 480_000, 1), "{rates:?}");
    assert!(simulation.books[&SessionId(0)].stops < 10);
    let more = Tenant { workers: 4, ..sparse(300_000, 120_000) };
    let (simulation, rates) = run(&[more], 60 * SECOND);
    assert!(near(rates[0], 300_000, 1), "{rates:?}");
    assert!(simulation.books[&SessionId(0)].wait_p95() < 120 * MS);
}

/// A sparse process may hold beside any other. A dense process, or one that is not known yet, has
/// to wait for other sessions' turns. The share is not used up meanwhile.
#[test]
fn a_dense_process_is_not_kept_from_its_turn_by_a_sparse_one_of_its_session() {
    for (share, density) in
        [(10_000, 400_000), (30_000, 700_000), (50_000, 400_000), (150_000, 700_000)]
    {
        for quota in [ComputeLimit::fixed(share), ComputeLimit::balance(share, 1)] {
            for others in [&[450_000; 2][..], &[100_000; 8]] {
                let two = Tenant { workers: 2, way_ns: MS / 10, ..Tenant::new(quota, density) };
                let two = Tenant { overrun_ns: MS / 2, ..two };
                let others = others.iter().map(|&share| Tenant::busy(share));
                let tenants: Vec<Tenant> = [two].into_iter().chain(others).collect();
                let mut simulation = Simulation::new(&tenants, 5);
                simulation.run_for(60 * SECOND);
                let longest = simulation.books[&SessionId(0)].waits.iter().max();
                assert!(longest.is_some_and(|&wait| wait < SECOND), "{longest:?}: {quota:?}");
            }
        }
    }
}
