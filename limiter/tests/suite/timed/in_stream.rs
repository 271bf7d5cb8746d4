//! Gates in the stream (`SLUICE_GATES=stream`): the program goes on launching while its gate is closed.

use crate::common::{COMPUTE_LIMIT, Stage, built, first_device, outcome};
use limits::env::GATES;
use std::process::Command;

/// Kernels per second without the limiter, and the percentage of that under a limit, with the pauses of the latter.
fn delivered(percent: u32, options: &[&str]) -> (f64, u64) {
    let stage = Stage::new();
    let run = |command: &mut Command| {
        let dense = ["dense", "--kernel-us", "200", "--seconds", "3"];
        outcome(command.args(dense).args(options)).silent()
    };
    let native = run(&mut stage.native(built("tenant")));
    let mut command = stage.limited(built("tenant"));
    let limited = run(command.env(COMPUTE_LIMIT, first_device(percent)).env(GATES, "stream"));
    let pauses = limited.json()["pauses"]["count"].as_u64().unwrap();
    let part = limited.rate() / native.rate() * 100.0;
    println!("{percent} % {options:?}: {part:.2} % of native, {pauses} pauses");
    (part, pauses)
}

/// With its gate on the thread such a program loses some percent on a busy machine: whenever the thread is late, the
/// little that may be outstanding is used up.
#[test]
fn an_open_gate_costs_nothing() {
    let (part, pauses) = delivered(100, &[]);
    assert!(part >= 98.5 && pauses <= 10, "{part:.2} %, {pauses} pauses");
}

#[test]
fn a_share_is_kept_for_every_way_to_launch() {
    for options in
        [&["--pattern", "kernel"][..], &["--pattern", "graph"], &["--pattern", "multistream"]]
    {
        let (part, _) = delivered(50, options);
        assert!((44.0..=53.0).contains(&part), "{options:?}: {part:.2} %");
    }
}

/// Where the device has no such operations the thread waits.
#[test]
fn without_the_operations_the_gate_is_on_the_thread() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(50)).env(GATES, "stream");
    command.env("SLUICE_FAKE_MEMORY_OPS", "0").env("SLUICE_LOG", "info");
    let limited = outcome(command.args(["dense", "--kernel-us", "200", "--seconds", "3"]));
    assert_eq!(limited.code(), 0, "{limited:#?}");
    let rate = limited.rate();
    assert!((2_000.0..=2_700.0).contains(&rate), "{rate} of 5000 kernels a second");
    assert!(limited.stderr.contains("a stream cannot wait for its gate"), "{limited:#?}");
}
