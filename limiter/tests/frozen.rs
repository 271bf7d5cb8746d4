//! A daemon that stands still for seconds and goes on.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]
#![allow(clippy::print_stdout, reason = "figures, shown where a test fails")]

mod common;

use common::{
    COMPUTE_LIMIT, Outcome, Running, SESSION_DIR, Stage, UUIDS, built, eventually, first_device,
    outcome, start,
};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const DAEMON: &str = "SLUICE_DAEMON";
const NAMES: [&str; 2] = ["one", "two"];
const SHARE: f64 = 40.0;
/// How often a tenant tells of its progress.
const QUARTER: Duration = Duration::from_millis(250);

/// A daemon that listens; it ends with the test.
fn daemon(stage: &Stage, socket: &Path) -> Running {
    let mut command = stage.native(built("hypervisor"));
    let running = start(command.args(["daemon", "--log", "warn", "--socket"]).arg(socket));
    eventually("the daemon listens", || UnixStream::connect(socket).is_ok());
    running
}

fn socket(stage: &Stage) -> PathBuf {
    stage.folder().join("daemon.sock")
}

/// Microseconds that each session has been charged by the daemon.
fn charged(socket: &Path) -> Option<[u64; 2]> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream
        .write_all(b"GET /v1/status HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let body = &answer[answer.find('{')?..=answer.rfind('}')?];
    let status: Value = serde_json::from_str(body).ok()?;
    let uuid = UUIDS[0].to_lowercase();
    let devices = status["devices"].as_array()?;
    let device = devices.iter().find(|device| device["uuid"] == *uuid)?;
    let sessions = device["sessions"].as_array()?;
    let of = |name| sessions.iter().find(|one| one["session"] == name)?["charged_us"].as_u64();
    Some([of(NAMES[0])?, of(NAMES[1])?])
}

fn dense(stage: &Stage, session: &str, seconds: &str) -> Running {
    let mut command = stage.limited(built("tenant"));
    command
        .env(SESSION_DIR, stage.session(session))
        .env(COMPUTE_LIMIT, first_device(SHARE))
        .env(DAEMON, socket(stage))
        .args(["dense", "--kernel-us", "2000", "--seconds", seconds, "--progress"]);
    start(&mut command)
}

/// Kernels completed, four times a second.
fn progress(outcome: &Outcome) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<Value>(line).ok()?["kernels"].as_u64();
    let mut counts: Vec<u64> = outcome.stdout.lines().filter_map(line).collect();
    // The last line is the result.
    counts.pop();
    counts
}

/// Percentage of `native` in a stretch of time.
#[track_caller]
fn between(outcome: &Outcome, from: usize, to: usize, native: f64) -> f64 {
    let counts = progress(outcome);
    assert!(counts.len() > to, "{outcome:#?}");
    let seconds = (to - from) as f64 * QUARTER.as_secs_f64();
    (counts[to] - counts[from]) as f64 / seconds / native * 100.0
}

/// Seconds without an answer, longer than any poll: the tenants go on by themselves, are back at the
/// daemon within a second of its return, and owe nothing for the time in which it did not answer.
#[test]
fn a_daemon_that_is_stopped_and_continued() {
    let stage = Stage::new();
    let path = socket(&stage);
    let options = ["dense", "--kernel-us", "2000", "--seconds", "1"];
    let native = outcome(stage.native(built("tenant")).args(options)).silent().rate();
    let daemon = daemon(&stage, &path);
    let sessions = NAMES.map(|name| dense(&stage, name, "9"));
    eventually("both get leases", || charged(&path).is_some_and(|us| us.iter().all(|&us| us > 0)));
    sleep(Duration::from_millis(1_750));
    let running = charged(&path).unwrap();
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    sleep(Duration::from_secs(3));
    kill_process(daemon.pid(), Signal::CONT).unwrap();
    let start = Instant::now();
    // No time of the stop is charged, so that what is charged from now on is of new leases.
    let before = charged(&path).unwrap();
    for (before, running) in before.iter().zip(running) {
        assert!(*before < running + 150_000, "{before} us instead of {running}");
    }
    let mut resumed = [None; 2];
    while resumed.contains(&None) && start.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(5));
        let now = charged(&path).unwrap();
        for (at, (now, before)) in resumed.iter_mut().zip(now.iter().zip(before)) {
            if at.is_none() && *now > before + 1_000 {
                *at = Some(start.elapsed());
            }
        }
    }
    println!("leases resumed after {resumed:?}");
    let outcomes = sessions.map(|session| session.end().succeeded());
    for outcome in &outcomes {
        let counts = progress(outcome);
        let steps: Vec<u64> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        println!("kernels in each quarter of a second: {steps:?}");
        // The first quarter has the start in it.
        assert!(steps.iter().skip(1).all(|&step| step > 0), "stuck: {outcome:#?}");
        // Nobody keeps the two apart then: each pays for time in which the device was sliced between
        // them.
        let meanwhile = between(outcome, 9, 18, native);
        println!("while the daemon stands still: {meanwhile:.2} of {SHARE}");
        assert!((10.0..=45.0).contains(&meanwhile), "{meanwhile}: {outcome:#?}");
        let after = between(outcome, 25, 33, native);
        println!("when it is back: {after:.2} of {SHARE}");
        assert!((after - SHARE).abs() <= 6.0, "{after}: {outcome:#?}");
        assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
        assert!(outcome.stderr.contains("own account"), "{outcome:#?}");
    }
    let within_a_second = |at: &Option<Duration>| at.is_some_and(|at| at < Duration::from_secs(1));
    assert!(resumed.iter().all(within_a_second), "{resumed:?}");
}
