//! Copies and fills take a share of the device's time, and their results are the same as without a limit. These
//! measure, so run one test at a time.

use crate::common::{Busy, COMPUTE_LIMIT, Outcome, Stage, built, first_device, is_near, outcome};
use std::collections::BTreeSet;

/// In percentage points.
const TOLERANCE: f64 = 5.0;
/// Copies of 1 MiB per second on the simulated device, over its bus and within it. It moves 1 and 2 bytes per
/// nanosecond and takes a microsecond to start.
const OVER_THE_BUS: f64 = 1e9 / (1_000.0 + 1_048_576.0);
const WITHIN: f64 = 1e9 / (1_000.0 + 524_288.0);

#[track_caller]
fn gets_its_share(percent: u32, api: &str, device: f64, options: &[&str]) {
    let (delivered, busy) = delivered(percent, api, device, options);
    is_near(delivered, f64::from(percent), TOLERANCE, busy, &format!("{api} {options:?}"));
}

/// A thread that makes the next copy when the previous one is done loses time on a busy machine at each wake-up.
#[track_caller]
fn gets_no_more(percent: u32, api: &str, device: f64, options: &[&str]) {
    let (delivered, busy) = delivered(percent, api, device, options);
    let (least, most) =
        (busy.least_in_turn(f64::from(percent) / 2.0, 0.0), f64::from(percent) + TOLERANCE);
    println!("{api}: {delivered:.2} of {percent}, {least:.1} to {most:.1}; {busy:?}");
    assert!((least..=most).contains(&delivered), "{api}: {delivered:.2}, {busy:?}");
}

/// Percent of the device's capacity.
fn delivered(percent: u32, api: &str, device: f64, options: &[&str]) -> (f64, Busy) {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(percent));
    command.args(["copy", "--bytes", "1MiB", "--api", api, "--seconds", "3"]).args(options);
    let outcome = outcome(&mut command).silent();
    (outcome.rate() / device * 100.0, outcome.busy)
}

#[test]
fn copies_within_the_device_get_their_share() {
    gets_its_share(25, "dtod", WITHIN, &[]);
    gets_its_share(50, "dtod", WITHIN, &[]);
    gets_its_share(50, "dtod", WITHIN, &["--ptsz"]);
    gets_its_share(25, "any", WITHIN, &[]);
}

#[test]
fn copies_of_rows_and_layers_get_their_share() {
    gets_its_share(50, "rows", WITHIN, &[]);
    gets_its_share(25, "layers", WITHIN, &["--ptsz"]);
}

#[test]
fn fills_get_their_share() {
    gets_its_share(25, "memset", WITHIN, &[]);
    gets_its_share(50, "memset", WITHIN, &["--ptsz"]);
    gets_its_share(25, "memset-sync", WITHIN, &[]);
}

#[test]
fn copies_over_the_bus_get_their_share() {
    gets_its_share(25, "htod", OVER_THE_BUS, &[]);
    gets_its_share(50, "htod", OVER_THE_BUS, &["--ptsz"]);
    gets_its_share(25, "dtoh", OVER_THE_BUS, &[]);
}

/// One copy at a time, in the default stream that the names imply.
#[test]
fn copies_that_are_waited_for_get_no_more_than_their_share() {
    gets_no_more(25, "htod-sync", OVER_THE_BUS, &[]);
    gets_no_more(25, "dtoh-sync", OVER_THE_BUS, &["--ptsz"]);
}

/// Runs the program `copies` without a limit and under one.
fn program(arguments: &[&str], percent: u32) -> (Outcome, Outcome) {
    let stage = Stage::new();
    let program = stage.compile("copies.c", "copies", &[]);
    let native = outcome(stage.native(&program).args(arguments)).silent();
    let mut command = stage.limited(&program);
    let limited = outcome(command.args(arguments).env(COMPUTE_LIMIT, first_device(percent)));
    (native, limited.silent())
}

/// The rate of copies under a limit of 10 %, as a fraction of the rate without.
#[track_caller]
fn rate_between(how: &str, from: &str, to: &str) -> f64 {
    let (native, limited) = program(&["anywhere", how, from, to, "1"], 10);
    let (native, limited) = (native.value("copies"), limited.value("copies"));
    println!("{how} from {from} to {to}: {limited} of {native}");
    limited as f64 / native as f64
}

#[test]
fn copies_within_the_host_are_neither_gated_nor_charged() {
    for (how, from, to) in [
        ("copy", "pageable", "pageable"),
        ("async", "pinned", "pinned"),
        ("rows", "pageable", "pinned"),
        ("half", "pinned", "pageable"),
    ] {
        let rate = rate_between(how, from, to);
        // With a gate it would be 0.1. The processor copies, for one of the two after the other.
        assert!(rate > 0.3, "{how} from {from} to {to}: {rate:.2} of what is done without a limit");
    }
}

#[test]
fn copies_that_reach_a_device_or_may_are_charged_whatever_function_makes_them() {
    for (how, from, to) in [
        ("copy", "pageable", "device"),
        ("copy", "managed", "pageable"),
        ("async", "device", "device"),
        ("rows", "pinned", "managed"),
        ("half", "device", "pageable"),
    ] {
        let rate = rate_between(how, from, to);
        assert!(rate < 0.3, "{how} from {from} to {to}: {rate:.2} of what is done without a limit");
    }
}

/// The patched functions that copy or fill, from the documentation, which is generated from the table.
fn patched() -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hooks.md");
    let families = [
        "cuMemcpy",
        "cuMemset",
        "cuMemPrefetch",
        "cuMemDiscardAndPrefetch",
        "cuMemBatchDecompress",
    ];
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .filter_map(|line| line.split('`').nth(3))
        .filter(|symbol| families.iter().any(|family| symbol.starts_with(family)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_function_does_what_it_does_without_a_limit() {
    let (native, limited) = program(&["every"], 10);
    assert_eq!(limited.stdout, native.stdout);

    let called: BTreeSet<String> = native
        .stdout
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(symbol, _)| symbol.to_owned())
        .collect();
    assert_eq!(called, patched(), "every patched function is called, and no other");

    // The first call of each copy and fill has succeeded.
    let mut seen = BTreeSet::new();
    for line in native.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let moves = words[0].starts_with("cuMemcpy") || words[0].starts_with("cuMemset");
        if moves && seen.insert(words[0]) {
            assert_eq!(words[1..3], ["0", "changed"], "{line}");
        }
    }
    assert!(native.stdout.contains("failed=1\n"), "{}", native.stdout);
}

#[test]
fn copies_in_a_capture_are_left_to_the_graph() {
    let (native, limited) = program(&["capture", "2"], 25);
    for outcome in [&native, &limited] {
        assert_eq!((outcome.value("wrong"), outcome.value("failed")), (0, 0), "{outcome:#?}");
    }
    // Around each of them the program waits three times for the queued work of its other thread, up to 100 ms of the
    // device's time.
    assert!(limited.value("captures") > 0, "{limited:#?}");
}

#[test]
fn what_a_capture_forbids_has_the_same_result() {
    let (native, limited) = program(&["forbidden"], 1);
    assert!(native.stdout.contains("to_device=900 end=901"), "{native:#?}");
    assert_eq!(limited.stdout, native.stdout);
}
