//! How far a program may launch ahead of the device, with its gate on the thread.

use crate::common::{Busy, COMPUTE_LIMIT, Stage, built, first_device, is_near, outcome};
use limits::env::GATES;
use std::ffi::OsStr;
use std::process::Command;

fn limited(stage: &Stage, program: impl AsRef<OsStr>, percent: u32) -> Command {
    let mut command = stage.limited(program);
    command.env(COMPUTE_LIMIT, first_device(percent)).env(GATES, "thread");
    command
}

/// Kernels completed under a limit, as a percentage of the device's capacity, within two points.
#[track_caller]
fn keeps_its_rate(kernel_us: u32, percent: u32) {
    let stage = Stage::new();
    let mut command = limited(&stage, built("tenant"), percent);
    command.args(["dense", "--kernel-us", &kernel_us.to_string(), "--seconds", "4"]);
    let outcome = outcome(&mut command).silent();
    let part = outcome.percent(f64::from(kernel_us));
    is_near(part, f64::from(percent), 2.0, outcome.busy, &format!("{kernel_us} us"));
}

#[test]
fn a_dense_program_keeps_its_rate_at_an_open_gate() {
    for percent in [95, 99, 100] {
        keeps_its_rate(200, percent);
    }
    keeps_its_rate(800, 100);
}

/// Its thread is away for 9 ms after each 12 ms of work. Natively the device never waits for it.
#[test]
fn a_thread_that_is_away_for_a_while_keeps_its_rate() {
    let stage = Stage::new();
    let program = stage.compile("late.c", "late", &[]);
    let late = ["200", "60", "9", "3"];
    let native = outcome(stage.native(&program).args(late)).silent().value("permille");
    let limited = outcome(limited(&stage, &program, 100).args(late)).silent();
    let (permille, busy) = (limited.value("permille"), limited.busy);
    println!("{permille} of {native} thousandths, {busy:?}");
    let least = busy.least(native as f64, native as f64 * 0.03);
    assert!(permille as f64 >= least, "{permille} of {native} thousandths, {busy:?}");
}

/// In milliseconds: half of the time, and at most.
fn ahead(command: &mut Command) -> (f64, f64, Busy) {
    // The simulated device takes 11 rounds for a microsecond.
    let kernels = ["--kernel-us", "200", "--iterations", "2200"];
    let outcome = outcome(command.arg("ahead").args(kernels).args(["--seconds", "2"])).silent();
    let result = outcome.json();
    let of = |name: &str| result["ahead_ms"][name].as_f64().unwrap();
    println!("{}", result["ahead_ms"]);
    (of("p50"), of("most"), outcome.busy)
}

#[test]
fn as_much_may_be_outstanding_as_the_lease_has_left() {
    let of = |percent| ahead(&mut limited(&Stage::new(), built("tenant"), percent));
    let (half, most, busy) = of(100);
    let least = busy.least(10.0, 0.0);
    assert!(half >= least && most <= 40.0, "{half} ms, at most {most} ms, {busy:?}");
    let (_, most, _) = of(50);
    assert!(most <= 40.0, "at most {most} ms");
}
