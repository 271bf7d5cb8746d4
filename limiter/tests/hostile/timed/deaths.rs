//! Programs that launch and die at once, again and again. Other lifetimes and kernel lengths are tested in virtual time
//! (`fake-world`, `deaths`).

use super::device_time::{Device, daemon};
use crate::common::{COMPUTE_LIMIT, Stage, first_device, outcome, start};
use limits::env::GATES;
use std::path::Path;
use std::time::Duration;

/// In percentage points.
const TOLERANCE: f64 = 2.0;

/// The percentage of the device's time that a session of 5 % gets if its programs launch `ms` of kernels of `us` and
/// then die, `many` at the same time.
fn percent(stage: &Stage, how: &str, many: &str, ms: &str, us: &str, daemon: Option<&Path>) -> f64 {
    let program = stage.compile("dies.c", "dies", &[]);
    let device = Device::of(stage);
    let mut command = stage.limited(&program);
    command.env(COMPUTE_LIMIT, first_device(5));
    if let Some(socket) = daemon {
        command.env("SLUICE_DAEMON", socket);
    }
    let running = start(command.args([how, many, "60", ms, us]));
    // Skip the time that was saved up.
    let _ = device.watch(&[], Duration::from_secs(1));
    let worked = device.watch(&[], Duration::from_secs(8));
    running.kill();
    let outcome = running.end();
    // A daemon whose answer a busy machine held up for long is taken for one that is gone.
    let is_held_up = outcome.busy.longest > Duration::from_millis(20);
    let is_silent = outcome.said().is_empty() || daemon.is_some() && is_held_up;
    assert!(outcome.code() == 1009 && is_silent, "{outcome:#?}");
    println!("{how} {many} {ms} ms of {us} us: {:.2} %", worked.all);
    worked.all
}

/// It gets next to nothing more than its share, and it does get something: at a twentieth, long kernels are so rare
/// that there may be none for a while.
#[track_caller]
fn holds(how: &str, many: &str, ms: &str, us: &str) {
    let gets_something = (0..3).any(|_| {
        let worked = percent(&Stage::new(), how, many, ms, us, None);
        assert!(worked <= 5.0 + TOLERANCE, "{how} {many} {ms} {us}: {worked:.2} %");
        worked >= 0.5
    });
    assert!(gets_something, "{how} {many} {ms} {us}");
}

#[test]
fn a_loop_of_programs_that_are_killed() {
    holds("exec-kill", "1", "30", "1000");
}

#[test]
fn a_loop_of_programs_that_exit_at_once() {
    holds("exec-_exit", "1", "30", "30000");
}

/// Work queued at a program's gate is released when the program ends, and charged: however little of it the driver
/// still executes, no more programs end than their time allows. The first ones may be ahead by the work that may be
/// queued, and the last one is charged after it has ended.
#[test]
fn a_loop_of_programs_that_end_with_work_queued() {
    const QUEUED_MS: f64 = 100.0;
    const WORK_MS: f64 = 90.0;
    for gates in ["thread", "stream"] {
        let stage = Stage::new();
        let program = stage.compile("dies.c", "dies", &[]);
        let mut command = stage.limited(&program);
        command.args(["exec-exit", "1", "12", "90", "1000"]).env("SLUICE_FAKE_CONTEXT", "8MiB");
        command.env(COMPUTE_LIMIT, first_device(5)).env(GATES, gates);
        let outcome = outcome(&mut command).silent();
        let launched_ms = outcome.value("died") as f64 * WORK_MS - WORK_MS - QUEUED_MS;
        let percent = launched_ms / outcome.took.as_secs_f64() / 10.0;
        println!("gate on the {gates}: {percent:.2} %");
        assert!(percent <= 5.0 + TOLERANCE, "{gates}: {percent:.2} %");
    }
}

#[test]
fn forked_children_that_are_killed() {
    holds("kill", "1", "300", "300000");
}

#[test]
fn fifty_at_once() {
    holds("kill", "50", "30", "1000");
    holds("exec-kill", "50", "300", "300000");
}

/// Nobody notices that such a process no longer does anything, and its kernel runs on.
#[test]
fn programs_that_are_stopped_while_they_hold_a_lease() {
    holds("exec-stop", "1", "300", "300000");
    holds("stop", "1", "30", "1000");
}

#[test]
fn exit_handlers_that_launch() {
    holds("exec-handler", "1", "300", "1000");
    holds("exec-handler", "4", "3000", "1000");
}

#[test]
fn under_a_daemon() {
    for (how, many) in [("exec-kill", "1"), ("kill", "20"), ("exec-handler", "2")] {
        let stage = Stage::new();
        let (socket, daemon) = daemon(&stage);
        let worked = percent(&stage, how, many, "300", "300000", Some(&socket));
        daemon.kill();
        assert!((0.2..=5.0 + TOLERANCE).contains(&worked), "{how} {many}: {worked:.2} %");
    }
}
