//! What always holds, tried on random tenants and on chosen ones.

use super::simulation::{MS, SECOND, Simulation, Tenant};
use super::*;
use limits::Priority;
use proptest::prelude::*;

/// The part of the time since `from` that each session used, in millionths.
fn rates_since(simulation: &Simulation, from: u64, before: &[u64]) -> Vec<u64> {
    let passed = simulation.now - from;
    let used = simulation.books.values().map(|books| books.used_ns);
    used.zip(before).map(|(used, before)| (used - before) * 1_000_000 / passed).collect()
}

fn used(simulation: &Simulation) -> Vec<u64> {
    simulation.books.values().map(|books| books.used_ns).collect()
}

fn run(tenants: &[Tenant], length: u64) -> (Simulation, Vec<u64>) {
    let mut simulation = Simulation::new(tenants, 7);
    simulation.run_for(2 * SECOND);
    let (from, before) = (simulation.now, used(&simulation));
    simulation.run_for(length);
    let rates = rates_since(&simulation, from, &before);
    (simulation, rates)
}

/// Goes on with a simulation.
fn go_on(simulation: &mut Simulation, length: u64) -> Vec<u64> {
    let (from, before) = (simulation.now, used(simulation));
    simulation.run_for(length);
    rates_since(simulation, from, &before)
}

fn sparse(share_ppm: u32, density_ppm: u64) -> Tenant {
    Tenant::new(ComputeLimit::fixed(share_ppm), density_ppm)
}

fn balance(share_ppm: u32, weight: u32) -> Tenant {
    Tenant::new(ComputeLimit::balance(share_ppm, weight), 1_000_000)
}

fn near(got: u64, wanted: u64, points: u64) -> bool {
    got.abs_diff(wanted) <= points * 10_000
}

/// Over no window does a session use more than its share and a period's worth on top.
fn check_windows(simulation: &Simulation, session: u64, tenant: &Tenant) {
    let books = &simulation.books[&SessionId(session)];
    let share = u64::from(tenant.quota.share_ppm);
    let burst = Tuning::default().burst_ns(tenant.quota.share_ppm);
    // What a turn overruns is paid for afterwards, so a window may end with it. A sparse one may be
    // found to use more than was thought within the lease that it has.
    let excess = tenant.overrun_ns + 2 * tenant.way_ns + 30 * MS + 1_000;
    for (index, &(from, ..)) in books.used.iter().enumerate() {
        let mut sum = 0;
        for &(_, to, used) in books.used[index..].iter().take(400) {
            sum += used;
            let allowed = (u128::from(to - from) * u128::from(share) / 1_000_000) as u64;
            assert!(sum <= allowed + burst + excess, "{sum} of {} ns at {share}", to - from);
        }
    }
}

#[test]
fn one_alone_gets_its_share() {
    for share in [10_000, 50_000, 100_000, 250_000, 500_000, 750_000, 900_000, 990_000] {
        let (simulation, rates) = run(&[Tenant::busy(share)], 60 * SECOND);
        assert!(rates[0].abs_diff(share.into()) < 2_000, "{share}: {rates:?}");
        check_windows(&simulation, 0, &Tenant::busy(share));
    }
}

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
        // In a saturated set each is looked at alone now and then.
        assert!(stopped <= if tenants.len() == 2 { 60 } else { 0 }, "{stopped} stops: {tenants:?}");
        let sum: u64 = rates.iter().sum();
        let wanted: u64 = tenants.iter().map(|tenant| tenant.density_ppm).sum();
        assert!(sum * 100 >= wanted.min(980_000) * 98, "{rates:?}: {tenants:?}");
    }
}

/// What programs do first (loading, warming up) says little of what they do then.
#[test]
fn those_that_begin_to_fill_the_device_together_are_known_within_a_second() {
    // Those of the last two have been in each other's way for a while when they change, and it cannot be seen.
    let sets: [(&[u32], u64, u64, u64); 5] = [
        (&[125_000; 8], 100_000, 3_000 * MS, SECOND),
        (&[500_000; 2], 600_000, 300 * MS, 2 * SECOND),
        (&[500_000; 2], 400_000, 5_000 * MS, SECOND),
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

/// What is told of them beside others says little. They are told apart all the same, and what their turns have shown
/// is not forgotten.
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
        simulation.run_for(2 * SECOND);
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

/// What slicing leaves a launch-bound one and one that fills the device, as on H200s: 0.7 of its speed or 0.6, and
/// 0.7 of the device.
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

/// They load, warm up, wait; not all at the same time, and then they fill the device.
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
        assert!(session.charged_ns.abs_diff(used) <= 30 * MS + used / 1_000, "{session:?}: {used}");
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
    // The other can not have the device while it is overrun; it makes up only what its burst kept.
    assert!(rates[1] > 600_000, "{rates:?}");
}

/// Kernels of some milliseconds: what was launched last runs on when a turn ends. Turns are so much shorter.
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
            // Of the smallest share a turn is hardly longer than what runs past it.
            let most = if share < 100_000 { 130 } else { 105 };
            assert!(wait <= most * MS, "{set:?}, {index}: waits {wait}");
        }
    }
}

/// All shares together are the whole device, and giving turns out takes time: a round is longer than a period. Nobody
/// waits for more than one.
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

#[test]
fn dense_processes_of_one_session_take_turns() {
    let many = Tenant { workers: 5, think_ns: MS, overrun_ns: 2 * MS, ..Tenant::busy(500_000) };
    let (simulation, rates) = run(&[many, Tenant::busy(500_000)], 120 * SECOND);
    assert!(near(rates[0], 500_000, 2) && near(rates[1], 500_000, 2), "{rates:?}");
    assert!(simulation.books[&SessionId(1)].wait_p95() <= 120 * MS);
    // All of them: the one that was served least recently is next.
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

/// A sparse one may hold beside anybody, a dense one (or one that is not known yet) has to wait for the turns of others:
/// their share is not used up meanwhile.
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

#[test]
fn a_returning_session_gets_its_share_at_once_and_no_more() {
    let sometimes = Tenant { phases: (SECOND, 3 * SECOND), ..Tenant::busy(500_000) };
    let (simulation, rates) = run(&[sometimes, Tenant::busy(500_000)], 120 * SECOND);
    assert!(near(rates[0], 125_000, 2), "{rates:?}");
    assert!(rates[1] > 480_000, "{rates:?}");
    check_windows(&simulation, 0, &sometimes);
}

/// However long one had the device, and at whatever pace it used its share meanwhile.
#[test]
fn whoever_comes_to_take_turns_waits_behind_nobody_and_keeps_nobody_waiting() {
    let mut simulation = Simulation::new(&[Tenant::busy(1_000_000)], 9);
    simulation.run_for(60 * SECOND);
    simulation.arrive(Tenant::busy(1_000_000));
    simulation.run_for(SECOND);
    let rates = go_on(&mut simulation, 3 * SECOND);
    assert!(near(rates[0], 500_000, 2) && near(rates[1], 500_000, 2), "{rates:?}");

    // Two who want more than there is use their shares more slowly than a sparse one does.
    let tenants = [Tenant::busy(900_000), Tenant::busy(900_000), sparse(200_000, 200_000)];
    let mut simulation = Simulation::new(&tenants, 9);
    simulation.run_for(120 * SECOND);
    simulation.set_density(SessionId(2), 1_000_000);
    simulation.run_for(2 * SECOND);
    let rates = go_on(&mut simulation, 3 * SECOND);
    assert!(near(rates[2], 100_000, 2), "{rates:?}");
}

#[test]
fn sparse_beside_dense_keeps_its_pace() {
    // The hardware's slicing of the two, by the simulation's own model: 0.5 and 0.45.
    let (_, rates) = run(&[sparse(500_000, 500_000), Tenant::busy(500_000)], 120 * SECOND);
    assert!(rates[0] >= 425_000, "{rates:?}");
    assert!(rates[1] >= 440_000, "{rates:?}");
    for (share, other) in [(250_000, 750_000), (750_000, 250_000)] {
        let (_, rates) = run(&[sparse(share, 500_000), Tenant::busy(other)], 120 * SECOND);
        assert!(rates[0] + 20_000 >= u64::from(share.min(480_000)), "{share}: {rates:?}");
        assert!(rates[1] + 40_000 >= u64::from(other), "{share}: {rates:?}");
    }
}

/// As on an H200: a sparse one that needs a quarter of the device takes two fifths of it from a dense one.
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
    // What the slicing alone gives: 0.25 and 0.575.
    let rates = together(500_000, balance);
    assert!(near(rates[0], 250_000, 1) && near(rates[1], 575_000, 2), "{rates:?}");
    // The dense one gets its share, and the sparse one the same part of what it would get alone.
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
    // Beside a dense one it can not be seen, and is looked at.
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
    // The hardware alone would give 0.98 of the device.
    assert!(sum * 100 >= 980_000 * 98, "{rates:?}");
    assert!(simulation.books[&SessionId(0)].wait_p95() <= 120 * MS);
    let crowd = vec![Tenant::new(ComputeLimit::fixed(1_000_000), 400_000); 8];
    let (_, rates) = run(&crowd, 60 * SECOND);
    let sum: u64 = rates.iter().sum();
    assert!(sum > 930_000, "{rates:?}");
    assert!(rates.iter().all(|&rate| near(rate, sum / 8, 2)), "{rates:?}");
}

#[test]
fn idle_time_goes_to_balance_by_weight() {
    let (_, rates) = run(&[balance(300_000, 1), balance(300_000, 3)], 60 * SECOND);
    assert!(near(rates[0], 400_000, 1) && near(rates[1], 600_000, 1), "{rates:?}");
    let (_, rates) = run(&[balance(200_000, 1)], 20 * SECOND);
    assert!(rates[0] > 999_000, "{rates:?}");
    // A fixed one has its share and no more.
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
        // Its density has to be known.
        simulation.run_for(7 * SECOND);
        for _ in 0..20 {
            // From its waking up: 200 ms to get there, then its share of the next 200 ms.
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
    // A ceiling below the share is no ceiling.
    let (_, rates) = run(&[soft(400_000, 100_000, 1_000_000)], 60 * SECOND);
    assert!(near(rates[0], 400_000, 1), "{rates:?}");
}

#[test]
fn low_priority_gets_its_floor_and_what_high_leaves() {
    let low = |quota: ComputeLimit| {
        Tenant::new(ComputeLimit { priority: Priority::Low, ..quota }, 1_000_000)
    };
    let greedy = balance(300_000, 1);
    let (_, rates) = run(&[greedy, low(ComputeLimit::balance(300_000, 9))], 60 * SECOND);
    assert!(near(rates[1], 50_000, 1), "{rates:?}");
    assert!(rates[0] > 930_000, "{rates:?}");
    let (_, rates) = run(&[low(ComputeLimit::fixed(300_000))], 60 * SECOND);
    assert!(near(rates[0], 300_000, 1), "{rates:?}");
    let (_, rates) =
        run(&[Tenant::busy(500_000), low(ComputeLimit::balance(20_000, 1))], 60 * SECOND);
    assert!(near(rates[0], 500_000, 1) && near(rates[1], 500_000, 2), "{rates:?}");
    let sometimes = Tenant { phases: (SECOND, SECOND), ..greedy };
    let (_, rates) = run(&[sometimes, low(ComputeLimit::balance(100_000, 1))], 60 * SECOND);
    assert!(near(rates[1], 525_000, 3), "{rates:?}");
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
    simulation.freeze(SessionId(0));
    simulation.run_for(SECOND);
    let rates = go_on(&mut simulation, 10 * SECOND);
    // The frozen one still works in this model.
    assert!(rates[1] > 440_000, "{rates:?}");
    let view = simulation.scheduler.view(simulation.now);
    let lease = view.leases.iter().find(|lease| lease.worker == WorkerId(0)).unwrap();
    assert!(lease.revoked);
    assert!(view.sessions[0].balance_ns < -4_000_000_000, "{view:?}");
    // It owes: dying and coming back does not cancel that.
    simulation.kill(WorkerId(0));
    assert!(simulation.scheduler.forget_idle(simulation.now).is_empty());
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

fn any_quota() -> impl Strategy<Value = ComputeLimit> {
    (
        1_000u32..=1_000_000,
        any::<bool>(),
        prop::option::of(1u32..=1_000_000),
        1u32..10,
        any::<bool>(),
    )
        .prop_map(|(share_ppm, fixed, soft_ppm, weight, high)| ComputeLimit {
            share_ppm,
            policy: if fixed { Policy::Fixed } else { Policy::Balance },
            soft_ppm,
            weight,
            priority: if high { Priority::High } else { Priority::Low },
        })
}

fn any_tenant() -> impl Strategy<Value = Tenant> {
    (
        any_quota(),
        prop_oneof![Just(1_000_000u64), 10_000u64..1_000_000],
        1u64..4,
        prop_oneof![Just(0), 0..5 * MS, 0..200 * MS],
        prop_oneof![Just(0), 0..3 * MS, 0..400 * MS],
        prop_oneof![Just(0), 0..500_000u64],
        prop_oneof![Just((0, 0)), (MS..SECOND, 0..2 * SECOND)],
    )
        .prop_map(|(quota, density_ppm, workers, think_ns, overrun_ns, way_ns, phases)| {
            Tenant {
                workers,
                think_ns,
                overrun_ns,
                way_ns,
                phases,
                ..Tenant::new(quota, density_ppm)
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whoever the tenants are and whoever dies or freezes: no two dense ones hold at once (checked
    /// by the simulation at every step), a session is never charged more than the time that
    /// passed, and nobody has more than its share and a burst over any window.
    #[test]
    fn any_tenants(
        tenants in prop::collection::vec(any_tenant(), 1..8),
        seed in any::<u64>(),
        dies in any::<prop::sample::Index>(),
        freezes in any::<prop::sample::Index>(),
    ) {
        let mut simulation = Simulation::new(&tenants, seed);
        simulation.run_for(5 * SECOND);
        simulation.freeze(SessionId(freezes.index(tenants.len()) as u64));
        simulation.run_for(5 * SECOND);
        simulation.kill(WorkerId(dies.index(tenants.len()) as u64 * 1000));
        simulation.run_for(5 * SECOND);
        for session in simulation.scheduler.view(simulation.now).sessions {
            prop_assert!(session.charged_ns <= 15 * SECOND, "{:?}", session);
        }
        for (index, tenant) in tenants.iter().enumerate() {
            let frozen = freezes.index(tenants.len()) == index;
            if tenant.workers == 1 && !frozen && tenant.quota.policy == Policy::Fixed {
                check_windows(&simulation, index as u64, tenant);
            }
        }
    }

    /// Busy sessions whose shares fit the device: each gets its share to within 1 % and waits a
    /// bounded time.
    #[test]
    fn fitting_shares_are_met(
        weights in prop::collection::vec(1u32..100, 2..10),
        seed in any::<u64>(),
    ) {
        let sum: u32 = weights.iter().sum();
        let tenants: Vec<Tenant> =
            weights.iter().map(|weight| Tenant::busy(weight * (1_000_000 / sum))).collect();
        let mut simulation = Simulation::new(&tenants, seed);
        simulation.run_for(5 * SECOND);
        let rates = go_on(&mut simulation, 60 * SECOND);
        for (index, tenant) in tenants.iter().enumerate() {
            let (got, share) = (rates[index], u64::from(tenant.quota.share_ppm));
            // One turn more or less falls into the window.
            let turn = Tuning::default().longest_turn_ns(tenant.quota.share_ppm) / 60_000;
            prop_assert!(
                got.abs_diff(share) <= share / 100 + turn, "{:?}: {} for {}", weights, got, share
            );
            let longest = simulation.books[&SessionId(index as u64)].waits.iter().max();
            let period = 100 * MS;
            let bound = period + 2 * MS * u64::from(sum) / u64::from(weights[index]) + period;
            prop_assert!(longest.is_some_and(|&wait| wait <= bound), "{:?}: {:?}", weights, longest);
        }
    }
}
