//! The share of a device's time, for every way to launch. All of these measure, so run one test at a time.

use crate::common::{
    self, COMPUTE_LIMIT, Outcome, Stage, UUIDS, built, first_device, gates_are_in_streams, outcome,
    start,
};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// In percentage points.
const TOLERANCE: f64 = 5.0;

const KERNEL_US: f64 = 2000.0;
/// Programs that do not hang have ended by then. Some need a second.
const SOON: Duration = Duration::from_millis(SOON_MS);
const SOON_MS: u64 = 10_000;

fn dense(command: &mut Command, seconds: &str, options: &[&str]) -> Outcome {
    let dense = ["dense", "--kernel-us", "2000", "--seconds", seconds];
    outcome(command.args(dense).args(options)).silent()
}

#[track_caller]
fn is_near(delivered: f64, share: u32, outcome: &Outcome, what: &str) {
    common::is_near(delivered, f64::from(share), TOLERANCE, outcome.busy, what);
}

/// Shares of other sizes are tested in virtual time (`fake-world`, `shares`).
#[test]
fn half_for_every_way_to_launch() {
    for options in [
        &["--pattern", "ex"][..],
        &["--pattern", "coop"],
        &["--pattern", "graph"],
        &["--pattern", "multistream"],
        &["--pattern", "threads"],
        &["--pattern", "kernel", "--ptsz"],
        &["--pattern", "ex", "--ptsz"],
        &["--pattern", "graph", "--ptsz"],
    ] {
        let stage = Stage::new();
        let mut command = stage.limited(built("tenant"));
        let limited = dense(command.env(COMPUTE_LIMIT, first_device(50)), "3", options);
        is_near(limited.percent(KERNEL_US), 50, &limited, &options.join(" "));
    }
}

#[test]
fn processes_of_a_session_share_its_part() {
    let stage = Stage::new();
    let dense = "dense --kernel-us 2000 --seconds 3 --windows 1";
    let tenant = format!("'{}' {dense}", built("tenant").display());
    let script = format!("{tenant} & {tenant}; wait");
    let both = outcome(stage.run(&["--compute", "50"]).args(["sh", "-c", &script])).silent();
    let results = both.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // When each began, how long it was busy, and with how many kernels.
    let each: Vec<_> = results
        .map(|it| ["windows_at", "seconds", "kernels"].map(|name| it[name].as_f64().unwrap()))
        .collect();
    assert_eq!(each.len(), 2, "{both:#?}");
    // One begins before the other. Alone it has all of the share.
    let begin = each.iter().map(|it| it[0]).reduce(f64::min).unwrap();
    let end = each.iter().map(|it| it[0] + it[1]).reduce(f64::max).unwrap();
    let parts: Vec<f64> = each.iter().map(|it| it[2] * KERNEL_US / 1e4 / (end - begin)).collect();
    // Both hold the device at the same time. Slicing it between them costs about a tenth.
    is_near(parts.iter().sum(), 47, &both, "two processes");
    let least = both.busy.least(10.0, 0.0);
    assert!(parts.iter().all(|&part| part > least), "one starves: {parts:?}");
}

#[test]
fn the_share_holds_on_older_drivers() {
    for older in &fake_node::older::ALL {
        let stage = Stage::of_driver(older);
        for options in [&["--pattern", "kernel"][..], &["--pattern", "graph"]] {
            let mut command = stage.limited(built("tenant"));
            let limited = dense(command.env(COMPUTE_LIMIT, first_device(40)), "3", options);
            is_near(limited.percent(KERNEL_US), 40, &limited, older.branch);
        }
    }
}

/// A library that exports the driver's functions, before and after the limiter.
#[test]
fn the_share_holds_beside_an_interposer() {
    let stage = Stage::new();
    let interposer = stage.compile("interposer.c", "interposer.so", &["-shared", "-fPIC"]);
    let says = stage.folder().join("said");
    let (limiter, interposer) = (stage.limiter(), interposer.display().to_string());
    let limiter = limiter.display().to_string();
    for preload in [[&limiter, &interposer], [&interposer, &limiter]] {
        let preload = format!("{}:{}", preload[0], preload[1]);
        let mut command = stage.limited(built("tenant"));
        command.env("LD_PRELOAD", &preload).env("INTERPOSER_SAYS", &says);
        let limited = dense(command.env(COMPUTE_LIMIT, first_device(30)), "3", &[]);
        let said = std::fs::read_to_string(&says).unwrap();
        assert!(!said.contains("launches=0\n"), "{said}");
        is_near(limited.percent(KERNEL_US), 30, &limited, &preload);
    }
}

/// The percentage of each of two devices that a program with both gets.
fn parts_of_two(limits: &str) -> (Vec<f64>, Outcome) {
    // A new stage, so the accounts are unused.
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    let outcome = dense(command.env(COMPUTE_LIMIT, limits), "3", &["--devices", "2"]);
    let result = outcome.json();
    let devices = result["devices"].as_array().unwrap();
    assert_eq!(devices.iter().map(|one| one["uuid"].as_str().unwrap()).collect::<Vec<_>>(), UUIDS);
    let part = |one: &serde_json::Value| one["rate"].as_f64().unwrap() * KERNEL_US / 1e4;
    (devices.iter().map(part).collect(), outcome)
}

/// One process with a thread for each device: each device has its own gate and account.
#[test]
fn two_devices_at_once_with_different_shares() {
    let shares = [25, 75];
    let limits = format!(r#"{{"{}": {}, "{}": {}}}"#, UUIDS[0], shares[0], UUIDS[1], shares[1]);
    let (parts, outcome) = parts_of_two(&limits);
    for (part, share) in parts.into_iter().zip(shares) {
        is_near(part, share, &outcome, &limits);
    }
}

/// A limit on one device does not affect the other.
#[test]
fn one_of_two_devices_limited() {
    let (parts, outcome) = parts_of_two(&first_device(30));
    is_near(parts[0], 30, &outcome, "limited");
    is_near(parts[1], 100, &outcome, "not limited");
}

/// Waiting threads sleep: the whole process, with its launches and the simulated device, uses as much CPU as a few
/// threads that sleep for a millisecond at a time. Not with gates in streams, where the simulated driver waits: it
/// polls words and events all the time, which says nothing about the limiter.
#[test]
fn waiting_at_a_tenth_costs_little_cpu_time() {
    for us in ["130", "2500"] {
        let stage = Stage::new();
        let mut command = stage.limited(built("tenant"));
        command.args(["dense", "--kernel-us", us, "--seconds", "4"]);
        let outcome = outcome(command.env(COMPUTE_LIMIT, first_device(10))).silent();
        let result = outcome.json();
        let [cpu, seconds] = ["cpu_seconds", "seconds"].map(|name| result[name].as_f64().unwrap());
        let (part, napping) = (cpu / seconds, outcome.busy.napping);
        println!("{us} us: {:.2} % of a core, napping {:.2} %", part * 100.0, napping * 100.0);
        let most = if gates_are_in_streams() { 40.0 } else { 6.0 };
        assert!(part > 0.0 && part < napping * most, "{us} us: {part} for {napping}");
    }
}

#[test]
fn the_policy_none_lifts_the_limit() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(25)).env("SLUICE_POLICY", "none");
    let free = dense(&mut command, "1", &[]);
    is_near(free.percent(KERNEL_US), 100, &free, "policy none");
}

/// The program `time` under a limit.
fn program(how: &str, seconds: &str, percent: u32) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let mut command = stage.limited(&program);
    outcome(command.args([how, seconds]).env(COMPUTE_LIMIT, first_device(percent))).silent()
}

#[track_caller]
fn share_of(how: &str, percent: u32) {
    let outcome = program(how, "3", percent);
    is_near(outcome.value("permille") as f64 / 10.0, percent, &outcome, how);
}

/// The program waits for each kernel, so it launches nothing ahead that could be counted.
#[test]
fn long_kernels_one_at_a_time() {
    share_of("one-at-a-time", 25);
}

/// The gate closes while a launch is on its way to the driver: each launch takes longer than the shortest lease. Its
/// work is charged all the same, and the time of the launch itself may be charged.
#[test]
fn launches_that_the_closing_gate_meets() {
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let run = |command: &mut Command| {
        let command = command.args(["one-at-a-time", "3"]);
        outcome(command.env("SLUICE_FAKE_LAUNCH_NS", "12000000")).silent()
    };
    let native = run(&mut stage.native(&program));
    let limited = run(stage.limited(&program).env(COMPUTE_LIMIT, first_device(50)));
    let (busy, [native, limited]) =
        (limited.busy, [native, limited].map(|one| one.value("permille")));
    println!("{limited} of {native} thousandths, {busy:?}");
    // Natively 20 of 32 ms, and less if the polling threads do not get a processor.
    let least = busy.least_in_turn(native as f64 * 0.32, 0.0);
    let fits = (least..=540.0).contains(&(limited as f64));
    assert!(fits, "{limited} of {native} thousandths, {busy:?}");
}

#[test]
fn streams_that_are_gone_before_their_work_is_done() {
    share_of("streams", 25);
}

#[test]
fn contexts_made_anew() {
    share_of("contexts", 50);
}

#[test]
fn a_capture_beside_a_limited_thread_stays_valid() {
    let stage = Stage::new();
    let time = stage.compile("time.c", "time", &[]);
    let native = outcome(stage.native(&time).args(["capture", "1"])).silent();
    assert_eq!(native.value("failed"), 0, "the program itself is wrong: {native:#?}");
    let limited = program("capture", "3", 25);
    assert_eq!(limited.value("failed"), 0, "{limited:#?}");
    assert!(limited.value("captures") > 2, "{limited:#?}");
}

#[test]
fn a_program_ends_while_its_threads_wait() {
    let outcome = program("exit-while-waiting", "0.5", 1);
    assert_eq!(outcome.value("leaving"), 1);
    assert!(outcome.took < SOON, "{outcome:#?}");
}

#[test]
fn a_program_that_is_killed_while_it_waits_ends_at_once() {
    let stage = Stage::new();
    let time = stage.compile("time.c", "time", &[]);
    let mut command = stage.limited(&time);
    command.args(["exit-while-waiting", "20"]).env(COMPUTE_LIMIT, first_device(1));
    let running = start(&mut command);
    std::thread::sleep(Duration::from_millis(700));
    rustix::process::kill_process(running.pid(), rustix::process::Signal::TERM).unwrap();
    let outcome = running.end();
    assert_eq!(outcome.code(), 1015, "{outcome:#?}");
    assert!(outcome.took < SOON, "{outcome:#?}");
}

#[test]
fn launches_in_exit_handlers_do_not_hang() {
    for how in ["exit-handler", "exit-handler-before"] {
        let outcome = program(how, "0.5", 10);
        assert!(outcome.value("late_ms") < SOON_MS, "{how}: {outcome:#?}");
    }
}

/// The device always has work. The kernels' own time, two thirds of the total, does not show that, and the queue is
/// always short. A busy machine cannot keep it filled, with a limit or without one.
#[test]
fn short_queues_of_short_kernels() {
    const WHOLE: f64 = 2000.0 / 3.0;
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let run = |command: &mut Command| {
        let command = command.args(["few-ahead", "4"]).env("SLUICE_FAKE_GAP_NS", "50000");
        let outcome = outcome(command).silent();
        (outcome.value("permille") as f64 / WHOLE * 100.0, outcome.busy)
    };
    let (native, _) = run(&mut stage.native(&program));
    let (limited, busy) = run(stage.limited(&program).env(COMPUTE_LIMIT, first_device(50)));
    println!("{limited:.1} of 50, {native:.1} without a limit, {busy:?}");
    let least = busy.least_in_turn(50.0, TOLERANCE).min(native * 0.35);
    assert!((least..=50.0 + TOLERANCE).contains(&limited), "{limited:.1}, {native:.1}, {busy:?}");
}

/// A launch's time on the host equals its kernel's own time.
#[test]
fn short_kernels_whose_launches_wait_for_them() {
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let run = |command: &mut Command| {
        let command = command.args(["short-ones", "3"]).env("CUDA_LAUNCH_BLOCKING", "1");
        outcome(command.env("SLUICE_FAKE_EVENT_NS", "1250")).silent().value("permille")
    };
    let native = run(&mut stage.native(&program));
    let limited = run(stage.limited(&program).env(COMPUTE_LIMIT, first_device(5)));
    println!("{limited} of {native} thousandths");
    if native <= 100 {
        println!("this machine is too slow for a limit of 50 thousandths to show");
    }
    assert!(limited <= 65, "{limited} of {native} thousandths");
}

/// These calls wait for work that the limiter holds; possibly no thread is left to release it.
#[test]
fn launches_that_wait_for_their_work_do_not_hang() {
    for variable in ["CUDA_LAUNCH_BLOCKING", "SLUICE_FAKE_LAUNCHES_WAIT"] {
        let stage = Stage::new();
        let program = stage.compile("time.c", "time", &[]);
        let run = |how: &str, percent: u32| {
            let mut command = stage.limited(&program);
            command.args([how, "0.5"]).env(variable, "1").env("SLUICE_FAKE_EVENT_NS", "1250");
            outcome(command.env(COMPUTE_LIMIT, first_device(percent))).silent()
        };
        let took = run("many-streams", 90).value("took_ms");
        assert!(took < SOON_MS, "{variable}: {took} ms");
        for how in ["exit-handler", "exit-handler-before"] {
            let late = run(how, 10).value("late_ms");
            assert!(late < SOON_MS, "{variable}, {how}: {late} ms");
        }
    }
}

/// A closed gate between the two opens after a second, and then sooner; otherwise there are six rounds in six seconds.
#[test]
fn work_that_waits_for_what_is_launched_next() {
    let outcome = program("dependent", "6", 80);
    let (longest, rounds) = (outcome.value("longest_ms"), outcome.value("rounds"));
    println!("{rounds} rounds, {longest} ms");
    assert!(longest < SOON_MS && rounds > 10, "{outcome:#?}");
}

/// A program that launches far ahead, and whose kernels take longer than others of the same function did: the work that
/// has begun at the end of each lease is charged.
#[test]
fn a_small_share_holds_from_the_first_launch() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(2));
    command.args("dense --kernel-us 1000 --seconds 4 --windows 1".split(' '));
    let limited = outcome(&mut command).silent();
    let windows = limited.json()["windows"].clone();
    let done_ms: f64 = windows.as_array().unwrap().iter().map(|one| one.as_f64().unwrap()).sum();
    // The earnings of 4.1 s, one millisecond, and what a late governor lets through at last.
    let most_ms = 0.02 * 4_100.0 + 1.0 + 12.0;
    assert!(done_ms <= most_ms, "{windows} ms: {done_ms:.1} of {most_ms:.1}");
    assert!(done_ms >= limited.busy.least(20.0, 0.0), "{windows}, {:?}", limited.busy);
}
