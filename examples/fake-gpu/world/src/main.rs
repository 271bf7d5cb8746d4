//! Runs random scenarios of a node in virtual time, and prints the first broken promise.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use fake_world::{Mix, Scenario, run, shrink};

/// The length of each scenario.
const LENGTH_NS: u64 = 60_000_000_000;
/// The length of each mix: several trials of both ways.
const MIX_NS: u64 = 12_000_000_000;
const HOUR_NS: f64 = 3.6e12;

/// Explore what can happen on a node, in virtual time.
#[derive(Parser)]
struct Arguments {
    /// Seed of the first scenario; the next one has the next number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual hours; each scenario is a sixtieth of one.
    #[arg(long, default_value_t = 0.5)]
    hours: f64,
    /// Print what each session got.
    #[arg(long)]
    verbose: bool,
    /// Run this many random mixes of programs instead, in each way to share a device.
    #[arg(long)]
    mixes: Option<u64>,
    /// Programs in each mix.
    #[arg(long, default_value_t = 2)]
    programs: usize,
}

fn main() -> io::Result<ExitCode> {
    let Arguments { seed, hours, verbose, mixes, programs } = Arguments::parse();
    let (mut out, started) = (io::stdout().lock(), Instant::now());
    if let Some(count) = mixes {
        return try_mixes(&mut out, seed..seed + count, programs, verbose);
    }
    let scenarios = (hours * HOUR_NS / LENGTH_NS as f64).ceil().max(1.0) as u64;
    for seed in seed..seed + scenarios {
        let scenario = Scenario::random(seed, LENGTH_NS);
        let outcome = run(&scenario);
        let sessions = scenario.tenants.len();
        writeln!(
            out,
            "seed {seed}: {} devices, {sessions} sessions, {} troubles, {} events, digest {:016x}",
            scenario.devices,
            scenario.troubles.len(),
            outcome.events,
            outcome.digest
        )?;
        if verbose {
            for ((session, device), got) in &outcome.got {
                let tenant = &scenario.tenants[*session];
                writeln!(out, "  session {session}, device {device}: {got:?}, {tenant:?}")?;
            }
        }
        if let Some(violation) = outcome.violation {
            writeln!(out, "{violation}")?;
            let (smaller, violation) = shrink(&scenario, violation);
            writeln!(out, "as small as it gets, {} devices:", smaller.devices)?;
            for (number, tenant) in smaller.tenants.iter().enumerate() {
                if tenant.processes > 0 {
                    writeln!(out, "  session {number}: {tenant:?}")?;
                }
            }
            for (at, trouble) in &smaller.troubles {
                writeln!(out, "  at {at} ns: {trouble:?}")?;
            }
            writeln!(out, "{violation}")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let took = started.elapsed().as_secs_f64();
    let done = scenarios as f64 * LENGTH_NS as f64 / HOUR_NS;
    // Not on standard output: that is the same for the same seed.
    writeln!(
        io::stderr(),
        "{done:.1} virtual hours in {took:.1} s, {:.2} in each second",
        done / took
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Prints how the chosen way compares with the better one.
fn try_mixes(
    out: &mut impl Write,
    seeds: Range<u64>,
    programs: usize,
    verbose: bool,
) -> io::Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut of_the_better = Vec::new();
    let seeds: Vec<u64> = seeds.collect();
    for some in seeds.chunks(4 * threads) {
        let mixes: Vec<(u64, Mix)> = std::thread::scope(|scope| {
            let run = |seed: &u64| {
                let seed = *seed;
                scope.spawn(move || (seed, Mix::random(seed, programs, MIX_NS)))
            };
            let runs: Vec<_> = some.iter().map(run).collect();
            runs.into_iter().filter_map(|run| run.join().ok()).collect()
        });
        for (seed, mix) in mixes {
            if verbose {
                let Mix { programs, turns, overlap, chosen } = &mix;
                writeln!(
                    out,
                    "seed {seed}: {:.3} of the better way; turns {turns:.3?}, overlap \
                     {overlap:.3?}, chosen {chosen:.3?}: {programs:?}",
                    mix.of_the_better()
                )?;
            }
            of_the_better.push(mix.of_the_better());
        }
    }
    of_the_better.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (part * of_the_better.len() as f64) as usize;
        of_the_better.get(place).copied().unwrap_or(f64::NAN)
    };
    writeln!(
        out,
        "{} mixes of {programs}, chosen way in relation to the better one: worst {:.3}, 1st \
         percentile {:.3}, 10th {:.3}, median {:.3}",
        of_the_better.len(),
        at(0.0),
        at(0.01),
        at(0.1),
        at(0.5)
    )?;
    Ok(ExitCode::SUCCESS)
}
