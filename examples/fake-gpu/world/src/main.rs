//! Runs random scenarios of a node in virtual time, and prints the first broken promise.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use fake_world::{Scenario, run, shrink};

/// The length of each scenario.
const LENGTH_NS: u64 = 60_000_000_000;
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
}

fn main() -> io::Result<ExitCode> {
    let Arguments { seed, hours, verbose } = Arguments::parse();
    let (mut out, started) = (io::stdout().lock(), Instant::now());
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
