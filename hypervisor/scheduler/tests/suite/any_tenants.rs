//! What always holds, for any set of tenants.

use limits::ComputeLimit;
use limits::{Policy, Priority};
use proptest::prelude::*;
use scheduler::{Handover, SessionId, WorkerId};

use crate::simulation::{MS, SECOND, Simulation, Tenant};
use crate::tenants::{check_windows, go_on};

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

pub(crate) fn any_tenant() -> impl Strategy<Value = Tenant> {
    (
        any_quota(),
        prop_oneof![Just(1_000_000u64), 10_000u64..1_000_000],
        1u64..4,
        prop_oneof![Just(0), 0..5 * MS, 0..200 * MS],
        prop_oneof![Just(0), 0..3 * MS, 0..400 * MS],
        prop_oneof![Just(0), 0..500_000u64],
        prop_oneof![Just((0, 0)), (MS..SECOND, 0..2 * SECOND)],
        prop_oneof![Just(Handover::OnThread), Just(Handover::InStream)],
    )
        .prop_map(
            |(quota, density_ppm, workers, think_ns, overrun_ns, way_ns, phases, handover)| {
                Tenant {
                    workers,
                    think_ns,
                    overrun_ns,
                    way_ns,
                    phases,
                    handover,
                    ..Tenant::new(quota, density_ppm)
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// For any tenants, whichever of them die or freeze: no two dense workers hold at once (the
    /// simulation checks it at every step). No session is charged more than the time that passed, to
    /// within 1 %. Over no window does a session get more than its share and a burst.
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
            // What a stopped lease has left overlaps with the next one of the same session.
            prop_assert!(session.charged_ns <= simulation.now / 100 * 101, "{:?}", session);
        }
        for (index, tenant) in tenants.iter().enumerate() {
            let frozen = freezes.index(tenants.len()) == index;
            if tenant.workers == 1 && !frozen && tenant.quota.policy == Policy::Fixed {
                check_windows(&simulation, index as u64, tenant);
            }
        }
    }

    /// Busy sessions whose shares fit the device: each gets its share to within 1 % and waits for a
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
            let turn = limits::turns::turn_ns(tenant.quota.share_ppm, 100 * MS) / 60_000;
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
