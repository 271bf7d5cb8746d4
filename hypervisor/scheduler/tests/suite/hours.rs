//! Hours of tenants that come and go.

use std::collections::BTreeSet;

use limits::ComputeLimit;
use limits::{Policy, Priority};
use scheduler::SessionId;

use crate::simulation::{Dice, MS, SECOND, Simulation, Tenant};

/// One session's time on the device.
struct Stay {
    session: SessionId,
    tenant: Tenant,
    used_before: u64,
}

impl Stay {
    /// Adds a tenant of a random kind, with a part of the share that the others leave free.
    fn begin(
        simulation: &mut Simulation,
        dice: &mut Dice,
        free_ppm: u32,
        others: u32,
        rough: bool,
    ) -> Self {
        let even = free_ppm / (others + 1);
        let more = if others == 0 { 0 } else { dice.up_to(u64::from(even / 2)) as u32 };
        let share_ppm = (even + more).max(500);
        let densities = [1_000_000, 1_000_000, 700_000, 400_000, 100_000];
        let density_ppm = densities[dice.up_to(4) as usize];
        let weight = 1 + dice.up_to(4) as u32;
        let kinds = [ComputeLimit::fixed(share_ppm), ComputeLimit::balance(share_ppm, weight)];
        let mut quota = kinds[dice.up_to(1) as usize];
        if dice.up_to(9) == 0 {
            quota.priority = Priority::Low;
        }
        let mut tenant = Tenant { tell_ns: 20 * MS, ..Tenant::new(quota, density_ppm) };
        if rough {
            tenant.overrun_ns = [0, MS / 2, 3 * MS, 8 * MS][dice.up_to(3) as usize];
            tenant.way_ns = dice.up_to(300_000);
            tenant.workers = 1 + dice.up_to(5) / 4;
            if dice.up_to(2) == 0 {
                let mut up_to_seconds = |least, most| least + dice.up_to(most * SECOND);
                tenant.phases = (up_to_seconds(500 * MS, 3), up_to_seconds(200 * MS, 3));
            }
        }
        Self { session: simulation.arrive(tenant), tenant, used_before: 0 }
    }

    fn could_use_everything(&self) -> bool {
        let ComputeLimit { policy, priority, .. } = self.tenant.quota;
        self.tenant.density_ppm == 1_000_000
            && (policy, priority) == (Policy::Balance, Priority::High)
    }

    /// Checks that it had no more than it may have in the last `length`. Returns how many
    /// thousandths of its due it got.
    fn check(&self, simulation: &Simulation, length: u64, count: usize) -> u64 {
        let books = &simulation.books[&self.session];
        let rate = (books.used_ns - self.used_before) * 1_000_000 / length;
        let quota = &self.tenant.quota;
        let density = self.tenant.density_ppm;
        let case = || format!("{rate} for {quota:?}, density {density}, among {count}");
        let share = u64::from(quota.guaranteed_ppm());
        // A tenant that needs less than its share may be slowed down a little.
        let due = share.min(density * self.tenant.workers * 85 / 100);
        // When it returns, it has to be given time first.
        let due = match self.tenant.phases {
            (0, _) => due,
            (busy, idle) => due * (busy - 300 * MS) / (busy + idle),
        };
        if quota.policy == Policy::Fixed {
            assert!(rate <= u64::from(quota.share_ppm) + 10_000, "{}", case());
        }
        // A small share needs a while to earn the shortest turn.
        let turn = 8 * MS + 2 * self.tenant.overrun_ns;
        // One of several processes of a session may find no gap for long.
        let at_first = if self.tenant.workers == 1 { 2 * SECOND } else { 10 * SECOND };
        let bound = at_first + turn * 1_000_000 / share;
        let longest = books.waits.iter().max();
        assert!(longest.is_none_or(|&longest| longest < bound), "{longest:?}: {}", case());
        // Over a few seconds, a small share is one turn more or less.
        (rate + 1_000) * 1_000 / due
    }
}

/// One hour for each seed. `scripts/test.sh` runs the first only, unless all are asked for.
fn seeds(all: &[u64]) -> &[u64] {
    let only_first = std::env::var("SLUICE_TEST_HOURS").is_ok_and(|hours| hours == "first");
    if only_first { &all[..1] } else { all }
}

#[test]
fn hours_of_changing_tenants() {
    for &seed in seeds(&[1, 2, 13]) {
        an_hour_of_changing_tenants(seed, false);
    }
}

/// Work runs past the ends of leases, messages take a while, tenants idle at times, and sessions
/// have several processes.
#[test]
fn hours_of_rough_tenants() {
    for &seed in seeds(&[301, 304]) {
        an_hour_of_changing_tenants(seed, true);
    }
}

/// An hour of 2 to 64 tenants of all kinds that come and go. Their shares together are nine tenths
/// of the device: the rest may go to slicing and probes.
fn an_hour_of_changing_tenants(seed: u64, rough: bool) {
    let mut simulation = Simulation::empty(seed);
    let mut dice = Dice::new(seed);
    let mut parts = Vec::new();
    simulation.keeps_lists = false;
    let start = simulation.now;
    let mut stays: Vec<Stay> = Vec::new();
    let (mut counts, mut arrived) = (BTreeSet::new(), 0);
    let (mut wanted, mut worked) = (0, 0);
    for round in 0u64.. {
        if simulation.now >= start + 3_600 * SECOND {
            break;
        }
        // Mostly a few tenants, now and then a crowd.
        let crowd = if round % 10 == 5 { 64 } else { 2 + dice.up_to(8) as usize };
        let stay_on = stays.len().saturating_sub(1).min(crowd - 1);
        while stays.len() > stay_on {
            let place = dice.up_to(stays.len() as u64 - 1) as usize;
            let gone = stays.swap_remove(place);
            simulation.depart(gone.session);
            simulation.books.get_mut(&gone.session).unwrap().waits = Vec::new();
        }
        simulation.scheduler.forget_idle(simulation.now);
        while stays.len() < crowd {
            let taken: u32 = stays.iter().map(|stay| stay.tenant.quota.share_ppm).sum();
            let others = (crowd - stays.len() - 1) as u32;
            stays.push(Stay::begin(
                &mut simulation,
                &mut dice,
                900_000u32.saturating_sub(taken),
                others,
                rough,
            ));
            arrived += 1;
        }
        counts.insert(stays.len());
        // Measured from when their classes are known until a tenant comes or goes.
        simulation.run_for(3 * SECOND);
        for stay in &mut stays {
            stay.used_before = simulation.books[&stay.session].used_ns;
        }
        let before = simulation.worked_ns();
        let length = if crowd == 64 { 7 } else { 20 + dice.up_to(40) } * SECOND;
        simulation.run_for(length);
        for stay in &stays {
            parts.push(stay.check(&simulation, length, stays.len()));
        }
        if stays.iter().any(Stay::could_use_everything) {
            wanted += length;
            worked += simulation.worked_ns() - before;
        }
    }
    assert!(counts.contains(&2) && counts.contains(&64), "{counts:?}");
    assert!(arrived > 400, "{arrived}");
    // What they got, in thousandths of their due: nearly all of it, and most of it in the worst
    // case.
    parts.sort_unstable();
    let part = |percent: usize| parts[parts.len() * percent / 100];
    let found = [part(0), part(1), part(5), part(50)];
    let least = if rough { [450, 880, 970, 990] } else { [700, 930, 970, 990] };
    assert!(found.iter().zip(least).all(|(found, least)| *found >= least), "{found:?}");
    // Where a tenant could use the whole device, most of it is used. Slicing costs a twentieth
    // here. A sparse tenant that would miss its share keeps others from the time that it leaves
    // idle.
    let part = worked * 100 / wanted;
    assert!(wanted > 600 * SECOND && part >= if rough { 80 } else { 85 }, "{worked} of {wanted}");
}
