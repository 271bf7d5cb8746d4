//! What always holds, tried on random tenants and on chosen ones.

use super::simulation::{MS, SECOND, Simulation, Tenant};
use super::*;
use proptest::prelude::*;

/// The share of the time from `from` to now that the session held, in millionths.
fn share_since(simulation: &Simulation, session: u64, from: u64) -> u64 {
    let held = simulation.books[&SessionId(session)].held_between(from, simulation.now);
    held * 1_000_000 / (simulation.now - from)
}

fn run(tenants: &[Tenant], length: u64) -> (Simulation, Vec<u64>) {
    let mut simulation = Simulation::new(tenants, 7);
    simulation.run_for(2 * SECOND);
    let from = simulation.now;
    simulation.run_for(length);
    let shares = (0..tenants.len() as u64).map(|s| share_since(&simulation, s, from)).collect();
    (simulation, shares)
}

/// Over no window does a session hold more than its share and a period's worth on top.
fn check_windows(simulation: &Simulation, session: u64, tenant: &Tenant) {
    let books = &simulation.books[&SessionId(session)];
    let share = u64::from(tenant.share_ppm);
    let burst = Tuning::default().burst_ns(tenant.share_ppm);
    // What a turn overruns is paid for afterwards, so a window may end with it.
    let spare = burst + tenant.overrun_ns + 2 * tenant.way_ns + 1_000;
    for (index, &(from, _)) in books.held.iter().enumerate() {
        for &(_, to) in books.held[index..].iter().take(200) {
            if to == u64::MAX {
                break;
            }
            let window = to - from;
            let allowed = window / 1_000_000 * share + spare + window % 1_000_000;
            let held = books.held_between(from, to);
            // A refund for the way of messages is at most a 32nd.
            let held = if tenant.way_ns > 0 { held - held / 32 } else { held };
            assert!(held <= allowed, "{held} of {window} ns at {share}");
        }
    }
}

#[test]
fn one_alone_gets_its_share() {
    for share in [10_000, 50_000, 100_000, 250_000, 500_000, 750_000, 900_000, 990_000] {
        let (_, shares) = run(&[Tenant::busy(share)], 60 * SECOND);
        assert!(shares[0].abs_diff(share.into()) < 2_000, "{share}: {shares:?}");
    }
    let (_, shares) = run(&[Tenant::busy(1_000_000)], 10 * SECOND);
    assert_eq!(shares, [1_000_000]);
}

#[test]
fn two_to_sixteen_busy_tenants_over_minutes() {
    let sets: [&[u32]; 6] = [
        &[500_000, 500_000],
        &[750_000, 250_000],
        &[500_000, 300_000, 200_000],
        &[400_000, 300_000, 100_000, 50_000, 50_000],
        &[125_000; 8],
        &[62_500; 16],
    ];
    for set in sets {
        let tenants: Vec<Tenant> = set.iter().map(|&share| Tenant::busy(share)).collect();
        let (simulation, shares) = run(&tenants, 180 * SECOND);
        for (index, &share) in set.iter().enumerate() {
            let off = shares[index].abs_diff(share.into());
            assert!(off * 100 <= u64::from(share), "{set:?}: {shares:?}");
            let p95 = simulation.books[&SessionId(index as u64)].wait_p95();
            assert!(p95 <= 120 * MS, "{set:?}, tenant {index}: waits {p95} ns");
        }
    }
}

#[test]
fn messages_under_way_cost_everybody_alike() {
    let with_gaps = |share| Tenant { way_ns: 150_000, think_ns: 100_000, ..Tenant::busy(share) };
    let (_, shares) = run(&[with_gaps(750_000), with_gaps(250_000)], 120 * SECOND);
    let sum = shares[0] + shares[1];
    assert!(sum > 970_000, "{shares:?}");
    assert!((shares[0] * 100 / sum).abs_diff(75) <= 1, "{shares:?}");
}

#[test]
fn more_than_the_device_has_is_shared_by_weight() {
    let (_, shares) = run(&[Tenant::busy(900_000), Tenant::busy(300_000)], 120 * SECOND);
    assert!(shares[0] + shares[1] > 999_000, "{shares:?}");
    assert!(shares[0].abs_diff(750_000) < 10_000, "{shares:?}");
    let (_, shares) = run(&[Tenant::busy(1_000_000), Tenant::busy(1_000_000)], 60 * SECOND);
    assert!(shares[0].abs_diff(500_000) < 10_000, "{shares:?}");
}

#[test]
fn long_kernels_are_paid_for() {
    let long = Tenant { overrun_ns: 160 * MS, ..Tenant::busy(250_000) };
    let (_, shares) = run(&[long, Tenant::busy(750_000)], 600 * SECOND);
    assert!(shares[0].abs_diff(250_000) < 5_000, "{shares:?}");
    // The other can not have the device while it is overrun; it makes up only what its burst kept.
    assert!(shares[1] > 600_000, "{shares:?}");
}

#[test]
fn processes_of_one_session_share_its_share() {
    let many = Tenant { workers: 5, think_ns: MS, overrun_ns: 2 * MS, ..Tenant::busy(500_000) };
    let (simulation, shares) = run(&[many, Tenant::busy(500_000)], 120 * SECOND);
    assert!(shares[0].abs_diff(500_000) < 15_000, "{shares:?}");
    assert!(shares[1].abs_diff(500_000) < 15_000, "{shares:?}");
    for books in simulation.books.values() {
        assert!(books.wait_p95() <= 120 * MS, "{}", books.wait_p95());
    }
}

#[test]
fn a_returning_session_gets_its_share_at_once_and_no_more() {
    let sometimes = Tenant { phases: (SECOND, 3 * SECOND), ..Tenant::busy(500_000) };
    let (simulation, shares) = run(&[sometimes.clone(), Tenant::busy(500_000)], 120 * SECOND);
    assert!(shares[0].abs_diff(125_000) < 20_000, "{shares:?}");
    assert!(shares[1] > 480_000, "{shares:?}");
    check_windows(&simulation, 0, &sometimes);
}

#[test]
fn a_dead_holder_frees_the_device_at_once() {
    let mut simulation = Simulation::new(&[Tenant::busy(500_000), Tenant::busy(500_000)], 1);
    simulation.run_for(SECOND);
    while simulation.holder().is_none() {
        simulation.run_for(MS);
    }
    let dead = simulation.holder().unwrap();
    let other = if dead == WorkerId(0) { WorkerId(1000) } else { WorkerId(0) };
    let at = simulation.now;
    simulation.kill(dead);
    simulation.run_for(20 * MS);
    let books = &simulation.books[&SessionId(other.0 / 1000)];
    assert!(books.held.last().unwrap().0 <= at + 20 * MS);
    simulation.run_for(SECOND);
    assert_eq!(simulation.scheduler.forget_idle(simulation.now), [SessionId(dead.0 / 1000)]);
}

#[test]
fn a_frozen_holder_stops_nobody_and_goes_on_paying() {
    let mut simulation = Simulation::new(&[Tenant::busy(500_000), Tenant::busy(500_000)], 1);
    simulation.run_for(SECOND);
    simulation.freeze(WorkerId(0));
    simulation.run_for(SECOND);
    let from = simulation.now;
    simulation.run_for(10 * SECOND);
    assert!(share_since(&simulation, 1, from).abs_diff(500_000) < 5_000);
    let view = simulation.scheduler.view(simulation.now);
    let lease = view.leases.iter().find(|lease| lease.worker == WorkerId(0)).unwrap();
    assert!(lease.revoked);
    assert!(view.sessions[0].balance_ns < -4_000_000_000, "{view:?}");
    // It owes: dying and coming back does not cancel that.
    simulation.kill(WorkerId(0));
    assert!(simulation.scheduler.forget_idle(simulation.now).is_empty());
}

#[test]
fn a_lost_grant_is_found_by_asking_again() {
    let mut scheduler = Scheduler::new(Tuning::default());
    let (session, worker) = (SessionId(1), WorkerId(1));
    scheduler.set_session(session, 500_000, 0).unwrap();
    scheduler.join(worker, session).unwrap();
    scheduler.ask(worker, 0).unwrap();
    let first = scheduler.decide(100 * MS);
    assert_eq!(first.len(), 1);
    assert!(scheduler.decide(101 * MS).is_empty());
    scheduler.ask(worker, 102 * MS).unwrap();
    let second = scheduler.decide(102 * MS);
    assert_eq!(second.len(), 1);
    assert_ne!(first[0].lease, second[0].lease);
    assert!(!scheduler.report(worker, first[0].lease, 0, 103 * MS).unwrap());
    assert!(scheduler.report(worker, second[0].lease, 0, 103 * MS).unwrap());
    // A worker can not talk its use down by more than the allowance of a 32nd.
    let charged = scheduler.view(103 * MS).sessions[0].charged_ns;
    assert_eq!(charged, 3 * MS - MS / 32);
}

#[test]
fn a_new_share_counts_from_now_on() {
    let mut simulation = Simulation::new(&[Tenant::busy(200_000)], 1);
    simulation.run_for(5 * SECOND);
    simulation.scheduler.set_session(SessionId(0), 600_000, simulation.now).unwrap();
    simulation.run_for(100 * MS);
    let from = simulation.now;
    simulation.run_for(10 * SECOND);
    assert!(share_since(&simulation, 0, from).abs_diff(600_000) < 5_000);
    simulation.scheduler.set_session(SessionId(0), 100_000, simulation.now).unwrap();
    simulation.run_for(SECOND);
    let from = simulation.now;
    simulation.run_for(10 * SECOND);
    assert!(share_since(&simulation, 0, from).abs_diff(100_000) < 5_000);
}

#[test]
fn nonsense_is_refused() {
    let mut scheduler = Scheduler::new(Tuning::default());
    let session = SessionId(1);
    assert_eq!(scheduler.set_session(session, 0, 0), Err(ScheduleError::NoShare));
    let unknown = Err(ScheduleError::UnknownSession(session));
    assert_eq!(scheduler.join(WorkerId(1), session), unknown);
    assert!(scheduler.ask(WorkerId(1), 0).is_err());
    assert!(scheduler.report(WorkerId(1), LeaseId(1), 0, 0).is_err());
    scheduler.withdraw(WorkerId(1));
    scheduler.leave(WorkerId(1), 0);
    assert!(scheduler.decide(u64::MAX).is_empty());
    assert_eq!(scheduler.next_deadline(0), None);
}

fn any_tenant() -> impl Strategy<Value = Tenant> {
    (
        1_000u32..=1_000_000,
        1u64..4,
        prop_oneof![Just(0), 0..5 * MS, 0..200 * MS],
        prop_oneof![Just(0), 0..3 * MS, 0..400 * MS],
        prop_oneof![Just(0), 0..500_000u64],
        prop_oneof![Just((0, 0)), (MS..SECOND, 0..2 * SECOND)],
    )
        .prop_map(|(share_ppm, workers, think_ns, overrun_ns, way_ns, phases)| Tenant {
            share_ppm,
            workers,
            think_ns,
            overrun_ns,
            way_ns,
            phases,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever the tenants are and whoever dies or freezes: no two sessions hold at once, charges
    /// equal what was held (both checked by the simulation at every step), and nobody holds more
    /// than its share and a burst over any window.
    #[test]
    fn any_tenants(
        tenants in prop::collection::vec(any_tenant(), 1..8),
        seed in any::<u64>(),
        dies in any::<prop::sample::Index>(),
        freezes in any::<prop::sample::Index>(),
    ) {
        let mut simulation = Simulation::new(&tenants, seed);
        simulation.run_for(5 * SECOND);
        simulation.freeze(WorkerId(freezes.index(tenants.len()) as u64 * 1000));
        simulation.run_for(5 * SECOND);
        simulation.kill(WorkerId(dies.index(tenants.len()) as u64 * 1000));
        simulation.run_for(5 * SECOND);
        for (index, tenant) in tenants.iter().enumerate() {
            if tenant.workers == 1 && freezes.index(tenants.len()) != index {
                check_windows(&simulation, index as u64, tenant);
            }
        }
    }

    /// Busy sessions whose shares fit the device: each gets its share to within 1 % and waits a
    /// bounded time.
    #[test]
    fn fitting_shares_are_met(weights in prop::collection::vec(1u32..100, 2..10), seed in any::<u64>()) {
        let sum: u32 = weights.iter().sum();
        let tenants: Vec<Tenant> =
            weights.iter().map(|weight| Tenant::busy(weight * (1_000_000 / sum))).collect();
        let mut simulation = Simulation::new(&tenants, seed);
        simulation.run_for(5 * SECOND);
        let from = simulation.now;
        simulation.run_for(60 * SECOND);
        for (index, tenant) in tenants.iter().enumerate() {
            let got = share_since(&simulation, index as u64, from);
            let share = u64::from(tenant.share_ppm);
            // One turn more or less falls into the window.
            let turn = Tuning::default().longest_turn_ns(tenant.share_ppm) / 60_000;
            prop_assert!(got.abs_diff(share) <= share / 100 + turn, "{weights:?}: {got} for {share}");
            let longest = simulation.books[&SessionId(index as u64)].waits.iter().max();
            let period = 100 * MS;
            let bound = period + 2 * MS * u64::from(sum) / u64::from(weights[index]) + period;
            prop_assert!(longest.is_some_and(|&wait| wait <= bound), "{weights:?}: {longest:?}");
        }
    }
}
