//! Threads that are cancelled within driver functions end, and the program continues.

use crate::common::{COMPUTE_LIMIT, MEMORY_LIMIT, Stage, first_device, outcome};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Covers closed gates, reconciliations and waiting calls, where the limiter's work has cancellation points.
///
/// Threads that may be cancelled at any instruction are tested below, with a driver that can be left at any point; with
/// the simulated driver that ends the process even without the limiter.
#[test]
fn threads_cancelled_in_limited_calls() {
    let stage = Stage::new();
    let program = stage.compile("cancel.c", "cancel", &[]);
    let mut command = stage.limited(&program);
    command.env(MEMORY_LIMIT, first_device("2GiB")).env(COMPUTE_LIMIT, first_device(25));
    let outcome = outcome(&mut command).silent();
    assert_eq!(outcome.value("cancelled"), outcome.value("tried"), "{outcome:#?}");
}

/// A call into a driver that is one long cancellation point, with the limiter and without.
struct Points {
    stage: Stage,
}

impl Points {
    fn new() -> Self {
        let stage = Stage::new();
        let library = stage.driver().join("libcuda.so.1");
        fs::remove_file(&library).unwrap();
        let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        symlink(stage.compile("points.c", "points.so", &options), library).unwrap();
        Self { stage }
    }

    /// Whether the call was completed, and whether the thread was cancelled.
    fn cancelled(&self, command: impl Fn(&str) -> Command, arguments: &[&str]) -> (u64, u64) {
        let program = self.stage.compile("cancel_at.c", "cancel_at", &[]);
        let mut command = command(program.to_str().unwrap());
        let outcome = outcome(command.args(arguments).env(MEMORY_LIMIT, first_device("1GiB")));
        let outcome = outcome.silent();
        (outcome.value("ended"), outcome.value("cancelled"))
    }

    fn native(&self, arguments: &[&str]) -> (u64, u64) {
        self.cancelled(|program| self.stage.native(program), arguments)
    }

    fn limited(&self, arguments: &[&str]) -> (u64, u64) {
        self.cancelled(|program| self.stage.limited(program), arguments)
    }
}

#[test]
fn a_call_that_goes_straight_on_is_cancelled_as_without_the_limiter() {
    let points = Points::new();
    for arguments in [&["launch"][..], &["launch", "asynchronous"]] {
        assert_eq!(points.native(arguments), (0, 1));
        assert_eq!(points.limited(arguments), (0, 1));
    }
}

/// The driver's part of the call is completed as well.
#[test]
fn a_call_that_is_accounted_comes_to_its_end_first() {
    let points = Points::new();
    assert_eq!(points.native(&["alloc"]), (0, 1));
    assert_eq!(points.limited(&["alloc"]), (1, 1));
    // The thread ends when the call returns, so the C library does not report it as cancelled.
    assert_eq!(points.limited(&["alloc", "asynchronous"]).0, 0);
}
