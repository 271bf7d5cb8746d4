//! The share of a device's time, for every way to launch. All of these measure, so run one test at a time.

use crate::common::{COMPUTE_LIMIT, Outcome, Stage, UUIDS, built, first_device, outcome, start};
use std::process::Command;
use std::time::Duration;

/// In percentage points.
const TOLERANCE: f64 = 5.0;

fn dense(command: &mut Command, seconds: &str, options: &[&str]) -> Outcome {
    let dense = ["dense", "--kernel-us", "2000", "--seconds", seconds];
    outcome(command.args(dense).args(options)).silent()
}

/// Kernels per second without the limiter, and the percentage of that under a limit of `percent`.
fn delivered(stage: &Stage, percent: u32, options: &[&str]) -> f64 {
    let native = dense(&mut stage.native(built("tenant")), "1", options).rate();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(percent));
    let limited = dense(&mut command, "3", options).rate();
    println!("{percent} % {options:?}: {limited:.1} of {native:.1} kernels/s");
    limited / native * 100.0
}

#[track_caller]
fn is_near(delivered: f64, share: f64, what: &str) {
    println!("{what}: {delivered:.2} of {share}");
    assert!((delivered - share).abs() <= TOLERANCE, "{what}: {delivered:.1} instead of {share}");
}

#[test]
fn a_quarter_and_three_quarters() {
    for percent in [25, 75] {
        is_near(delivered(&Stage::new(), percent, &[]), f64::from(percent), "kernel");
    }
}

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
        is_near(delivered(&Stage::new(), 50, options), 50.0, &options.join(" "));
    }
}

#[test]
fn processes_of_a_session_share_its_part() {
    let stage = Stage::new();
    let native = dense(&mut stage.native(built("tenant")), "1", &[]).rate();
    let tenant = format!("'{}' dense --kernel-us 2000 --seconds 3", built("tenant").display());
    let script = format!("{tenant} & {tenant}; wait");
    let both = outcome(stage.run(&["--compute", "50"]).args(["sh", "-c", &script])).silent();
    let rates: Vec<f64> = both
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|result| result["rate"].as_f64().unwrap())
        .collect();
    assert_eq!(rates.len(), 2, "{both:#?}");
    // Both hold the device at the same time. Slicing it between them costs about a tenth.
    is_near(rates.iter().sum::<f64>() / native * 100.0, 47.0, "two processes");
    assert!(rates.iter().all(|&rate| rate / native > 0.1), "one starves: {rates:?} of {native}");
}

/// Kernels per second on each of two devices.
fn rates_of_two(command: &mut Command, seconds: &str) -> Vec<f64> {
    let result = dense(command, seconds, &["--devices", "2"]).json();
    let devices = result["devices"].as_array().unwrap();
    assert_eq!(devices.iter().map(|one| one["uuid"].as_str().unwrap()).collect::<Vec<_>>(), UUIDS);
    devices.iter().map(|one| one["rate"].as_f64().unwrap()).collect()
}

/// One process with a thread for each device: each device has its own gate and account.
#[test]
fn two_devices_at_once_with_different_shares() {
    let stage = Stage::new();
    let native = rates_of_two(&mut stage.native(built("tenant")), "1");
    for shares in [[25, 75], [75, 25], [50, 50]] {
        let limits = format!(r#"{{"{}": {}, "{}": {}}}"#, UUIDS[0], shares[0], UUIDS[1], shares[1]);
        // A new stage, so the accounts are unused.
        let stage = Stage::new();
        let mut command = stage.limited(built("tenant"));
        let rates = rates_of_two(command.env(COMPUTE_LIMIT, &limits), "3");
        for ((rate, native), share) in rates.iter().zip(&native).zip(shares) {
            is_near(rate / native * 100.0, f64::from(share), &limits);
        }
    }
}

/// A limit on one device does not affect the other.
#[test]
fn one_of_two_devices_limited() {
    let stage = Stage::new();
    let native = rates_of_two(&mut stage.native(built("tenant")), "1");
    let mut command = stage.limited(built("tenant"));
    let rates = rates_of_two(command.env(COMPUTE_LIMIT, first_device(30)), "3");
    is_near(rates[0] / native[0] * 100.0, 30.0, "limited");
    is_near(rates[1] / native[1] * 100.0, 100.0, "not limited");
}

/// Waiting threads sleep. CPU time of the whole process, including launches and the simulated device, in
/// percent of a core: it is 1.5 to 2; the limit allows for noisy machines.
#[test]
fn waiting_at_a_tenth_costs_little_cpu_time() {
    for us in ["130", "2500"] {
        let stage = Stage::new();
        let mut command = stage.limited(built("tenant"));
        command.args(["dense", "--kernel-us", us, "--seconds", "4"]);
        let result = outcome(command.env(COMPUTE_LIMIT, first_device(10))).silent().json();
        let [cpu, seconds] = ["cpu_seconds", "seconds"].map(|name| result[name].as_f64().unwrap());
        println!("{us} us: {:.2} % of a core", cpu / seconds * 100.0);
        assert!(cpu > 0.0 && cpu / seconds < 0.05, "{us} us: {result}");
    }
}

#[test]
fn the_policy_none_lifts_the_limit() {
    let stage = Stage::new();
    let native = dense(&mut stage.native(built("tenant")), "1", &[]).rate();
    let mut command = stage.limited(built("tenant"));
    command.env(COMPUTE_LIMIT, first_device(25)).env("SLUICE_POLICY", "none");
    is_near(dense(&mut command, "1", &[]).rate() / native * 100.0, 100.0, "policy none");
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
    is_near(outcome.value("permille") as f64 / 10.0, f64::from(percent), how);
}

/// The program waits for each kernel, so it launches nothing ahead that could be counted.
#[test]
fn long_kernels_one_at_a_time() {
    share_of("one-at-a-time", 25);
}

/// The gate closes while a launch is on its way to the driver: each takes longer than the shortest lease. Its
/// work is charged all the same, and the time of the launch itself may be.
#[test]
fn launches_that_the_closing_gate_meets() {
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let run = |command: &mut Command| {
        let command = command.args(["one-at-a-time", "3"]);
        outcome(command.env("SLUICE_FAKE_LAUNCH_NS", "12000000")).silent().value("permille")
    };
    let native = run(&mut stage.native(&program));
    let limited = run(stage.limited(&program).env(COMPUTE_LIMIT, first_device(50)));
    println!("{limited} of {native} thousandths");
    assert!(native > 550, "{native}");
    assert!((200..=540).contains(&limited), "{limited} of {native} thousandths");
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
    assert!(limited.value("captures") > 20, "{limited:#?}");
}

#[test]
fn a_program_ends_while_its_threads_wait() {
    let outcome = program("exit-while-waiting", "0.5", 1);
    assert_eq!(outcome.value("leaving"), 1);
    assert!(outcome.took < Duration::from_millis(2500), "{outcome:#?}");
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
    assert!(outcome.took < Duration::from_millis(2700), "{outcome:#?}");
}

#[test]
fn launches_in_exit_handlers_do_not_hang() {
    for how in ["exit-handler", "exit-handler-before"] {
        let outcome = program(how, "0.5", 10);
        assert!(outcome.value("late_ms") < 3000, "{how}: {outcome:#?}");
    }
}

/// The device always has work. The kernels' own time, two thirds of the total, does not show that, and the
/// queue is always short.
#[test]
fn short_queues_of_short_kernels() {
    let stage = Stage::new();
    let program = stage.compile("time.c", "time", &[]);
    let mut limited = stage.limited(&program);
    limited.args(["few-ahead", "4"]).env("SLUICE_FAKE_GAP_NS", "50000");
    let limited = outcome(limited.env(COMPUTE_LIMIT, first_device(50))).silent();
    let whole = 2000.0 / 3.0;
    is_near(limited.value("permille") as f64 / whole * 100.0, 50.0, "short queues");
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
    assert!(native > 150, "{native}");
    assert!(limited <= 65, "{limited} of {native} thousandths");
}

/// These calls wait for work that the limiter holds back; possibly no thread is left to release it.
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
        assert!(took < 1000, "{variable}: {took} ms");
        for how in ["exit-handler", "exit-handler-before"] {
            let late = run(how, 10).value("late_ms");
            assert!(late < 3000, "{variable}, {how}: {late} ms");
        }
    }
}

/// A closed gate between the two opens after a second, and then sooner.
#[test]
fn work_that_waits_for_what_is_launched_next() {
    let outcome = program("dependent", "6", 80);
    let (longest, rounds) = (outcome.value("longest_ms"), outcome.value("rounds"));
    println!("{rounds} rounds, {longest} ms");
    assert!(longest < 3_500 && rounds > 20, "{outcome:#?}");
}
