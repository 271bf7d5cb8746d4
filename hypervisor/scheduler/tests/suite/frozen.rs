//! Sessions that are frozen and thawed.

use limits::{ComputeLimit, Policy};
use proptest::prelude::*;
use scheduler::{Handover, SessionId};

use crate::any_tenants::any_tenant;
use crate::simulation::{MS, SECOND, Simulation, Tenant};

const FROZEN: SessionId = SessionId(0);
const OTHER: SessionId = SessionId(1);
/// The longest lease, which a process with gates on its threads may use up.
const LEASE: u64 = limits::turns::LONGEST_LEASE_NS;

fn used(simulation: &Simulation, session: SessionId) -> u64 {
    simulation.books[&session].used_ns
}

fn grants(simulation: &Simulation, session: SessionId) -> usize {
    simulation.books[&session].waits.len()
}

fn view(simulation: &mut Simulation, session: SessionId) -> scheduler::SessionView {
    let now = simulation.now;
    let sessions = simulation.scheduler.view(now).sessions;
    sessions.into_iter().find(|view| view.session == session).unwrap()
}

fn pair(handover: Handover, share_ppm: u32) -> Simulation {
    let tenant = |share_ppm| {
        let quota = ComputeLimit { policy: Policy::Balance, ..ComputeLimit::fixed(share_ppm) };
        let tenant = Tenant { overrun_ns: MS, ..Tenant::new(quota, 1_000_000) };
        if handover == Handover::InStream { tenant.in_stream() } else { tenant }
    };
    Simulation::new(&[tenant(share_ppm), tenant(1_000_000 - share_ppm)], 1)
}

fn any_handover() -> impl Strategy<Value = Handover> {
    prop_oneof![Just(Handover::OnThread), Just(Handover::InStream)]
}

#[test]
fn a_lease_in_the_stream_ends_at_once() {
    let mut simulation = pair(Handover::InStream, 900_000);
    simulation.run_for(SECOND);
    while !simulation.scheduler.is_held_by(FROZEN) {
        simulation.run_for(MS);
    }
    let stopped = simulation.books[&FROZEN].stopped;
    simulation.set_frozen(FROZEN, true);
    assert_eq!(simulation.books[&FROZEN].stopped, stopped + 1);
    simulation.run_for(2 * MS);
    assert!(!simulation.scheduler.is_held_by(FROZEN));
    // Once more changes nothing.
    simulation.set_frozen(FROZEN, true);
    assert!(view(&mut simulation, FROZEN).frozen);
}

#[test]
fn a_session_that_is_not_known_can_be_neither_frozen_nor_thawed() {
    let mut simulation = pair(Handover::OnThread, 500_000);
    simulation.scheduler.freeze(SessionId(9), 0);
    simulation.scheduler.thaw(SessionId(9), 0);
    simulation.set_frozen(FROZEN, false);
    simulation.run_for(SECOND);
    assert!(used(&simulation, FROZEN) > SECOND / 3);
}

proptest! {
    /// Whoever the tenants are: a frozen session is granted nothing until it is thawed, and is served again then.
    #[test]
    fn a_frozen_session_is_never_granted(
        tenants in prop::collection::vec(any_tenant(), 1..6),
        frozen in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        (before, length) in (0..3 * SECOND, 1..3 * SECOND),
    ) {
        let mut simulation = Simulation::new(&tenants, seed);
        let frozen = SessionId(frozen.index(tenants.len()) as u64);
        simulation.run_for(before);
        simulation.set_frozen(frozen, true);
        let granted = grants(&simulation, frozen);
        simulation.run_for(length);
        prop_assert_eq!(grants(&simulation, frozen), granted);
        prop_assert!(view(&mut simulation, frozen).frozen);
        simulation.set_frozen(frozen, false);
        let thawed = view(&mut simulation, frozen);
        prop_assert!(!thawed.frozen && thawed.balance_ns <= 0, "{:?}", thawed);
        simulation.run_for(SECOND);
    }

    /// What a frozen session leaves is idle time, which goes to others. Thawed, it takes nothing of theirs for the
    /// time in which it was frozen.
    #[test]
    fn others_get_its_time_and_keep_theirs(
        handover in any_handover(),
        share_ppm in 100_000u32..=900_000,
        length in SECOND..20 * SECOND,
    ) {
        let mut simulation = pair(handover, share_ppm);
        simulation.run_for(2 * SECOND);
        simulation.set_frozen(FROZEN, true);
        simulation.run_for(2 * LEASE);
        let [own, others] = [FROZEN, OTHER].map(|session| used(&simulation, session));
        simulation.run_for(length);
        prop_assert_eq!(used(&simulation, FROZEN), own);
        let got = used(&simulation, OTHER) - others;
        prop_assert!(got >= length / 100 * 95 - 2 * LEASE, "{} of {} ms", got / MS, length / MS);
        simulation.set_frozen(FROZEN, false);
        for _ in 0..5 {
            let before = used(&simulation, OTHER);
            simulation.run_for(SECOND);
            let got = used(&simulation, OTHER) - before;
            let due = u64::from(1_000_000 - share_ppm) * (SECOND / 1_000_000);
            prop_assert!(got + 100 * MS >= due, "{} of {} ms", got / MS, due / MS);
        }
        prop_assert!(used(&simulation, FROZEN) > own);
    }
}
