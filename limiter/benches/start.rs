//! What the preloaded library adds to the start of a process. Runs with and without it alternate, in pairs.
//! One process never calls CUDA (`true`). The other has as many mappings as a large framework, and is
//! measured from the loading of the driver to its first context.
//!
//! On the simulated driver: `cargo build --release --workspace && cargo bench -p cuda-limiter --bench start`.
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
use std::process::{Command, Stdio};

fn milliseconds(from: core::time::Duration) -> f64 {
    (now() - from).as_secs_f64() * 1e3
}

/// Makes as many mappings as the first argument says, apart from each other, and prints how long the driver
/// takes.
fn work(arguments: &[String]) {
    let mappings: usize = arguments[0].parse().unwrap();
    for index in 0..mappings {
        // Neighbours with the same protection would become one mapping.
        let protection = if index % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of the kernel's choice.
        let page = unsafe { libc::mmap(core::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "only {index} mappings");
    }
    let begun = now();
    let _driver = Driver::start();
    println!("{}", milliseconds(begun));
}

/// The time until `true` has ended.
fn nothing(limiter: Option<&Path>) -> f64 {
    let mut command = Command::new("/bin/true");
    command.env_remove("LD_PRELOAD");
    if let Some(limiter) = limiter {
        command
            .env("LD_PRELOAD", limiter)
            .env("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 1073741824}"#);
    }
    let begun = now();
    assert!(command.status().unwrap().success());
    milliseconds(begun)
}

/// The time from the loading of the driver to a context.
fn driver(options: &Options, session: Option<&Path>, mappings: usize) -> f64 {
    let mut command = options.copy(session, &[&mappings.to_string()]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().unwrap_or_else(|_| {
        panic!("{}: {said:?} {}", output.status, String::from_utf8_lossy(&output.stderr))
    })
}

fn compare(what: &str, pairs: usize, mut run: impl FnMut(bool) -> f64) {
    let times: Vec<_> = (0..pairs).map(|_| (run(false), run(true))).collect();
    let plain = median(times.iter().map(|pair| pair.0).collect());
    let limited = median(times.iter().map(|pair| pair.1).collect());
    let added = median(times.iter().map(|pair| pair.1 - pair.0).collect());
    println!(
        "{what}: {plain:.2} ms native, {limited:.2} ms preloaded ({:.2} x); \
         median of {pairs} pairs: {added:.2} ms more",
        limited / plain
    );
}

fn main() {
    if let Some(arguments) = driver::worker() {
        return work(&arguments);
    }
    let options = Options::new(400, "64GiB");
    let mappings = options.count.unwrap_or(2000);
    compare("a process without CUDA", options.pairs, |limited| {
        nothing(limited.then_some(options.limiter()))
    });
    for mappings in [0, mappings] {
        let what = format!("the driver's start in a process with {mappings} mappings");
        compare(&what, options.pairs.div_ceil(10), |limited| {
            let session = limited.then(driver::session);
            driver(&options, session.as_ref().map(|session| session.path()), mappings)
        });
    }
}
