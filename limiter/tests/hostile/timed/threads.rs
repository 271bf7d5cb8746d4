//! Programs that launch from very many threads and streams.

use super::device_time::{Device, Worked, daemon};
use crate::common::{COMPUTE_LIMIT, SESSION_DIR, Stage, built, first_device, outcome, start};
use std::process::Command;
use std::time::Duration;

/// The length of a session's turn beside another session, with gates on threads (ms).
const TURN_OF_THREADS: Duration = Duration::from_millis(50);

fn beside(threads: &str, us: &str) -> Worked {
    let stage = Stage::new();
    let program = stage.compile("threads.c", "threads", &[]);
    let device = Device::of(&stage);
    let (socket, daemon) = daemon(&stage);
    let tenant = |name: &str, mut command: Command| {
        command
            .env(SESSION_DIR, stage.session(name))
            .env(COMPUTE_LIMIT, first_device(50))
            .env("SLUICE_DAEMON", &socket);
        command
    };
    let mut many = tenant("many", stage.limited(&program));
    let many = start(many.args([threads, "9", us]));
    let mut one = tenant("one", stage.limited(built("tenant")));
    let one = start(one.args(["dense", "--kernel-us", "2000", "--seconds", "9"]));
    std::thread::sleep(Duration::from_millis(2500));
    let pids = [&many, &one].map(|running| running.pid().as_raw_nonzero().get().unsigned_abs());
    let worked = device.watch(&pids, Duration::from_secs(5));
    println!("{threads} threads of {us} us: {worked:.2?}");
    many.end().silent();
    one.end().silent();
    daemon.kill();
    worked
}

/// The other session gets as much as beside one thread, and does not wait longer. The program itself gets no more
/// either.
#[test]
fn a_neighbour_of_many_threads_gets_its_share() {
    let one_thread = beside("1", "2000");
    for (threads, us) in [("32", "2000"), ("200", "2000"), ("500", "2000"), ("200", "100")] {
        let worked = beside(threads, us);
        let [many, other] = worked.percent[..] else { panic!("{worked:?}") };
        // With so many threads the program spends time on waking them, which also keeps the machine busy.
        let tolerance = if threads == "32" { 2.0 } else { 15.0 };
        let [of_many, of_other] =
            [(one_thread.percent[0], tolerance), (one_thread.percent[1], 2.0)]
                .map(|(wanted, tolerance)| worked.busy.least(wanted, tolerance));
        assert!((of_other..=52.0).contains(&other), "{threads} of {us} us: {worked:?}");
        assert!((of_many..=52.0).contains(&many), "{threads} of {us} us: {worked:?}");
        let pause = worked.longest_pause[1];
        // So many streams are not held: turns are as long as with gates on threads.
        let most = worked.busy.most(one_thread.longest_pause[1].max(TURN_OF_THREADS) * 3);
        assert!(pause <= most, "{threads} of {us} us: {pause:?}");
    }
}

/// Each thread makes a lane and ends at once.
#[test]
fn ten_thousand_threads_with_one_launch_each() {
    let stage = Stage::new();
    let program = stage.compile("threads.c", "threads", &[]);
    let run = |mut command: Command| outcome(command.args(["10000", "0", "10", "short"])).silent();
    let native = run(stage.native(&program));
    let mut command = stage.limited(&program);
    command.env(COMPUTE_LIMIT, first_device(90));
    let limited = run(command);
    let [native_ms, ms] = [&native, &limited].map(|outcome| outcome.value("ms"));
    println!("{ms} ms for {native_ms}, {} KiB more", limited.value("kib"));
    assert!(ms <= native_ms * 3 + 2_000, "{ms} ms instead of {native_ms}");
    assert!(limited.value("kib") < 8 << 10, "{limited:?}");
}
