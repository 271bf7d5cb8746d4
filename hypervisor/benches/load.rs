//! The daemon under load: a crowd of processes, a restart under them, and callers that mean harm.
//!
//! `cargo bench -p hypervisor --bench load` prints the figures, in about five minutes. What is measured is the daemon and
//! the real client, over the real socket; all processes share the machine's CPUs. With `-- decisions`, `-- crowd` or
//! `-- harm` behind it, only that is measured.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

#[path = "../tests/crowd/mod.rs"]
mod crowd;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crowd::{Crowd, Plan, Told, Worker, cpu_time, durations, most_memory, now_us, quantile};
use limits::ComputeLimit;
use scheduler::{Scheduler, SessionId, Told as Report, WorkerId};

const CROWD: Plan = Plan {
    workers: 1_000,
    sessions: 200,
    devices: 8,
    // 2,000 leases a second, and as many reports.
    every: Duration::from_millis(500),
    lasts: Duration::from_secs(60),
};
/// Until the daemon knows what each process leaves to the others.
const BEGINNING: Duration = Duration::from_secs(20);
/// What is measured then, until the daemon is killed.
const STEADY: Duration = Duration::from_secs(30);
const MALFORMED: u32 = 100_000;
/// Who send them: each of them is paced.
const SENDERS: u32 = 16;
const SLOW: usize = 1_000;
/// A user of its own, for those who mean harm; with more of them, the users before it.
const NOBODY: u32 = 65_534;
const MIB: f64 = (1 << 20) as f64;

fn main() {
    if crowd::play() {
        return;
    }
    let asked = |part: &str| {
        let mut parts =
            std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
        parts.peek().is_none() || parts.any(|argument| argument == part)
    };
    for (part, measure) in [("decisions", decisions as fn()), ("crowd", crowded), ("harm", harmed)]
    {
        if asked(part) {
            measure();
        }
    }
}

fn helper() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// A daemon that comes before others at the CPU, as `deploy/systemd/sluice.service` has it.
fn daemon(dir: &Path) -> Child {
    let mut command = Command::new("nice");
    command.args(["-n", "-10", env!("CARGO_BIN_EXE_hypervisor")]);
    command.env_clear().args(["daemon", "--log", "warn", "--nvml", "none", "--socket"]);
    command.arg(dir.join("socket")).arg("--state").arg(dir.join("state")).spawn().unwrap()
}

fn wait_for(socket: &Path) {
    let start = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "no daemon");
        sleep(Duration::from_millis(1));
    }
}

/// What an ask, the decision that follows it and a report take in the scheduler of one device.
fn decisions() {
    // An eighth of the crowd, as it is spread over the devices; and all of it on one.
    for (sessions, workers, rounds) in [(25, 125, 200_000), (200, 1_000, 20_000)] {
        let mut device = Scheduler::default();
        for session in 0..sessions {
            let limit = ComputeLimit::fixed(1_000_000 / sessions);
            device.set_session(SessionId(session.into()), limit, 0).unwrap();
        }
        for worker in 0..workers {
            device.join(WorkerId(worker), SessionId(worker % u64::from(sessions))).unwrap();
        }
        let (mut now, mut took, mut held) = (0, Vec::new(), Vec::new());
        for n in 0..rounds {
            // As many are waiting or holding as want the device at once.
            now += 100_000;
            let _ = device.ask(WorkerId(n * 7 % workers), now);
            let start = Instant::now();
            let grants = device.decide(now);
            took.push(start.elapsed().as_nanos() as u64);
            held.extend(grants.into_iter().map(|grant| (grant, now)));
            if held.len() > 8 {
                let (grant, since) = held.remove(0);
                let used = (now - since) / 10;
                let report = Report {
                    held_ns: now - since,
                    estimated_ns: used,
                    backlogged_ns: 0,
                    idle_ns: 0,
                    launches: 1,
                    done: true,
                };
                let _ = device.report(grant.worker, grant.lease, report, now);
            }
        }
        took.sort_unstable();
        println!(
            "a decision, {workers} workers of {sessions} sessions on a device: median {:.2} us, p99 {:.2} us",
            quantile(&took, 0.5) as f64 / 1e3,
            quantile(&took, 0.99) as f64 / 1e3
        );
    }
}

fn show(what: &str, sorted: &[u64]) {
    println!(
        "{what:44} median {:6.2}  p90 {:6.2}  p99 {:6.2}  longest {:6.2} ms  ({})",
        quantile(sorted, 0.5) as f64 / 1e3,
        quantile(sorted, 0.9) as f64 / 1e3,
        quantile(sorted, 0.99) as f64 / 1e3,
        quantile(sorted, 1.0) as f64 / 1e3,
        sorted.len()
    );
}

fn crowded() {
    let dir = place();
    let socket = dir.path().join("socket");
    let mut first = daemon(dir.path());
    wait_for(&socket);
    let crowd = Crowd::start(&CROWD, &socket, dir.path(), &helper);
    let (begin, end) = (crowd.begin_us, crowd.end_us);
    let sleep_until = |at: u64| sleep(Duration::from_micros(at.saturating_sub(now_us())));
    let steady_at = begin + BEGINNING.as_micros() as u64;
    sleep_until(steady_at);
    let cpu = cpu_time(first.id());
    let killed_at = steady_at + STEADY.as_micros() as u64;
    sleep_until(killed_at);
    let cpu = (cpu_time(first.id()) - cpu).as_secs_f64() / STEADY.as_secs_f64();
    let memory = most_memory(first.id());
    first.kill().unwrap();
    first.wait().unwrap();
    let mut second = daemon(dir.path());
    wait_for(&socket);
    let back_at = now_us();
    sleep_until(end);
    let told = crowd.collect();
    let again = told.iter().map(|told| told.registered.iter().find(|&&at| at > killed_at).copied());
    let again: Option<Vec<u64>> = again.collect();
    let after = most_memory(second.id());
    let all = told.into_iter().fold(Told::default(), Told::and);
    let (granted, answered) = (
        durations(&all.granted, steady_at..killed_at),
        durations(&all.answered, steady_at..killed_at),
    );
    let first = durations(&all.granted, begin..steady_at);
    println!(
        "{} processes of {} sessions on {} devices, {} s: {:.0} leases a second",
        CROWD.workers,
        CROWD.sessions,
        CROWD.devices,
        STEADY.as_secs(),
        granted.len() as f64 / STEADY.as_secs_f64()
    );
    show("in the first 20 s: from the ask to the lease", &first);
    show("then: from the ask to the lease", &granted);
    show("a report", &answered);
    println!("asks that ended without a lease: {}", all.in_vain);
    println!(
        "the daemon: {:.1} MiB at most, {:.1} after its restart; {:.0} % of a CPU",
        memory as f64 / MIB,
        after as f64 / MIB,
        cpu * 100.0
    );
    let last = again.map(|again| again.into_iter().max().unwrap_or(0).saturating_sub(back_at));
    match last {
        Some(last) => {
            println!("all are registered again {:.2} s after its return", last as f64 / 1e6)
        }
        None => println!("NOT all have registered again"),
    }
    second.kill().unwrap();
    second.wait().unwrap();
}

/// Turns of a process that does no harm.
fn turns(worker: &mut Worker, count: usize) -> [Vec<u64>; 2] {
    worker.told = Told::default();
    for _ in 0..count {
        worker.turn();
        sleep(Duration::from_millis(2));
    }
    assert_eq!((worker.told.failed, worker.told.in_vain), (0, 0), "it was not served");
    [&worker.told.granted, &worker.told.answered].map(|all| durations(all, 0..u64::MAX))
}

/// What somebody else's calls take, in rounds, so that what else runs on the machine is alike for all.
fn harmed() {
    const ROUNDS: u32 = 3;
    const TURNS: usize = 700;
    let dir = place();
    let socket = dir.path().join("socket");
    let mut daemon = daemon(dir.path());
    wait_for(&socket);
    let mut worker = Worker::new(&socket, "somebody", 500_000);
    let _ = turns(&mut worker, 200);
    let before = most_memory(daemon.id());
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not root: those who mean harm are the same user");
    }
    let harmful = |user: u32| {
        let mut command = helper();
        if is_root {
            command.uid(NOBODY - user);
        }
        command
    };
    let mut seen = [const { Vec::new() }; 7];
    let [alone, busy, greedy, asking, crowded, malformed, slow] = &mut seen;
    for _ in 0..ROUNDS {
        alone.push(beside(&mut worker, TURNS, daemon.id()));
        let harm = crowd::busy(&socket, dir.path(), harmful(0));
        busy.push(beside(&mut worker, TURNS, daemon.id()));
        drop(harm);
        let harm = crowd::greedy(64, &socket, dir.path(), harmful(0));
        greedy.push(beside(&mut worker, TURNS, daemon.id()));
        drop(harm);
        let harm = crowd::asking(16, &socket, dir.path(), harmful(0));
        asking.push(beside(&mut worker, TURNS, daemon.id()));
        drop(harm);
        let harm: Vec<_> =
            (0..16).map(|_| crowd::asking(1, &socket, dir.path(), harmful(0))).collect();
        crowded.push(beside(&mut worker, TURNS, daemon.id()));
        drop(harm);
        let harm = crowd::nonsensical(64, &socket, dir.path(), harmful(0));
        malformed.push(beside(&mut worker, TURNS, daemon.id()));
        drop(harm);
        let callers = crowd::slow(&socket, SLOW);
        slow.push(beside(&mut worker, TURNS, daemon.id()));
        drop(callers);
    }
    let start = Instant::now();
    let floods: Vec<_> = (0..SENDERS)
        .map(|user| {
            let folder = dir.path().join(user.to_string());
            std::fs::create_dir(&folder).unwrap();
            crowd::malformed(MALFORMED / SENDERS, 64, &socket, &folder, harmful(user))
        })
        .collect();
    let told = floods.into_iter().map(crowd::ended).fold(Told::default(), Told::and);
    let statuses = told.statuses;
    let took = start.elapsed();
    for (what, rounds) in [
        "alone",
        "beside a busy program that calls nobody",
        "beside 64 calls at once, always",
        "beside a program that takes 16 leases at once without a pause",
        "beside 16 programs of one user that each take one without a pause",
        "beside malformed calls",
        "among slow callers",
    ]
    .into_iter()
    .zip(&seen)
    {
        println!("{what}, the least of {ROUNDS} rounds of {TURNS} turns:");
        for (n, call) in ["a lease", "a report"].into_iter().enumerate() {
            let least = |part| rounds.iter().map(|round| quantile(&round.0[n], part)).min();
            let [median, p90, p99] =
                [0.5, 0.9, 0.99].map(|part| least(part).unwrap_or(0) as f64 / 1e3);
            println!("  {call:10} median {median:6.2}  p90 {p90:6.2}  p99 {p99:6.2} ms");
        }
        let cpu = rounds.iter().map(|round| round.1).fold(f64::INFINITY, f64::min);
        println!("  the daemon needs {:.0} % of a CPU", cpu * 100.0);
    }
    println!(
        "{MALFORMED} malformed calls of {SENDERS} users in {:.1} s, by the first digit of the status (0: hung up): {statuses:?}",
        took.as_secs_f64()
    );
    let grown = most_memory(daemon.id()) - before;
    println!("{SLOW} slow callers; the daemon grew by {:.1} MiB in all", grown as f64 / MIB);
    assert!(daemon.try_wait().unwrap().is_none(), "the daemon ended");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// What turns take, and the part of a CPU that the daemon needs meanwhile.
fn beside(worker: &mut Worker, count: usize, daemon: u32) -> ([Vec<u64>; 2], f64) {
    let (cpu, start) = (cpu_time(daemon), Instant::now());
    let times = turns(worker, count);
    (times, (cpu_time(daemon) - cpu).as_secs_f64() / start.elapsed().as_secs_f64())
}
