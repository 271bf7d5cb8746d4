//! What the preloaded library adds to the start of a process. Runs with and without it alternate, in pairs. One kind of
//! process never calls CUDA (`true`). The others have no mappings of their own, as many as a large framework, or
//! 20,000; the last also with new small mappings made far from the driver. Those are measured from loading the driver
//! to the first context: wall time, and the CPU time of the process while the driver is loaded and patched, and in the
//! first calls.
//!
//! On the simulated driver: `cargo build --release --workspace && cargo bench -p cuda-limiter --bench start`. On a real
//! one: the built program with `--driver system --limiter PATH`.
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

/// The CPU time of this process (all threads).
fn worked() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e3 + used.tv_nsec as f64 / 1e6
}

/// The cost of starting the driver, in milliseconds.
#[derive(Clone, Copy)]
struct Start {
    /// Wall time until there is a context.
    passed: f64,
    /// CPU time while the driver is loaded and patched.
    loading: f64,
    /// CPU time of the calls up to the first context.
    calls: f64,
}

/// Leaves gaps for small mappings, and 3 GiB between them and all later mappings: more than a jump reaches.
fn leave_gaps() {
    let map = |length| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: memory of the kernel's choice.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start
    };
    let gaps = map(64 << 20);
    for gap in 0..64 {
        // SAFETY: a part of what was just mapped.
        unsafe { libc::munmap(gaps.byte_add(gap << 20), 32 << 10) };
    }
    map(3 << 30);
}

/// Makes as many separate mappings as the first argument says, and prints the cost of starting the driver. With a
/// second argument, later small mappings lie far away from it.
fn work(arguments: &[String]) {
    let mappings: usize = arguments[0].parse().unwrap();
    // These fill gaps of a page; the gaps for later mappings are larger.
    let length = if arguments.len() > 1 { 64 << 10 } else { 4096 };
    if arguments.len() > 1 {
        leave_gaps();
    }
    for index in 0..mappings {
        // The kernel would merge neighbours with the same protection.
        let protection = if index % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of the kernel's choice.
        let page = unsafe { libc::mmap(core::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "only {index} mappings");
    }
    let (begun, before) = (now(), worked());
    driver::load();
    let loaded = worked();
    let _driver = Driver::start();
    println!("{} {} {}", milliseconds(begun), loaded - before, worked() - loaded);
}

/// The time of a whole run of `true`.
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

/// The times from loading the driver to a context.
fn driver(options: &Options, session: Option<&Path>, mappings: usize, far: bool) -> Start {
    let mappings = mappings.to_string();
    let arguments = [&*mappings, "far"];
    let mut command = options.copy(session, if far { &arguments } else { &arguments[..1] });
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let times: Vec<f64> = said.split_whitespace().filter_map(|time| time.parse().ok()).collect();
    let [passed, loading, calls] = times[..] else {
        panic!("{}: {said:?} {}", output.status, String::from_utf8_lossy(&output.stderr))
    };
    Start { passed, loading, calls }
}

/// Prints the medians without the limiter and with it.
fn tell(what: &str, times: &[(f64, f64)]) {
    let plain = median(times.iter().map(|pair| pair.0).collect());
    let limited = median(times.iter().map(|pair| pair.1).collect());
    let added = median(times.iter().map(|pair| pair.1 - pair.0).collect());
    println!(
        "{what}: {plain:.2} ms native, {limited:.2} ms preloaded ({:.2} x); \
         median of {} pairs: {added:.2} ms more",
        limited / plain,
        times.len()
    );
}

fn main() {
    if let Some(arguments) = driver::worker() {
        return work(&arguments);
    }
    let options = Options::new(400, "64GiB");
    let pairs: Vec<_> =
        (0..options.pairs).map(|_| (nothing(None), nothing(Some(options.limiter())))).collect();
    tell("a process without CUDA", &pairs);
    let most = options.count.unwrap_or(20_000);
    let counts = options.count.map_or(vec![0, 2000, most], |count| vec![0, count]);
    for (mappings, far) in counts.into_iter().map(|count| (count, false)).chain([(most, true)]) {
        let pairs: Vec<_> = (0..options.pairs.div_ceil(10))
            .map(|_| {
                let session = driver::session();
                let limited = |session| driver(&options, session, mappings, far);
                (limited(None), limited(Some(session.path())))
            })
            .collect();
        let far = if far { " and gaps far from it" } else { "" };
        let what = format!("the driver's start in a process with {mappings} mappings{far}");
        let of = |part: fn(Start) -> f64| -> Vec<_> {
            pairs.iter().map(|&(plain, limited)| (part(plain), part(limited))).collect()
        };
        tell(&what, &of(|start| start.passed));
        tell("    CPU time, the driver loaded", &of(|start| start.loading));
        tell("    CPU time, cuInit and a context", &of(|start| start.calls));
    }
}
