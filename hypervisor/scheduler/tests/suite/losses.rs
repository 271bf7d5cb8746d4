//! Workers that die, and workers that stop reporting.

use scheduler::{SessionId, WorkerId};

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::go_on;

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
    let forgotten = simulation.scheduler.forget_idle(simulation.now);
    let [(session, charged_ns, _)] = forgotten[..] else { panic!("{forgotten:?}") };
    assert!(session == SessionId(dead.0 / 1000) && charged_ns > 0);
}

#[test]
fn a_frozen_holder_stops_nobody_and_goes_on_paying() {
    let mut simulation = Simulation::new(&[Tenant::busy(500_000), Tenant::busy(500_000)], 1);
    simulation.run_for(SECOND);
    simulation.freeze(SessionId(0));
    simulation.run_for(SECOND);
    let rates = go_on(&mut simulation, 10 * SECOND);
    // In this model, the frozen tenant's work goes on.
    assert!(rates[1] > 440_000, "{rates:?}");
    let view = simulation.scheduler.view(simulation.now);
    let lease = view.leases.iter().find(|lease| lease.worker == WorkerId(0)).unwrap();
    assert!(lease.revoked);
    assert!(view.sessions[0].balance_ns < -4_000_000_000, "{view:?}");
    // It owes time: dying and coming back does not cancel that.
    simulation.kill(WorkerId(0));
    assert!(simulation.scheduler.forget_idle(simulation.now).is_empty());
}
