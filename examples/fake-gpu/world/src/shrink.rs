//! Reduces a scenario that breaks a promise, as long as it breaks the same one.

use crate::scenario::Scenario;
use crate::watch::{Promise, Violation};
use crate::world::run;

/// The most runs that a reduction takes.
const MOST_RUNS: u32 = 150;

/// The smallest scenario found, and its violation.
pub fn shrink(scenario: &Scenario, violation: Violation) -> (Scenario, Violation) {
    let promise = violation.promise;
    let mut best = (scenario.clone(), violation);
    best.0.length = best.1.at;
    let mut runs = 0;
    loop {
        let smaller = candidates(&best.0);
        let found = smaller.into_iter().find_map(|candidate| {
            runs += 1;
            if runs > MOST_RUNS { None } else { breaks(candidate, promise) }
        });
        match found {
            Some(smaller) => best = smaller,
            None => return best,
        }
    }
}

fn breaks(candidate: Scenario, promise: Promise) -> Option<(Scenario, Violation)> {
    let violation = run(&candidate).violation.filter(|violation| violation.promise == promise)?;
    let length = violation.at;
    Some((Scenario { length, ..candidate }, violation))
}

/// Scenarios with a little less: sessions, processes, troubles.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    for tenant in (0..scenario.tenants.len()).filter(|_| scenario.tenants.len() > 1) {
        // The other sessions keep their numbers.
        if scenario.tenants[tenant].processes > 0 {
            let mut smaller = scenario.clone();
            smaller.tenants[tenant].processes = 0;
            all.push(smaller);
        }
        if scenario.tenants[tenant].processes > 1 {
            let mut smaller = scenario.clone();
            smaller.tenants[tenant].processes = 1;
            all.push(smaller);
        }
        if scenario.tenants[tenant].comes_at > 0 {
            let mut smaller = scenario.clone();
            smaller.tenants[tenant].comes_at = 0;
            all.push(smaller);
        }
    }
    let troubles = scenario.troubles.len();
    for part in [troubles, troubles.div_ceil(2), 1] {
        let mut from = 0;
        while part > 0 && from < troubles {
            let mut smaller = scenario.clone();
            smaller.troubles.drain(from..(from + part).min(troubles));
            all.push(smaller);
            from += part;
        }
    }
    all
}
