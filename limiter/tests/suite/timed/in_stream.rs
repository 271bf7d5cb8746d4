//! Gates in the stream: the program continues to launch while its gate is closed.

use crate::common::{COMPUTE_LIMIT, Outcome, Stage, built, first_device, is_near, outcome};
use limits::env::GATES;

const KERNEL_US: f64 = 200.0;

fn dense(percent: u32, options: &[&str]) -> Outcome {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(percent)).env(GATES, "stream");
    command.args(["dense", "--kernel-us", "200", "--seconds", "3"]);
    outcome(command.args(options)).silent()
}

/// With its gate on the thread such a program loses a few percent on a busy machine: whenever the thread is late, the
/// little work that may be outstanding is used up.
#[test]
fn an_open_gate_costs_nothing() {
    let outcome = dense(100, &[]);
    let (part, busy) = (outcome.percent(KERNEL_US), outcome.busy);
    is_near(part, 100.0, 1.5, busy, "an open gate");
    // Each time that the witness was late, the program may have been late too.
    let pauses = outcome.json()["pauses"]["count"].as_u64().unwrap();
    assert!(pauses <= 10 + busy.times, "{pauses} pauses, {busy:?}");
}

#[test]
fn a_share_is_kept_for_every_way_to_launch() {
    for options in
        [&["--pattern", "kernel"][..], &["--pattern", "graph"], &["--pattern", "multistream"]]
    {
        let outcome = dense(50, options);
        let part = outcome.percent(KERNEL_US);
        is_near(part, 50.0, 6.0, outcome.busy, &options.join(" "));
    }
}

/// If the device has no such stream operations, the thread waits.
#[test]
fn without_the_operations_the_gate_is_on_the_thread() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(50)).env(GATES, "stream");
    command.env("SLUICE_FAKE_MEMORY_OPS", "0").env("SLUICE_LOG", "info");
    let limited = outcome(command.args(["dense", "--kernel-us", "200", "--seconds", "3"]));
    assert_eq!(limited.code(), 0, "{limited:#?}");
    is_near(limited.percent(KERNEL_US), 50.0, 6.0, limited.busy, "gate on the thread");
    assert!(limited.stderr.contains("its thread does: the driver refuses a wait"), "{limited:#?}");
}

/// A program that launches each step from two threads, and waits for another stream in it: work that has begun may wait
/// for held work. Judged by the device's time that its kernels took, which no load on the machine increases.
#[test]
fn steps_of_two_threads_and_streams_keep_a_share() {
    const STEP_US: f64 = 84.0 * 100.0;
    for percent in [50, 25, 100] {
        let stage = Stage::new();
        let mut command = stage.limited(stage.compile("training.c", "training", &[]));
        command.args(["3", "100"]).env(COMPUTE_LIMIT, first_device(percent)).env(GATES, "stream");
        let limited = outcome(&mut command).silent();
        let (part, wanted) = (limited.percent(STEP_US), f64::from(percent));
        let least = limited.busy.least_in_turn(wanted, wanted * 0.4);
        println!("{percent} %: {part:.2} %, longest steps {}", limited.json()["longest_ms"]);
        assert!(
            (least..=wanted * 1.08).contains(&part),
            "{percent} %: {part:.2} %, not {least:.2}"
        );
    }
}
