//! Leases from the daemon, and operation without it. All of these measure, so run one test at a time.

use crate::common::{
    COMPUTE_LIMIT, Outcome, Running, SESSION_DIR, Stage, UUIDS, built, eventually, first_device,
    outcome, start,
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
const DAEMON: &str = "SLUICE_DAEMON";

fn socket(stage: &Stage) -> PathBuf {
    stage.folder().join("daemon.sock")
}

/// Starts a daemon and waits until it listens.
fn daemon(stage: &Stage) -> Daemon {
    let path = socket(stage);
    let mut command = stage.native(built("hypervisor"));
    command.args(["daemon", "--log", "warn", "--socket"]).arg(&path);
    let running = start(command.stdout(Stdio::null()));
    eventually("the daemon listens", || UnixStream::connect(&path).is_ok());
    Daemon(Some(running))
}

/// Kills the daemon at the end of the test.
struct Daemon(Option<Running>);

impl Daemon {
    /// Returns when all of its threads have stopped: the signal alone only requests that.
    fn freeze(&self) {
        if let Some(running) = &self.0 {
            kill_process(running.pid(), Signal::STOP).unwrap();
            let (_, status) = waitpid(Some(running.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
            assert!(status.stopped(), "{status:?}");
        }
    }

    fn thaw(&self) {
        if let Some(running) = &self.0 {
            kill_process(running.pid(), Signal::CONT).unwrap();
        }
    }

    fn kill(mut self) {
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

/// The daemon's own status.
fn status(socket: &Path) -> Option<Value> {
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
    client.get(protocol::path::STATUS, Duration::from_secs(2)).ok()
}

/// Microseconds that the daemon has charged to a session.
fn charged(socket: &Path, session: &str) -> Option<u64> {
    let status = status(socket)?;
    let device = status["devices"]
        .as_array()?
        .iter()
        .find(|device| device["uuid"].as_str() == Some(UUIDS[0]))?
        .clone();
    let session =
        device["sessions"].as_array()?.iter().find(|one| one["session"] == session)?.clone();
    session["charged_us"].as_u64()
}

fn dense(mut command: Command, seconds: &str) -> Running {
    start(command.args(["dense", "--kernel-us", "2000", "--seconds", seconds, "--progress"]))
}

/// A session that gets its leases from `socket`.
fn limited(stage: &Stage, session: &str, percent: u32, socket: &Path) -> Command {
    let mut command = stage.limited(built("tenant"));
    command
        .env(SESSION_DIR, stage.session(session))
        .env(COMPUTE_LIMIT, first_device(percent))
        .env(DAEMON, socket);
    command
}

fn native_rate(stage: &Stage) -> f64 {
    let options = ["dense", "--kernel-us", "2000", "--seconds", "1"];
    outcome(stage.native(built("tenant")).args(options)).silent().rate()
}

/// Kernels completed, reported four times a second.
fn progress(outcome: &Outcome) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<Value>(line).ok()?["kernels"].as_u64();
    let mut counts: Vec<u64> = outcome.stdout.lines().filter_map(line).collect();
    // The last line is the result.
    counts.pop();
    counts
}

/// Percentage of `native` between two times, in quarters of a second.
#[track_caller]
fn between(outcome: &Outcome, from: usize, to: usize, native: f64) -> f64 {
    let counts = progress(outcome);
    assert!(counts.len() > to, "{outcome:#?}");
    let seconds = (to - from) as f64 / 4.0;
    (counts[to] - counts[from]) as f64 / seconds / native * 100.0
}

#[track_caller]
fn is_near(delivered: f64, share: f64, what: &str) {
    println!("{what}: {delivered:.2} of {share}");
    assert!((delivered - share).abs() <= TOLERANCE, "{what}: {delivered:.1} instead of {share}");
}

#[test]
fn two_sessions_share_the_device_without_slicing_it() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let native = native_rate(&stage);
    let sessions =
        ["one", "two"].map(|name| dense(limited(&stage, name, 50, &socket(&stage)), "4"));
    // In the middle of the run both sessions are known and charged.
    std::thread::sleep(Duration::from_secs(2));
    for name in ["one", "two"] {
        assert!(charged(&socket(&stage), name) > Some(100_000), "{:?}", status(&socket(&stage)));
    }
    let shares = sessions.map(|session| session.end().silent().rate() / native * 100.0);
    for share in shares {
        is_near(share, 50.0, "a session of two");
    }
    assert!(shares.iter().sum::<f64>() >= 90.0, "{shares:?}");
    daemon.kill();
}

#[test]
fn sessions_of_different_weight() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let native = native_rate(&stage);
    let sessions = [("one", 75), ("two", 25)]
        .map(|(name, share)| (share, dense(limited(&stage, name, share, &socket(&stage)), "4")));
    for (share, session) in sessions {
        let rate = session.end().silent().rate();
        is_near(rate / native * 100.0, f64::from(share), "a session of two");
    }
    daemon.kill();
}

#[test]
fn one_session_alone_gets_its_share_and_no_more() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let native = native_rate(&stage);
    let rate = dense(limited(&stage, "one", 30, &socket(&stage)), "3").end().silent().rate();
    is_near(rate / native * 100.0, 30.0, "alone");
    daemon.kill();
}

/// One line says where the daemon is lost, and one that it is back.
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

/// The daemon dies in the middle of a run and comes back. The program is neither stuck nor unlimited
/// meanwhile, prints a line each time, and then uses the daemon's leases again.
#[test]
fn a_daemon_that_dies_and_returns() {
    let stage = Stage::new();
    let first = daemon(&stage);
    let native = native_rate(&stage);
    let sessions =
        ["one", "two"].map(|name| dense(limited(&stage, name, 30, &socket(&stage)), "9"));
    std::thread::sleep(Duration::from_secs(2));
    first.kill();
    std::thread::sleep(Duration::from_secs(4));
    let second = daemon(&stage);
    eventually("leases come from the new daemon", || {
        ["one", "two"].iter().all(|name| charged(&socket(&stage), name) > Some(100_000))
    });
    for session in sessions {
        let outcome = session.end().succeeded();
        is_told_that_it_went_and_came_back(&outcome);
        // From half a second after its death to its return. Nothing keeps the two programs apart then, so
        // each is charged for time in which the device was sliced between them.
        let meanwhile = between(&outcome, 10, 22, native);
        println!("without the daemon: {meanwhile:.2} of 30");
        assert!((15.0..=35.0).contains(&meanwhile), "{meanwhile}: {outcome:#?}");
        let after = between(&outcome, 29, 35, native);
        is_near(after, 30.0, "with the new daemon");
    }
    second.kill();
}

#[test]
fn a_daemon_that_is_absent() {
    let stage = Stage::new();
    let native = native_rate(&stage);
    let outcome = dense(limited(&stage, "one", 40, &socket(&stage)), "3").end().succeeded();
    is_near(outcome.rate() / native * 100.0, 40.0, "absent");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("daemon.sock"), "{outcome:#?}");
}

#[test]
fn a_socket_that_nobody_answers() {
    let stage = Stage::new();
    let native = native_rate(&stage);
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
    is_near(outcome.rate() / native * 100.0, 40.0, "silent");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("daemon.sock"), "{outcome:#?}");
    drop(accepting);
}

/// A server that answers but is not the daemon.
#[test]
fn a_socket_that_answers_nonsense() {
    let stage = Stage::new();
    let native = native_rate(&stage);
    let listener = UnixListener::bind(socket(&stage)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let outcome = dense(limited(&stage, "one", 40, &socket(&stage)), "3").end().succeeded();
    is_near(outcome.rate() / native * 100.0, 40.0, "nonsense");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
}

/// A process dies while it holds a lease. The lease does not stay taken.
#[test]
fn a_killed_session_leaves_its_time_to_the_others() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let native = native_rate(&stage);
    let other = dense(limited(&stage, "other", 60, &socket(&stage)), "8");
    let survivor = dense(limited(&stage, "survivor", 40, &socket(&stage)), "6");
    std::thread::sleep(Duration::from_secs(1));
    kill_process(other.pid(), Signal::KILL).unwrap();
    let survivor = survivor.end().silent();
    let _ = other.end();
    is_near(between(&survivor, 8, 22, native), 40.0, "the survivor");
    eventually("the daemon has noticed", || {
        status(&socket(&stage)).is_some_and(|status| {
            status["devices"][0]["leases"].as_array().is_some_and(Vec::is_empty)
        })
    });
    daemon.kill();
}

/// The daemon does not answer for seconds, longer than any poll. The tenants go on by themselves. They use
/// the daemon again within a second of its return, and owe nothing for the time in which it did not answer.
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
    let native = native_rate(&stage);
    let daemon = daemon(&stage);
    let sessions = NAMES.map(|name| dense(limited(&stage, name, SHARE, &path), "9"));
    eventually("both get leases", || charged(&path).is_some_and(|us| us.iter().all(|&us| us > 0)));
    std::thread::sleep(Duration::from_millis(1_750));
    let running = charged(&path).unwrap();
    daemon.freeze();
    std::thread::sleep(Duration::from_secs(3));
    daemon.thaw();
    let start = Instant::now();
    // No time of the stop is charged, so further charges are from new leases.
    let before = charged(&path).unwrap();
    for (before, running) in before.iter().zip(running) {
        assert!(*before < running + 150_000, "{before} us instead of {running}");
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
        // The first quarter of a second includes the start.
        assert!(steps.iter().skip(1).all(|&step| step > 0), "stuck: {outcome:#?}");
        // Nothing keeps the two apart then. Each pays for time in which the device was sliced between them.
        let meanwhile = between(outcome, 9, 18, native);
        println!("while the daemon stands still: {meanwhile:.2} of {SHARE}");
        assert!((10.0..=45.0).contains(&meanwhile), "{meanwhile}: {outcome:#?}");
        let after = between(outcome, 25, 33, native);
        println!("when it is back: {after:.2} of {SHARE}");
        assert!((after - f64::from(SHARE)).abs() <= 6.0, "{after}: {outcome:#?}");
        is_told_that_it_went_and_came_back(outcome);
    }
    let within_a_second = |at: &Option<Duration>| at.is_some_and(|at| at < Duration::from_secs(1));
    assert!(resumed.iter().all(within_a_second), "{resumed:?}");
}

/// While the daemon does not answer, the limiter tries to reach it again and again. That delays no program.
/// No lease continues meanwhile: a small share would have to pay it back for hundreds of milliseconds.
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
    let result = session.end().succeeded().json();
    let longest = result["pauses"]["longest_ms"].as_f64().unwrap();
    println!("longest pause: {longest:.1} ms");
    // A turn takes about 65 ms.
    assert!(longest < 200.0, "{result}");
    daemon.kill();
}
