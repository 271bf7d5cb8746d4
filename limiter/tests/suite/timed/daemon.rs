//! Leases from the daemon, and operation without it. All of these measure, so run one test at a time. Shares of every
//! size are tested in virtual time (`fake-world`, `shares`).

use crate::common::{
    self, COMPUTE_LIMIT, Outcome, Running, SESSION_DIR, Stage, UUIDS, built, eventually,
    first_device, start,
};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// In percentage points.
const TOLERANCE: f64 = 7.0;
const KERNEL_US: f64 = 2000.0;
const DAEMON: &str = "SLUICE_DAEMON";

pub(super) fn socket(stage: &Stage) -> PathBuf {
    stage.folder().join("daemon.sock")
}

/// Starts a daemon and waits until it listens.
pub(super) fn daemon(stage: &Stage) -> Daemon {
    let path = socket(stage);
    let mut command = stage.native(built("hypervisor"));
    command.args(["daemon", "--log", "warn", "--socket"]).arg(&path);
    let running = start(command.stdout(Stdio::null()));
    eventually("the daemon listens", || UnixStream::connect(&path).is_ok());
    Daemon(Some(running))
}

/// Kills the daemon at the end of the test.
pub(super) struct Daemon(Option<Running>);

impl Daemon {
    /// Stops the daemon; returns when all of its threads have stopped, which the signal alone only requests.
    pub(super) fn freeze(&self) {
        if let Some(running) = &self.0 {
            kill_process(running.pid(), Signal::STOP).unwrap();
            let (_, status) = waitpid(Some(running.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
            assert!(status.stopped(), "{status:?}");
        }
    }

    pub(super) fn thaw(&self) {
        if let Some(running) = &self.0 {
            kill_process(running.pid(), Signal::CONT).unwrap();
        }
    }

    pub(super) fn kill(mut self) {
        if let Some(running) = self.0.take() {
            running.kill();
            let _ = running.end();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.kill();
        }
    }
}

/// The daemon's answer at a path of its API.
fn answer(socket: &Path, path: &str) -> Option<Value> {
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
    client.get(path, Duration::from_secs(2)).ok()
}

fn status(socket: &Path) -> Option<Value> {
    answer(socket, "/api/v1/sessions")
}

/// Microseconds that the daemon has charged to a session.
fn charged(socket: &Path, session: &str) -> Option<u64> {
    let status = status(socket)?;
    let session = status["sessions"].as_array()?.iter().find(|one| one["name"] == session)?;
    let device = session["devices"].as_array()?.iter().find(|device| device["uuid"] == UUIDS[0])?;
    device["charged_us"].as_u64()
}

fn dense(mut command: Command, seconds: &str) -> Running {
    start(command.args(["dense", "--kernel-us", "2000", "--seconds", seconds, "--progress"]))
}

/// A session that gets its leases from `socket`.
pub(super) fn limited(stage: &Stage, session: &str, percent: u32, socket: &Path) -> Command {
    let mut command = stage.limited(built("tenant"));
    command
        .env(SESSION_DIR, stage.session(session))
        .env(COMPUTE_LIMIT, first_device(percent))
        .env(DAEMON, socket);
    command
}

/// Kernels completed, reported four times a second.
fn progress(outcome: &Outcome) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<Value>(line).ok()?["kernels"].as_u64();
    let mut counts: Vec<u64> = outcome.stdout.lines().filter_map(line).collect();
    // The last line is the result.
    counts.pop();
    counts
}

/// Percentage of the device's time between two times, in quarters of a second.
#[track_caller]
fn between(outcome: &Outcome, from: usize, to: usize) -> f64 {
    let counts = progress(outcome);
    assert!(counts.len() > to, "{outcome:#?}");
    let seconds = (to - from) as f64 / 4.0;
    (counts[to] - counts[from]) as f64 / seconds * KERNEL_US / 1e4
}

#[track_caller]
fn is_near(delivered: f64, share: u32, outcome: &Outcome, what: &str) {
    common::is_near(delivered, f64::from(share), TOLERANCE, outcome.busy, what);
}

#[test]
fn two_sessions_share_the_device_without_slicing_it() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let sessions =
        ["one", "two"].map(|name| dense(limited(&stage, name, 50, &socket(&stage)), "4"));
    // In the middle of the run both sessions are known and charged.
    std::thread::sleep(Duration::from_secs(2));
    for name in ["one", "two"] {
        assert!(charged(&socket(&stage), name) > Some(100_000), "{:?}", status(&socket(&stage)));
    }
    let outcomes = sessions.map(|session| session.end().silent());
    let shares = outcomes.each_ref().map(|outcome| outcome.percent(KERNEL_US));
    for (share, outcome) in shares.iter().zip(&outcomes) {
        is_near(*share, 50, outcome, "a session of two");
    }
    let least = outcomes[0].busy.least(100.0, 10.0);
    assert!(shares.iter().sum::<f64>() >= least, "{shares:?}");
    daemon.kill();
}

/// One line when the daemon is lost, and one when it is back.
#[track_caller]
fn is_told_that_it_went_and_came_back(outcome: &Outcome) {
    let complaints = outcome.complaints();
    let [lost, back] = complaints[..] else { panic!("{outcome:#?}") };
    for line in [lost, back] {
        assert!(line.starts_with("sluice: daemon at unix:/"), "{outcome:#?}");
        assert!(line.contains("daemon.sock"), "{outcome:#?}");
    }
    assert!(lost.contains("own account") && back.contains("it is back"), "{outcome:#?}");
}

/// The daemon dies in the middle of a run and returns. The program is neither stuck nor unlimited meanwhile, prints a
/// line each time, and then uses the daemon's leases again.
#[test]
fn a_daemon_that_dies_and_returns() {
    let stage = Stage::new();
    let have_leases = |what: &str| {
        let has = |name: &&str| charged(&socket(&stage), name) > Some(100_000);
        eventually(what, || ["one", "two"].iter().all(has));
    };
    let first = daemon(&stage);
    // They run until they are killed: on a busy machine the time of the daemon's return is unknown.
    let sessions =
        ["one", "two"].map(|name| dense(limited(&stage, name, 30, &socket(&stage)), "600"));
    let reported = || sessions.each_ref().map(|session| session.printed().lines().count() - 1);
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    have_leases("leases come from the daemon");
    first.kill();
    pause(500);
    let lost = reported();
    pause(3000);
    let before_return = reported();
    let second = daemon(&stage);
    have_leases("leases come from the new daemon");
    pause(1000);
    let back = reported();
    pause(1500);
    let end = reported();
    // The last complete line is not used.
    pause(500);
    for (i, session) in sessions.into_iter().enumerate() {
        session.kill();
        let outcome = session.end();
        is_told_that_it_went_and_came_back(&outcome);
        // Without the daemon nothing keeps the two programs apart, so each is charged for time in which the device was
        // sliced between them.
        let meanwhile = between(&outcome, lost[i], before_return[i]);
        println!("without the daemon: {meanwhile:.2} of 30");
        let least = outcome.busy.least(30.0, 15.0);
        assert!((least..=35.0).contains(&meanwhile), "{meanwhile}: {outcome:#?}");
        is_near(between(&outcome, back[i], end[i]), 30, &outcome, "with the new daemon");
    }
    second.kill();
}

#[test]
fn a_daemon_that_is_absent() {
    let stage = Stage::new();
    let outcome = dense(limited(&stage, "one", 40, &socket(&stage)), "3").end().succeeded();
    is_near(outcome.percent(KERNEL_US), 40, &outcome, "absent");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("daemon.sock"), "{outcome:#?}");
}

#[test]
fn a_socket_that_nobody_answers() {
    let stage = Stage::new();
    let listener = UnixListener::bind(socket(&stage)).unwrap();
    let accepting = std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            kept.push(stream);
            if kept.len() > 64 {
                break;
            }
        }
    });
    let outcome = dense(limited(&stage, "one", 40, &socket(&stage)), "4").end().succeeded();
    is_near(outcome.percent(KERNEL_US), 40, &outcome, "silent");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("daemon.sock"), "{outcome:#?}");
    drop(accepting);
}

/// A server that answers but is not the daemon.
#[test]
fn a_socket_that_answers_nonsense() {
    let stage = Stage::new();
    let listener = UnixListener::bind(socket(&stage)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let outcome = dense(limited(&stage, "one", 40, &socket(&stage)), "3").end().succeeded();
    is_near(outcome.percent(KERNEL_US), 40, &outcome, "nonsense");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
}

/// A process dies while it holds a lease. The lease does not stay taken.
#[test]
fn a_killed_session_leaves_its_time_to_the_others() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let other = dense(limited(&stage, "other", 60, &socket(&stage)), "8");
    let survivor = dense(limited(&stage, "survivor", 40, &socket(&stage)), "6");
    std::thread::sleep(Duration::from_secs(1));
    kill_process(other.pid(), Signal::KILL).unwrap();
    let survivor = survivor.end().silent();
    let _ = other.end();
    is_near(between(&survivor, 8, 22), 40, &survivor, "the survivor");
    eventually("the daemon has noticed", || {
        answer(&socket(&stage), "/api/v1/leases")
            .is_some_and(|answer| answer["leases"].as_array().is_some_and(Vec::is_empty))
    });
    daemon.kill();
}

/// The daemon does not answer for seconds, longer than any poll. The tenants continue by themselves. They use the
/// daemon again within a second of its return, and owe nothing for the time in which it did not answer.
#[test]
fn a_daemon_that_is_stopped_and_continued() {
    const NAMES: [&str; 2] = ["one", "two"];
    const SHARE: u32 = 40;
    let stage = Stage::new();
    let path = socket(&stage);
    let charged = |path: &Path| {
        let [one, two] = NAMES.map(|name| charged(path, name));
        Some([one?, two?])
    };
    let daemon = daemon(&stage);
    let sessions = NAMES.map(|name| dense(limited(&stage, name, SHARE, &path), "9"));
    eventually("both get leases", || charged(&path).is_some_and(|us| us.iter().all(|&us| us > 0)));
    std::thread::sleep(Duration::from_millis(1_750));
    let running = charged(&path).unwrap();
    daemon.freeze();
    std::thread::sleep(Duration::from_secs(3));
    daemon.thaw();
    let start = Instant::now();
    // No time of the stop is charged, so further charges are from new leases. It would be 1.2 s.
    let before = charged(&path).unwrap();
    for (before, running) in before.iter().zip(running) {
        assert!(*before < running + 600_000, "{before} us instead of {running}");
    }
    let mut resumed = [None; 2];
    while resumed.contains(&None) && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
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
        // The first quarter of a second includes the start. A busy machine may stop everything for one.
        let stuck = |pair: &[u64]| pair == [0, 0];
        assert!(!steps[1..].windows(2).any(stuck), "stuck: {outcome:#?}");
        // Then nothing keeps the two apart. Each pays for time in which the device was sliced between them.
        let meanwhile = between(outcome, 9, 18);
        println!("while the daemon stands still: {meanwhile:.2} of {SHARE}");
        let least = outcome.busy.least(f64::from(SHARE), 30.0);
        assert!((least..=45.0).contains(&meanwhile), "{meanwhile}: {outcome:#?}");
        let after = between(outcome, 25, 33);
        is_near(after, SHARE, outcome, "when it is back");
        is_told_that_it_went_and_came_back(outcome);
    }
    // The daemon is tried again after a third of a second at most.
    let soon = |at: &Option<Duration>| at.is_some_and(|at| at < Duration::from_secs(4));
    assert!(resumed.iter().all(soon), "{resumed:?}");
}

/// While the daemon does not answer, the limiter tries to reach it again and again. That delays no program. No lease
/// continues meanwhile: a small share would have to pay it back for hundreds of milliseconds.
#[test]
fn a_daemon_that_stands_still_holds_a_small_share_up_for_a_turn() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let mut command = limited(&stage, "one", 10, &socket(&stage));
    let session = start(command.args(["dense", "--kernel-us", "130", "--seconds", "5"]));
    eventually("it gets leases", || charged(&socket(&stage), "one") > Some(0));
    std::thread::sleep(Duration::from_millis(500));
    daemon.freeze();
    std::thread::sleep(Duration::from_millis(2_500));
    daemon.thaw();
    let outcome = session.end().succeeded();
    let result = outcome.json();
    let [usual, longest] =
        ["p50_ms", "longest_ms"].map(|of| result["pauses"][of].as_f64().unwrap());
    println!("pauses: {usual:.1} ms, at most {longest:.1} ms");
    // A turn takes about 65 ms.
    assert!(longest < outcome.busy.most_ms(200) as f64, "{result}");
    daemon.kill();
}

/// A session whose user stops its process again and again while it holds the device: others wait for the work that has
/// begun, not for the process.
#[test]
fn who_is_stopped_while_it_holds_the_device_keeps_others_little() {
    for (stopped_ms, runs_ms) in [(250, 250), (70, 20)] {
        let stage = Stage::new();
        let _daemon = daemon(&stage);
        let tenant = |name, seconds| {
            let mut command = limited(&stage, name, 50, &socket(&stage));
            start(command.args(["dense", "--kernel-us", "1000", "--seconds", seconds]))
        };
        let stopper = tenant("stopper", "20");
        std::thread::sleep(Duration::from_millis(500));
        let victim = tenant("victim", "4");
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            kill_process(stopper.pid(), Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_millis(stopped_ms));
            kill_process(stopper.pid(), Signal::CONT).unwrap();
            std::thread::sleep(Duration::from_millis(runs_ms));
        }
        let victim = victim.end().silent();
        stopper.kill();
        let pauses = victim.json()["pauses"].clone();
        let (percent, busy) = (victim.percent(1000.0), victim.busy);
        println!("{stopped_ms}/{runs_ms}: {percent:.1} %, {pauses}, {busy:?}");
        assert!(percent >= busy.least(43.0, 0.0), "{percent:.1} %, {pauses}, {busy:?}");
        // The rest of the longest lease, and the grace.
        let longest_ms = pauses["longest_ms"].as_f64().unwrap();
        assert!(longest_ms <= 150.0, "{stopped_ms}/{runs_ms}: {pauses}");
    }
}
