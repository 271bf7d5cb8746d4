//! In which way sessions share a device that want it most of the time.

use limits::ComputeLimit;
use scheduler::{Chosen, Reason, Way};

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{balance, go_on};

fn chosen(simulation: &mut Simulation) -> Chosen {
    simulation.scheduler.view(simulation.now).way.expect("sessions contend")
}

/// Tenants with gates in their streams, after some seconds.
fn after(tenants: &[Tenant], seconds: u64) -> Simulation {
    let tenants: Vec<Tenant> = tenants.iter().map(|tenant| tenant.in_stream()).collect();
    let mut simulation = Simulation::new(&tenants, 11);
    simulation.run_for(seconds * SECOND);
    simulation
}

#[test]
fn programs_with_gaps_hold_at_once() {
    let gaps = Tenant::new(ComputeLimit::balance(500_000, 1), 650_000);
    let mut simulation = after(&[gaps, gaps], 4);
    let Chosen { way, reason, since, rates } = chosen(&mut simulation);
    assert_eq!((way, reason), (Way::Overlap, Reason::MoreDone));
    assert!(since < simulation.now && rates.len() == 2);
    for (_, [turns, overlap]) in rates {
        assert!(overlap.unwrap().launches >= turns.unwrap().launches, "{turns:?} {overlap:?}");
    }
    let rates = go_on(&mut simulation, 10 * SECOND);
    assert!(rates.iter().sum::<u64>() >= 950_000, "{rates:?}");
}

#[test]
fn programs_that_fill_the_device_take_turns() {
    let mut simulation = after(&[balance(500_000, 1), balance(500_000, 1)], 4);
    let Chosen { way, .. } = chosen(&mut simulation);
    assert_eq!(way, Way::Turns);
    let rates = go_on(&mut simulation, 60 * SECOND);
    assert!(rates.iter().sum::<u64>() >= 975_000, "{rates:?}");
}

/// Slices would give the first 0.4 of the device.
#[test]
fn a_guarantee_that_slices_do_not_leave_forces_turns() {
    let gaps = Tenant::new(ComputeLimit::balance(300_000, 1), 600_000);
    let mut simulation = after(&[balance(700_000, 1), gaps], 4);
    assert_eq!(chosen(&mut simulation).way, Way::Turns);
    let rates = go_on(&mut simulation, 20 * SECOND);
    assert!(rates[0] >= 670_000, "{rates:?}");
}

#[test]
fn what_a_program_does_now_counts() {
    let gaps = Tenant::new(ComputeLimit::balance(500_000, 1), 650_000);
    let mut simulation = after(&[gaps, gaps], 5);
    assert_eq!(chosen(&mut simulation).way, Way::Overlap);
    for session in 0..2 {
        simulation.set_density(scheduler::SessionId(session), 1_000_000);
    }
    simulation.run_for(40 * SECOND);
    assert_eq!(chosen(&mut simulation).way, Way::Turns);
}

/// Neither may have more than in turns, until both may.
#[test]
fn the_ways_are_compared_anew_under_other_limits() {
    let gaps = Tenant::new(ComputeLimit::fixed(500_000), 650_000);
    let mut simulation = after(&[gaps, gaps], 5);
    assert_eq!(chosen(&mut simulation).way, Way::Turns);
    let now = simulation.now;
    for session in 0..2 {
        let quota = ComputeLimit::balance(500_000, 1);
        simulation.scheduler.set_session(scheduler::SessionId(session), quota, now).unwrap();
    }
    simulation.run_for(3 * SECOND);
    assert_eq!(chosen(&mut simulation).way, Way::Overlap);
}

/// After each pause it is the same.
#[test]
fn nothing_is_learned_from_a_pause() {
    let (busy, pause) = (5 * SECOND, 9 * SECOND);
    let gaps = Tenant::new(ComputeLimit::balance(500_000, 1), 650_000);
    let gaps = Tenant { phases: (busy, pause), ..gaps };
    let mut simulation = after(&[gaps, gaps], 0);
    for _ in 0..4 {
        let phase = simulation.now % (busy + pause);
        simulation.run_for(busy + pause - phase + busy - SECOND / 2);
        assert_eq!(chosen(&mut simulation).way, Way::Overlap);
    }
}

#[test]
fn who_is_alone_or_wants_little_is_not_part_of_it() {
    let little = Tenant::new(ComputeLimit::balance(500_000, 1), 100_000);
    for tenants in [vec![balance(500_000, 1)], vec![little, little]] {
        let mut simulation = after(&tenants, 4);
        assert_eq!(simulation.scheduler.view(simulation.now).way, None);
    }
}

/// The third wants the device for two fifths of the time, and is slowed down by the other two then.
#[test]
fn a_session_that_misses_its_share_does_not_starve_those_that_hold_at_once() {
    let gaps = Tenant::new(ComputeLimit::balance(400_000, 1), 650_000);
    let third = Tenant::new(ComputeLimit::fixed(200_000), 500_000);
    let third = Tenant { phases: (200 * MS, 300 * MS), ..third };
    let mut simulation = after(&[gaps, gaps, third], 5);
    for _ in 0..20 {
        let rates = go_on(&mut simulation, SECOND);
        assert!(rates[0] >= 250_000 && rates[1] >= 250_000 && rates[2] >= 100_000, "{rates:?}");
    }
}
