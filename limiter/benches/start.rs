//! What the preloaded library adds to the start of a process that never calls CUDA: pairs of runs of
//! `true`, with and without, in turn. Needs the library built in the same profile:
//! `cargo build --release -p cuda-limiter && cargo bench -p cuda-limiter --bench start`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints its result")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PAIRS: usize = 400;

fn start(library: Option<&Path>) -> Duration {
    let mut command = Command::new("/bin/true");
    if let Some(library) = library {
        command
            .env("LD_PRELOAD", library)
            .env("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": 1073741824}"#);
    }
    let begun = Instant::now();
    assert!(command.status().unwrap().success());
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let folder = std::env::current_exe().unwrap();
    let library = folder.parent().unwrap().parent().unwrap().join("libcuda_limiter.so");
    assert!(library.exists(), "{} is missing: build cuda-limiter first", library.display());
    let (mut plain, mut preloaded, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let without = start(None);
        let with = start(Some(&library));
        plain.push(without);
        preloaded.push(with);
        added.push(with.saturating_sub(without));
    }
    let (plain, preloaded, added) = (median(plain), median(preloaded), median(added));
    println!(
        "start of a process: {plain:?} plain, {preloaded:?} preloaded; median of {PAIRS} pairs: {added:?} more"
    );
}
