//! What the limiter adds to `cuMemAlloc` and `cuMemFree`, and to `cuMemGetInfo`. Runs with and without the
//! limiter alternate, each in a process of its own.
//!
//! On the simulated driver: `cargo build --release --workspace && cargo bench -p cuda-limiter --bench alloc`.
//! On a real one: the built program with `--driver system --limiter PATH`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark prints its result"
)]
#![allow(unreachable_pub, dead_code, reason = "each benchmark uses its part of the module")]

mod driver;

use driver::{Driver, Options, median, now};
use std::path::Path;

/// Calls between two readings of the clock.
const BLOCK: usize = 100;
/// Sizes in bytes: one allocation that shares pages, one of whole pages.
const SIZES: [usize; 2] = [4096, 2 << 20];

/// Nanoseconds per call: the median over blocks.
fn time(calls: usize, call: impl Fn()) -> f64 {
    let block = || {
        let begun = now();
        for _ in 0..BLOCK {
            call();
        }
        (now() - begun).as_nanos() as f64 / BLOCK as f64
    };
    block();
    median((0..calls.div_ceil(BLOCK)).map(|_| block()).collect())
}

/// Only allocates and frees, for a tool that counts instructions.
fn count_instructions(driver: &Driver, calls: usize) {
    for _ in 0..calls {
        driver.pair(SIZES[1]);
    }
}

fn work(arguments: &[String]) {
    let driver = Driver::start();
    let calls: usize = arguments[0].parse().unwrap();
    if arguments.get(1).is_some_and(|what| what == "only-pairs") {
        return count_instructions(&driver, calls);
    }
    for bytes in SIZES {
        println!("{}", time(calls, || driver.pair(bytes)));
    }
    println!(
        "{}",
        time(calls, || {
            let _ = driver.sizes();
        })
    );
}

/// The result of one run: nanoseconds for each measurement.
fn run(options: &Options, session: Option<&Path>) -> Vec<f64> {
    let calls = options.count.unwrap_or(20_000).to_string();
    let output = options.copy(session, &[&calls]).spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().unwrap()).collect()
}

fn main() {
    if let Some(arguments) = driver::worker() {
        return work(&arguments);
    }
    let options = Options::new(10, "8GiB");
    let session = driver::session();
    let (mut plain, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        plain.push(run(&options, None));
        limited.push(run(&options, Some(session.path())));
    }
    let names =
        ["cuMemAlloc + cuMemFree of 4 KiB", "cuMemAlloc + cuMemFree of 2 MiB", "cuMemGetInfo"];
    for (number, name) in names.iter().enumerate() {
        let of = |runs: &[Vec<f64>]| median(runs.iter().map(|run| run[number]).collect());
        let added =
            plain.iter().zip(&limited).map(|(plain, limited)| limited[number] - plain[number]);
        let (plain, limited, added) = (of(&plain), of(&limited), median(added.collect()));
        println!(
            "{name}: {plain:.0} ns native, {limited:.0} ns limited, {added:.0} ns more ({:.2} x); medians of {} pairs",
            limited / plain,
            options.pairs
        );
    }
}
