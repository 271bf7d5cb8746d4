//! The real daemon and the real client: weights, deaths, restarts and bad input.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use hypervisor::daemon::status::{Class, Status};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use utils::protocol::{
    Admission, Decision, DeviceQuota, Lease, LeaseReport, Policy, Register, Registered, VERSION,
    path,
};

const GPU: &str = "gpu-5a1ce000-0000-4000-8000-000000000000";
const PATIENCE: Duration = Duration::from_secs(20);

struct Daemon {
    process: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(socket: &Path) -> Self {
        let process = Self::command(socket).spawn().unwrap();
        let daemon = Self { process, socket: socket.to_owned() };
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(start.elapsed() < PATIENCE, "the daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn command(socket: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
        command.args(["daemon", "--log", "warn", "--socket"]).arg(socket);
        command
    }

    fn client(&self) -> BlockingHttpClient {
        BlockingHttpClient::new(Endpoint::Unix(self.socket.clone()))
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap().code()
    }

    fn status(&self) -> Status {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream
            .write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("run/daemon.sock");
    (dir, socket)
}

fn registration(session: &str, share_ppm: u32) -> Register {
    Register {
        protocol: VERSION,
        session: session.to_owned(),
        devices: vec![DeviceQuota::fixed(GPU, share_ppm)],
    }
}

fn register(
    client: &BlockingHttpClient,
    session: &str,
    share_ppm: u32,
) -> Result<u64, ClientError> {
    let registered: Registered =
        client.call(path::REGISTER, &registration(session, share_ppm), PATIENCE)?;
    Ok(registered.worker)
}

fn admission(
    client: &BlockingHttpClient,
    worker: u64,
    report: Option<LeaseReport>,
    ask: Option<Duration>,
) -> Result<Option<Lease>, ClientError> {
    let ask = ask.map(|ask| ask.as_micros() as u64);
    let admission = Admission { worker, uuid: GPU.to_owned(), report, ask, quota: None };
    let decision: Decision = client.call(path::ADMISSION, &admission, PATIENCE)?;
    Ok(decision.lease)
}

/// One process may be one worker only, so holders are processes: this test, run again as a helper.
/// It holds leases until its time is over and prints when it did, on the clock all share.
fn holder(socket: &Path, session: &str, share_ppm: u32, length: Duration) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "helper_that_holds", "--ignored", "--nocapture"])
        .env("HOLDER", json!([socket, session, share_ppm, length.as_millis() as u64]).to_string())
        .stdout(Stdio::piped());
    command
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_holds() {
    let Ok(arguments) = std::env::var("HOLDER") else { return };
    let (socket, session, share_ppm, length): (PathBuf, String, u32, u64) =
        serde_json::from_str(&arguments).unwrap();
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let end = now_us() + length * 1000;
    let mut held = Vec::new();
    let (mut worker, mut report) = (None, None);
    while now_us() < end {
        let known = match worker {
            Some(known) => known,
            None => match register(&client, &session, share_ppm) {
                Ok(known) => *worker.insert(known),
                Err(ClientError::Connect { .. }) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(other) => panic!("{other}"),
            },
        };
        match admission(&client, known, report.take(), Some(Duration::from_millis(250))) {
            Ok(None) => {}
            Ok(Some(lease)) => {
                let start = now_us();
                println!("HOLDING");
                thread::sleep(Duration::from_micros(lease.length_us));
                let stop = now_us();
                held.push((start, stop));
                report = Some(LeaseReport::busy(lease.id, stop - start));
            }
            // The daemon has gone, or has come back and does not know us.
            Err(_) => worker = None,
        }
    }
    println!("HELD {}", serde_json::to_string(&held).unwrap());
}

/// Microseconds of a clock that all processes share.
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

fn held(output: &Output) -> Vec<(u64, u64)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("HELD ")).unwrap_or_else(|| {
        panic!("the holder failed: {text}");
    });
    serde_json::from_str(line.1).unwrap()
}

fn finish(child: Child) -> Vec<(u64, u64)> {
    held(&child.wait_with_output().unwrap())
}

/// How a helper uses the device: it goes on with its lease for as long as it may.
#[derive(Clone)]
struct Program<'a> {
    session: &'a str,
    quota: DeviceQuota,
    /// What it uses of the time that it holds.
    density: f64,
    length: Duration,
}

/// What a helper has seen.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Seen {
    /// When it held, lease by lease.
    held: Vec<(u64, u64)>,
    /// How often a lease went on, and how often it was refused to.
    renewed: u64,
    refused: u64,
    /// Whether another session held at the same time, as told with its leases.
    shared: u64,
}

impl Program<'_> {
    fn start(&self, socket: &Path) -> Child {
        let Self { session, quota, density, length } = self;
        let arguments = json!([socket, session, quota, density, length.as_millis() as u64]);
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_goes_on", "--ignored", "--nocapture"])
            .env("PROGRAM", arguments.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn seen(child: Child) -> Seen {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("SEEN "));
    serde_json::from_str(line.unwrap_or_else(|| panic!("the helper failed: {text}")).1).unwrap()
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_goes_on() {
    let Ok(arguments) = std::env::var("PROGRAM") else { return };
    let (socket, session, quota, density, length): (PathBuf, String, DeviceQuota, f64, u64) =
        serde_json::from_str(&arguments).unwrap();
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let register = Register { protocol: VERSION, session, devices: vec![quota] };
    let registered: Registered = client.call(path::REGISTER, &register, PATIENCE).unwrap();
    let worker = registered.worker;
    let mut seen = Seen { held: Vec::new(), renewed: 0, refused: 0, shared: 0 };
    let end = now_us() + length * 1000;
    let mut last = None;
    while now_us() < end {
        // As the limiter asks.
        let poll = Some(Duration::from_millis(20));
        let Some(lease) = admission(&client, worker, last.take(), poll).unwrap() else { continue };
        let start = now_us();
        let (mut told, mut ends) = (start, start + lease.length_us);
        seen.shared += u64::from(lease.shared);
        let told = loop {
            let nap = ends.saturating_sub(now_us()).min(5_000);
            thread::sleep(Duration::from_micros(nap));
            let now = now_us();
            let used = ((now - told) as f64 * density) as u64;
            let report = LeaseReport {
                lease: lease.id,
                held_us: now - told,
                estimated_us: used,
                backlogged_us: if density > 0.95 { now - told } else { 0 },
                done: now >= ends || now >= end,
            };
            if report.done {
                break report;
            }
            told = now;
            if ends - now > 7_000 {
                continue_with(&client, worker, report);
                continue;
            }
            match admission(&client, worker, Some(report), Some(Duration::ZERO)).unwrap() {
                Some(more) => {
                    assert_eq!(more.id, lease.id);
                    ends = now_us() + more.length_us;
                    seen.renewed += 1;
                    seen.shared += u64::from(more.shared);
                }
                None => seen.refused += 1,
            }
        };
        seen.held.push((start, now_us()));
        last = Some(told);
    }
    if last.is_some() {
        admission(&client, worker, last, None).unwrap();
    }
    println!("SEEN {}", serde_json::to_string(&seen).unwrap());
}

/// Tells how a lease is used, and asks for nothing.
fn continue_with(client: &BlockingHttpClient, worker: u64, report: LeaseReport) {
    assert_eq!(admission(client, worker, Some(report), None).unwrap(), None);
}

fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> u64 {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| a.1.min(b.1).saturating_sub(a.0.max(b.0))).sum()
}

fn total(held: &[(u64, u64)]) -> u64 {
    held.iter().map(|(a, b)| b - a).sum()
}

#[test]
fn a_lone_holder_keeps_its_lease() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let quota = DeviceQuota::fixed(GPU, 1_000_000);
    let length = Duration::from_secs(2);
    let lone = Program { session: "lone", quota, density: 1.0, length }.start(&socket);
    thread::sleep(Duration::from_millis(1_200));
    let status = daemon.status();
    let session = &status.devices[0].sessions[0];
    assert_eq!((session.class, session.policy), (Class::Dense, Policy::Fixed));
    assert!(session.density_ppm.is_some_and(|ppm| ppm > 900_000), "{session:?}");
    let seen = seen(lone);
    // A scheduling hiccup of the machine may cost it a lease.
    assert!(seen.held.len() <= 5 && seen.renewed >= 20, "{seen:?}");
    assert!(total(&seen.held) > 1_800_000, "{seen:?}");
}

#[test]
fn two_sparse_sessions_hold_at_the_same_time() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let program = |session| {
        let (quota, length) = (DeviceQuota::fixed(GPU, 500_000), Duration::from_secs(3));
        Program { session, quota, density: 0.3, length }
    };
    let children = ["a", "b"].map(|session| program(session).start(&socket));
    thread::sleep(Duration::from_millis(2_000));
    let status = daemon.status();
    for session in &status.devices[0].sessions {
        assert_eq!(session.class, Class::Sparse, "{session:?}");
        assert!(session.density_ppm.is_some_and(|ppm| ppm.abs_diff(300_000) < 30_000));
        // It is charged for what it uses.
        assert!(session.charged_us < 1_000_000, "{session:?}");
    }
    let [a, b] = children.map(seen);
    let (held_a, held_b) = (total(&a.held), total(&b.held));
    assert!(overlap(&a.held, &b.held) * 10 > held_a.min(held_b) * 7, "{a:?} {b:?}");
    assert!(a.shared > 0 && b.shared > 0);
    assert!(held_a > 2_000_000 && held_b > 2_000_000, "{held_a} {held_b}");
}

#[test]
fn idle_time_goes_to_those_who_may_have_it() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let balance = |share_ppm, weight| DeviceQuota {
        policy: Policy::Balance,
        weight,
        ..DeviceQuota::fixed(GPU, share_ppm)
    };
    let length = Duration::from_secs(4);
    let quotas = [
        ("light", balance(100_000, 1)),
        ("heavy", balance(100_000, 3)),
        ("fixed", DeviceQuota::fixed(GPU, 200_000)),
    ];
    let children = quotas
        .map(|(session, quota)| Program { session, quota, density: 1.0, length }.start(&socket));
    thread::sleep(Duration::from_millis(3_500));
    let status = daemon.status();
    let sessions = &status.devices[0].sessions;
    let charged = |name: &str| {
        let session = sessions.iter().find(|session| session.session == name).unwrap();
        (session.charged_us as f64, session.spare_us as f64)
    };
    let (light, heavy, fixed) = (charged("light"), charged("heavy"), charged("fixed"));
    let sum = light.0 + heavy.0 + fixed.0;
    // 10 + 15, 10 + 45 and 20 of 100.
    assert!((0.6..=0.9).contains(&(heavy.1 / (light.1 + heavy.1))), "{light:?} {heavy:?}");
    assert!((0.14..=0.25).contains(&(fixed.0 / sum)), "{fixed:?} of {sum}");
    assert!((0.45..=0.65).contains(&(heavy.0 / sum)), "{heavy:?} of {sum}");
    assert_eq!(fixed.1, 0.0);
    let [light, heavy, fixed] = children.map(seen);
    for (a, b) in [(&light, &heavy), (&light, &fixed), (&heavy, &fixed)] {
        assert_eq!(overlap(&a.held, &b.held), 0);
    }
}

#[test]
fn a_quota_changes_while_programs_run() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let quota = DeviceQuota::fixed(GPU, 200_000);
    let length = Duration::from_secs(4);
    let running = Program { session: "a", quota, density: 1.0, length }.start(&socket);
    // Another process of the session brings the word.
    let client = daemon.client();
    let charged = || daemon.status().devices[0].sessions[0].charged_us as f64;
    let rate = |length: Duration| {
        let (before, start) = (charged(), Instant::now());
        thread::sleep(length);
        (charged() - before) / start.elapsed().as_micros() as f64
    };
    thread::sleep(Duration::from_millis(500));
    let before = rate(Duration::from_secs(1));
    assert!((0.15..0.25).contains(&before), "{before}");
    let worker = register(&client, "a", 200_000).unwrap();
    let change = Admission {
        worker,
        uuid: GPU.to_owned(),
        report: None,
        ask: None,
        quota: Some(DeviceQuota::fixed(GPU, 800_000)),
    };
    let answer: Decision = client.call(path::REPORT, &change, PATIENCE).unwrap();
    assert_eq!(answer.lease, None);
    assert_eq!(daemon.status().devices[0].sessions[0].share_ppm, 800_000);
    thread::sleep(Duration::from_millis(100));
    let after = rate(Duration::from_secs(1));
    assert!((0.6..0.9).contains(&after), "{after}");
    seen(running);
}

#[test]
fn two_sessions_alternate_by_weight_without_overlap() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let length = Duration::from_secs(4);
    let large = holder(&socket, "large", 750_000, length).spawn().unwrap();
    let small = holder(&socket, "small", 250_000, length).spawn().unwrap();
    thread::sleep(Duration::from_secs(2));
    let status = daemon.status();
    let mut names: Vec<&str> =
        status.devices[0].sessions.iter().map(|session| session.session.as_str()).collect();
    names.sort_unstable();
    assert_eq!((status.devices[0].uuid.as_str(), names), (GPU, vec!["large", "small"]));
    let (large, small) = (finish(large), finish(small));

    for a in &large {
        for b in &small {
            assert!(a.1 <= b.0 || b.1 <= a.0, "both held: {a:?} and {b:?}");
        }
    }
    // From when both were there. A busy machine makes both slower, but not unequally.
    let from = large[0].0.max(small[0].0) + 500_000;
    let to = large.last().unwrap().1.min(small.last().unwrap().1);
    let sum = |held: &[(u64, u64)]| -> u64 {
        held.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).sum()
    };
    let (large, small) = (sum(&large), sum(&small));
    let weight = large as f64 / (large + small) as f64;
    assert!((0.68..0.82).contains(&weight), "large {large} us, small {small} us");
    let used = (large + small) as f64 / (to - from) as f64;
    assert!(used > 0.6, "the device was used for {used} of the time");
}

#[test]
fn a_killed_holder_frees_the_device() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "waiting", 1_000_000).unwrap();
    // Never reports within this test: it sleeps through a lease of its own making.
    let mut command = holder(&socket, "holding", 1_000_000, Duration::from_secs(60));
    let mut process = command.spawn().unwrap();
    let mut output = process.stdout.take().unwrap();
    let mut seen = String::new();
    let mut byte = [0u8];
    while !seen.ends_with("HOLDING") {
        output.read_exact(&mut byte).unwrap();
        seen.push(char::from(byte[0]));
    }
    // Frozen, so that only its death can free the device before the grace is over.
    let pid = Pid::from_child(&process);
    kill_process(pid, Signal::STOP).unwrap();
    let asked = thread::spawn(move || {
        let lease = admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap();
        (lease, Instant::now())
    });
    thread::sleep(Duration::from_millis(50));
    let killed = Instant::now();
    process.kill().unwrap();
    let (lease, granted) = asked.join().unwrap();
    process.wait().unwrap();
    assert!(lease.is_some());
    let took = granted.saturating_duration_since(killed);
    // 0.2 ms on a quiet machine; the promise is 50 ms. The grace after a frozen holder's lease ends
    // would be over 250 ms after its start at the earliest.
    assert!(took < Duration::from_millis(150), "{took:?}");
}

#[test]
fn a_frozen_holder_delays_others_by_its_grace_only() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let mut command = holder(&socket, "frozen", 1_000_000, Duration::from_secs(60));
    let mut process = command.spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&process), Signal::STOP).unwrap();
    let client = daemon.client();
    let worker = register(&client, "waiting", 500_000).unwrap();
    let started = Instant::now();
    let lease = admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap();
    assert!(lease.is_some());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn tenants_resume_when_the_daemon_comes_back() {
    let (_dir, socket) = place();
    let mut first = Daemon::start(&socket);
    let running = holder(&socket, "a", 500_000, Duration::from_secs(3)).spawn().unwrap();
    thread::sleep(Duration::from_millis(1_000));
    assert_eq!(first.signal(Signal::KILL), None);
    let killed_at = now_us();
    thread::sleep(Duration::from_millis(300));
    // Its socket is still there and is replaced.
    assert!(socket.exists());
    let _second = Daemon::start(&socket);
    let held = finish(running);
    let before = held.iter().filter(|held| held.1 < killed_at).count();
    let after = held.iter().filter(|held| held.0 > killed_at + 250_000).count();
    assert!(before > 0 && after > 0, "{before} leases before the restart, {after} after");
}

#[test]
fn a_clean_end_removes_the_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let (_dir, socket) = place();
        let mut daemon = Daemon::start(&socket);
        let client = daemon.client();
        let worker = register(&client, "a", 10_000).unwrap();
        // Somebody waits: that does not delay the end.
        let waiting =
            thread::spawn(move || admission(&client, worker, None, Some(Duration::from_secs(10))));
        thread::sleep(Duration::from_millis(50));
        let started = Instant::now();
        assert_eq!(daemon.signal(signal), Some(0));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(!socket.exists());
        assert!(matches!(waiting.join().unwrap(), Err(ClientError::Connect { .. }) | Ok(Some(_))));
    }
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let second = Daemon::command(&socket).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{text}");
    assert!(text.contains("in use by a running server"), "{text}");
    assert!(text.contains(&*socket.to_string_lossy()), "{text}");
    assert!(second.stdout.is_empty());
    register(&daemon.client(), "a", 1).unwrap();
}

#[test]
fn bad_command_lines() {
    for arguments in [&["daemon", "--log", "loud"][..], &["demon"], &[]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_hypervisor")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    let (dir, _) = place();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let output = Daemon::command(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn bad_calls_are_refused_with_reasons() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let refusal = |path: &str, body: Value| match client.call::<_, Value>(path, &body, PATIENCE) {
        Err(ClientError::Refused { status, message }) => (status, message),
        other => panic!("{path} {body}: {other:?}"),
    };
    let with = |change: Value| {
        let mut body = serde_json::to_value(registration("a", 250_000)).unwrap();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        refusal(path::REGISTER, body)
    };
    let device = |uuid: &str, share: u64, policy: &str| {
        with(json!({"devices": [{"uuid": uuid, "share_ppm": share, "policy": policy}]}))
    };
    for (got, status, words) in [
        (with(json!({"protocol": 99})), 400, "protocol 99"),
        (with(json!({"session": ""})), 400, "session name"),
        (with(json!({"session": "x".repeat(1000)})), 400, "session name"),
        (with(json!({"devices": []})), 400, "0 devices"),
        (device("0", 1, "fixed"), 400, "UUID as NVML prints it"),
        (device(GPU, 0, "fixed"), 400, "share_ppm 0"),
        (device(GPU, 1_000_001, "fixed"), 400, "share_ppm 1000001"),
        (device(GPU, 1 << 40, "fixed"), 400, "not as expected"),
        (device(GPU, 1, "generous"), 400, "generous"),
        (refusal(path::REGISTER, json!("text")), 400, "not as expected"),
        (refusal(path::REGISTER, json!("x".repeat(70_000))), 413, "65536"),
        (refusal("/v1/nothing", json!({})), 404, ""),
    ] {
        assert_eq!(got.0, status, "{}", got.1);
        assert!(got.1.contains(words), "{:?} does not say {words:?}", got.1);
    }

    let worker = register(&client, "a", 250_000).unwrap();
    let quota = |change: Value| {
        let mut quota = json!({"uuid": GPU, "share_ppm": 250_000, "policy": "balance"});
        quota.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let call = json!({"worker": worker, "uuid": GPU, "report": null, "ask": 0, "quota": quota});
        refusal(path::ADMISSION, call)
    };
    for (got, words) in [
        (quota(json!({"share_ppm": 0})), "share_ppm 0"),
        (quota(json!({"soft_ppm": 1_000_001})), "soft_ppm 1000001"),
        (quota(json!({"soft_ppm": 0})), "soft_ppm 0"),
        (quota(json!({"weight": 0})), "weight 0: 1 to 10000"),
        (quota(json!({"weight": 1_000_000})), "weight 1000000"),
        (quota(json!({"priority": "highest"})), "highest"),
        (quota(json!({"uuid": GPU.replace('5', "6")})), "the quota sent along"),
    ] {
        assert_eq!(got.0, 400, "{}", got.1);
        assert!(got.1.contains(words), "{:?} does not say {words:?}", got.1);
    }

    let ask = |worker: u64, uuid: &str| {
        refusal(path::ADMISSION, json!({"worker": worker, "uuid": uuid, "report": null, "ask": 0}))
    };
    assert_eq!(ask(worker + 1, GPU).0, 404);
    assert_eq!(ask(worker, &GPU.replace('5', "6")).0, 404);
    // Process 1 is not ours, and neither is its worker: a helper registers, and we use its number.
    let mut other = holder(&socket, "other", 100_000, Duration::from_secs(60)).spawn().unwrap();
    let start = Instant::now();
    while daemon.status().devices[0].sessions.len() < 2 {
        assert!(start.elapsed() < PATIENCE, "the helper does not register");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(ask(worker + 1, GPU).0, 403);
    other.kill().unwrap();
    other.wait().unwrap();
    // After all this, an honest call works, and an answer comes in the time asked for.
    let started = Instant::now();
    assert!(admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_session_without_limit_needs_no_lease() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let mut registration = registration("free", 0);
    registration.devices[0].policy = Policy::None;
    let registered: Registered = client.call(path::REGISTER, &registration, PATIENCE).unwrap();
    match admission(&client, registered.worker, None, Some(Duration::ZERO)) {
        Err(ClientError::Refused { status: 400, message }) => {
            assert!(message.contains("no compute limit"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// A process may still have to tell of a lease when another one's word has taken the limit away.
#[test]
fn a_limit_is_taken_away_under_a_lease_and_comes_back() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 1_000_000).unwrap();
    let poll = Some(Duration::from_secs(10));
    let lease = admission(&client, worker, None, poll).unwrap().unwrap();
    let say = |policy: Policy, ask: Option<u64>| -> Option<Lease> {
        let quota = DeviceQuota { policy, ..DeviceQuota::fixed(GPU, 1_000_000) };
        let uuid = GPU.to_owned();
        let message = Admission { worker, uuid, report: None, ask, quota: Some(quota) };
        client.call::<_, Decision>(path::ADMISSION, &message, PATIENCE).unwrap().lease
    };
    assert_eq!(say(Policy::None, None), None);
    assert!(daemon.status().devices.iter().all(|device| device.leases.is_empty()));
    for done in [false, true] {
        let report = LeaseReport { done, ..LeaseReport::busy(lease.id, 1_000) };
        assert_eq!(admission(&client, worker, Some(report), None).unwrap(), None);
    }
    // Who knows, and asks all the same, is answered at once; who does not know is told.
    let started = Instant::now();
    assert_eq!(say(Policy::None, Some(10_000_000)), None);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(matches!(
        admission(&client, worker, None, poll),
        Err(ClientError::Refused { status: 400, .. })
    ));
    assert!(say(Policy::Fixed, Some(10_000_000)).is_some());
}

#[test]
fn a_caller_that_hangs_up_gives_its_grant_back() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 1_000_000).unwrap();
    // Asks that end before they are answered, or just as they are.
    for wait_us in (0..40).map(|n| n * 25) {
        let admission = Admission {
            worker,
            uuid: GPU.to_owned(),
            report: None,
            ask: Some(5_000_000),
            quota: None,
        };
        let mut stream = UnixStream::connect(&socket).unwrap();
        let body = serde_json::to_string(&admission).unwrap();
        write!(
            stream,
            "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            path::ADMISSION,
            body.len()
        )
        .unwrap();
        thread::sleep(Duration::from_micros(wait_us));
    }
    let started = Instant::now();
    assert!(admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn many_threads_of_hostile_bytes_do_not_stop_the_daemon() {
    let (_dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8u8)
        .map(|seed| {
            let (socket, failures) = (socket.clone(), Arc::clone(&failures));
            thread::spawn(move || {
                for round in 0..20u8 {
                    let Ok(mut stream) = UnixStream::connect(&socket) else {
                        failures.lock().unwrap().push(round);
                        continue;
                    };
                    let noise: Vec<u8> =
                        (0..2000u32).map(|n| (n as u8).wrapping_mul(seed ^ round)).collect();
                    let _ = stream.write_all(b"POST /v1/register HTTP/1.1\r\nhost: x\r\n");
                    let _ = stream.write_all(&noise);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(failures.lock().unwrap().is_empty());
    register(&daemon.client(), "a", 1).unwrap();
    assert!(daemon.process.try_wait().unwrap().is_none());
}

/// Stopped for seconds: nothing of it is charged, what was sent and given up meanwhile is granted
/// nothing, and those who ask afterwards are served at once.
#[test]
fn a_daemon_that_stood_still() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 100_000).unwrap();
    let poll = Some(Duration::from_secs(5));
    let lease = admission(&client, worker, None, poll).unwrap().expect("a lease");
    let pid = Pid::from_child(&daemon.process);
    kill_process(pid, Signal::STOP).unwrap();
    // Each time it is asked for more of that lease, or anew, and the caller loses patience.
    for (report, path) in [(true, path::ADMISSION), (false, path::ADMISSION), (true, path::REPORT)]
    {
        let report = report.then_some(LeaseReport {
            lease: lease.id,
            held_us: 5_000,
            estimated_us: 5_000,
            backlogged_us: 5_000,
            done: false,
        });
        let ask = Some(10_000_000);
        let message = Admission { worker, uuid: GPU.to_owned(), report, ask, quota: None };
        let given_up =
            client.call::<_, Decision>(path, &message, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(given_up, ClientError::Timeout { .. }), "{given_up}");
    }
    thread::sleep(Duration::from_secs(2));
    kill_process(pid, Signal::CONT).unwrap();
    thread::sleep(Duration::from_millis(100));
    let status = daemon.status();
    let device = &status.devices[0];
    assert!(device.leases.is_empty() && !device.sessions[0].asks, "{status:#?}");
    assert!(device.sessions[0].charged_us < 200_000, "{status:#?}");
    assert!(status.uptime_us > 2_900_000, "{status:#?}");
    let start = Instant::now();
    admission(&client, worker, None, poll).unwrap().expect("a lease");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
