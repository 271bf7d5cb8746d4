//! Programs whose kernels always use new grids. All of these measure, so run one test at a time.

use crate::common::{
    Busy, COMPUTE_LIMIT, SESSION_DIR, Stage, built, eventually, first_device, outcome, start,
};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Thousandths of the time in which the program `grids` keeps the device busy: without the limiter, and at a share of a
/// half.
fn native_and_half(how: &str, each: &str) -> (u64, u64, Busy) {
    let stage = Stage::new();
    let program = stage.compile("grids.c", "grids", &[]);
    let native = outcome(stage.native(&program).args([how, "1", each])).silent().value("permille");
    let mut limited = stage.limited(&program);
    limited.args([how, "3", each]).env(COMPUTE_LIMIT, first_device(50));
    let outcome = outcome(&mut limited).silent();
    let (limited, busy) = (outcome.value("permille"), outcome.busy);
    println!(
        "{how}, a new grid every {each} launches: {limited} of {native} thousandths, {busy:?}"
    );
    (native, limited, busy)
}

/// The same at a half, beside a dense program with the other half; and the percentage that the dense program gets.
fn beside_a_neighbour(how: &str, each: &str) -> (u64, f64, Busy) {
    let stage = Stage::new();
    let program = stage.compile("grids.c", "grids", &[]);
    let socket = stage.folder().join("daemon.sock");
    let mut daemon = stage.native(built("hypervisor"));
    daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket).stdout(Stdio::null());
    let daemon = start(&mut daemon);
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    let session = |name: &str, program: &std::path::Path| {
        let mut command = stage.limited(program);
        command.env(SESSION_DIR, stage.session(name)).env("SLUICE_DAEMON", &socket);
        command.env(COMPUTE_LIMIT, first_device(50));
        command
    };
    let other = start(session("one", &program).args([how, "5", each]));
    let dense = ["dense", "--kernel-us", "500", "--seconds", "4"];
    let neighbour = outcome(session("two", &built("tenant")).args(dense)).silent().percent(500.0);
    let other = other.end().silent();
    daemon.kill();
    (other.value("permille"), neighbour, other.busy)
}

/// The program needs 49 %. The charge for grids that were not sampled is close to their time.
#[test]
fn less_than_the_share_is_not_slowed_down() {
    for each in ["8", "1"] {
        let (native, limited, busy) = native_and_half("sparse", each);
        assert!(native < 500, "it needs too much: {native}");
        let least = busy.least(native as f64, native as f64 * 0.1);
        assert!(limited as f64 >= least, "{each}: {limited} of {native} thousandths, {busy:?}");
    }
}

/// The same if tiny and huge grids alternate, and if tiny grids do all the work.
#[test]
fn dense_work_gets_no_more_than_its_share() {
    for (how, each) in
        [("dense", "1"), ("turns", "1"), ("against", "1"), ("turns", "8"), ("against", "8")]
    {
        let (_, limited, _) = native_and_half(how, each);
        assert!(limited <= 550, "{how} {each}: {limited} thousandths instead of 500");
    }
}

/// Queues are short while very short kernels follow each other. The device is idle at times.
#[track_caller]
fn gets_its_share(how: &str, each: &str, least: u64) {
    let (_, limited, busy) = native_and_half(how, each);
    let least = busy.least(least as f64, 0.0);
    assert!(limited as f64 >= least, "{how} {each}: {limited} thousandths, not {least}, {busy:?}");
}

#[test]
fn dense_work_gets_its_share() {
    gets_its_share("dense", "1", 450);
}

#[test]
fn dense_work_gets_its_share_where_grids_take_turns() {
    gets_its_share("turns", "1", 330);
}

#[test]
fn dense_work_gets_its_share_where_few_grids_take_turns() {
    gets_its_share("turns", "8", 330);
}

#[test]
fn dense_work_gets_its_share_where_tiny_grids_do_the_work() {
    gets_its_share("against", "1", 330);
}

#[test]
fn dense_work_gets_its_share_where_few_tiny_grids_do_the_work() {
    gets_its_share("against", "8", 330);
}

/// Here only estimates show which program used how much: no choice of grids evades them. With short queues the two
/// programs disturb each other, and the device is idle at times.
#[test]
fn a_neighbour_keeps_its_half() {
    let kinds = [
        ("dense", "1", 42.0),
        ("turns", "1", 38.0),
        ("against", "1", 38.0),
        ("against", "8", 30.0),
    ];
    for (how, each, least) in kinds {
        let (other, neighbour, busy) = beside_a_neighbour(how, each);
        println!("{how} {each}: {other} thousandths, the neighbour {neighbour:.1} %, {busy:?}");
        assert!(other <= 550, "{how} {each}: {other} thousandths instead of 500");
        let fits = neighbour > busy.least(least, 0.0);
        assert!(fits, "{how} {each}: the neighbour gets {neighbour:.1} % instead of 50, {busy:?}");
    }
}
