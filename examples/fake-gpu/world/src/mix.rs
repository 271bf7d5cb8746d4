//! Programs beside each other on one device, in each way to share it.

use limits::ComputeLimit;
use scheduler::Way;

use crate::dice::Dice;
use crate::program::Program;
use crate::scenario::{Scenario, Tenant};
use crate::world::run;

/// What programs get done beside each other, each in relation to alone. They have equal shares, and may use idle time.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The programs.
    pub programs: Vec<Program>,
    /// With each in its turn.
    pub turns: Vec<f64>,
    /// With all at once.
    pub overlap: Vec<f64>,
    /// In the way that the scheduler chooses.
    pub chosen: Vec<f64>,
}

impl Mix {
    /// Runs `count` random programs for `length` nanoseconds in each way.
    pub fn random(seed: u64, count: usize, length: u64) -> Self {
        let mut dice = Dice::new(seed);
        // What a server gets done follows from its requests.
        let follows = |program: &Program| {
            matches!(program, Program::Server { .. } | Program::Changing { .. })
        };
        let random = core::iter::repeat_with(|| Program::random(&mut dice));
        Self::of(random.filter(|program| !follows(program)).take(count).collect(), seed, length)
    }

    /// Runs these programs.
    pub fn of(programs: Vec<Program>, seed: u64, length: u64) -> Self {
        let got = |programs: &[Program], way| {
            let share_ppm = 1_000_000 / programs.len() as u32;
            let limit = ComputeLimit::balance(share_ppm, 1);
            let tenants = programs.iter().map(|&program| Tenant::new(limit, program).in_stream());
            let (tenants, troubles) = (tenants.collect(), Vec::new());
            let outcome = run(&Scenario { seed, devices: 1, tenants, troubles, length, way });
            outcome.got.values().map(|got| got.used_ns as f64).collect::<Vec<f64>>()
        };
        let alone: Vec<f64> = programs.iter().map(|&program| got(&[program], None)[0]).collect();
        let beside = |way| -> Vec<f64> {
            got(&programs, way).iter().zip(&alone).map(|(got, alone)| got / alone).collect()
        };
        let [turns, overlap] = [Way::Turns, Way::Overlap].map(|way| beside(Some(way)));
        let chosen = beside(None);
        Self { programs, turns, overlap, chosen }
    }

    /// What is got done in the chosen way, in relation to the way in which more gets done and each program gets its
    /// guarantee.
    pub fn of_the_better(&self) -> f64 {
        let sum = |parts: &[f64]| parts.iter().sum::<f64>();
        let guaranteed = 0.96 / self.programs.len() as f64;
        let enough = |(overlap, turns): (&f64, &f64)| *overlap >= guaranteed.min(*turns * 0.96);
        let may_overlap = self.overlap.iter().zip(&self.turns).all(enough);
        let turns = sum(&self.turns);
        sum(&self.chosen) / if may_overlap { turns.max(sum(&self.overlap)) } else { turns }
    }
}
