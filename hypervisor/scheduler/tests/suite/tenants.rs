//! Runs tenants and measures what each got of the device.

use limits::ComputeLimit;
use limits::turns::Handover;
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant};

/// The part of the time since `from` that each session used, in millionths.
pub(crate) fn rates_since(simulation: &Simulation, from: u64, before: &[u64]) -> Vec<u64> {
    let passed = simulation.now - from;
    let used = simulation.books.values().map(|books| books.used_ns);
    used.zip(before).map(|(used, before)| (used - before) * 1_000_000 / passed).collect()
}

pub(crate) fn used(simulation: &Simulation) -> Vec<u64> {
    simulation.books.values().map(|books| books.used_ns).collect()
}

pub(crate) fn run(tenants: &[Tenant], length: u64) -> (Simulation, Vec<u64>) {
    let mut simulation = Simulation::new(tenants, 7);
    simulation.run_for(2 * SECOND);
    let (from, before) = (simulation.now, used(&simulation));
    simulation.run_for(length);
    let rates = rates_since(&simulation, from, &before);
    (simulation, rates)
}

/// Continues a simulation.
pub(crate) fn go_on(simulation: &mut Simulation, length: u64) -> Vec<u64> {
    let (from, before) = (simulation.now, used(simulation));
    simulation.run_for(length);
    rates_since(simulation, from, &before)
}

pub(crate) fn sparse(share_ppm: u32, density_ppm: u64) -> Tenant {
    Tenant::new(ComputeLimit::fixed(share_ppm), density_ppm)
}

pub(crate) fn balance(share_ppm: u32, weight: u32) -> Tenant {
    Tenant::new(ComputeLimit::balance(share_ppm, weight), 1_000_000)
}

pub(crate) fn near(got: u64, wanted: u64, points: u64) -> bool {
    got.abs_diff(wanted) <= points * 10_000
}

/// Checks that over no window a session uses more than its share and what may be saved up.
pub(crate) fn check_windows(simulation: &Simulation, session: u64, tenant: &Tenant) {
    let books = &simulation.books[&SessionId(session)];
    let share = u64::from(tenant.quota.share_ppm);
    let burst = limits::turns::burst_ns(tenant.quota.share_ppm, Handover::default());
    // Work that runs past a turn is paid for afterwards, so a window may end with it. A sparse
    // worker may be found to use more than was assumed within its present lease.
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
