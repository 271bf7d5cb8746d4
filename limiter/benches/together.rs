//! Processes that start together on one device: the time from the start of the first one to the context of the last
//! one. For one process and for 64, with and without the limiter in turn.
//!
//! On the simulated driver: `cargo build --release --workspace && cargo bench -p cuda-limiter --bench together`. On a
//! real one: the built program with `--driver system --limiter PATH`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark prints its result"
)]
#![allow(unreachable_pub, dead_code, reason = "each benchmark uses its part of the module")]

mod driver;

use driver::{Driver, Options, median, now};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

fn work() {
    let _driver = Driver::start();
    println!("{}", now().as_nanos());
    // Keep the context until all processes have theirs.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Milliseconds until the last of `count` processes has its context.
fn start(options: &Options, session: Option<&Path>, count: usize) -> f64 {
    let begun = now().as_nanos();
    let mut workers: Vec<_> =
        (0..count).map(|_| options.copy(session, &[]).spawn().unwrap()).collect();
    let last = workers.iter_mut().map(|worker| {
        let mut line = String::new();
        BufReader::new(worker.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().parse::<u128>().unwrap_or_else(|_| panic!("a process has no context: {line:?}"))
    });
    let took = (last.max().unwrap() - begun) as f64 / 1e6;
    for mut worker in workers {
        drop(worker.stdin.take());
        assert!(worker.wait().unwrap().success());
    }
    took
}

fn main() {
    if driver::worker().is_some() {
        return work();
    }
    let options = Options::new(5, "64GiB");
    let many = options.count.unwrap_or(64);
    let cores = std::thread::available_parallelism().unwrap();
    let times = |count: usize, pairs: usize| {
        let (mut plain, mut limited) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let session = driver::session();
            plain.push(start(&options, None, count));
            limited.push(start(&options, Some(session.path()), count));
        }
        (median(plain), median(limited))
    };
    let one = times(1, options.pairs * 4);
    let all = times(many, options.pairs);
    println!(
        "on {cores} cores, until the last has its context; medians of {} pairs",
        options.pairs
    );
    for (count, (plain, limited)) in [(1, one), (many, all)] {
        println!(
            "{count} at once: {plain:.1} ms native, {limited:.1} ms limited ({:.2} x)",
            limited / plain
        );
    }
    let rounds = many.div_ceil(cores.get()) as f64;
    println!(
        "{many} at once take {:.2} x as long as one would {rounds} times (native: {:.2} x)",
        all.1 / (one.1 * rounds),
        all.0 / (one.0 * rounds),
    );
}
