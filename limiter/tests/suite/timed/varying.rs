//! Kernels whose time varies with an argument that only they read. All of these measure, so run one test at a time.

use super::daemon::{daemon, limited, socket};
use crate::common::{self, COMPUTE_LIMIT, Outcome, SESSION_DIR, Stage, first_device, start};
use std::path::Path;
use std::process::Command;

/// The percentage of short kernels, and the duration of the others in microseconds.
const PATTERNS: [[&str; 2]; 6] = [
    ["90", "20000"],
    ["80", "20000"],
    ["50", "20000"],
    ["90", "5000"],
    ["50", "5000"],
    ["90", "100000"],
];
const SHARE: u32 = 30;

fn varying(stage: &Stage, pattern: [&str; 2], socket: Option<&Path>) -> Command {
    let mut command = stage.limited(stage.compile("varying.c", "varying", &[]));
    command.args(pattern).arg("5").env(COMPUTE_LIMIT, first_device(SHARE));
    if let Some(socket) = socket {
        command.env(SESSION_DIR, stage.session("other")).env("SLUICE_DAEMON", socket);
    }
    command
}

/// No more than the share and 2 points, and on a quiet machine no less than `tolerance` below.
#[track_caller]
fn is_near(outcome: &Outcome, pattern: [&str; 2], tolerance: f64) {
    let percent = outcome.value("permille") as f64 / 10.0;
    let share = f64::from(SHARE);
    let least = outcome.busy.least_in_turn(share, tolerance);
    println!("{pattern:?}: {percent:.1} of {share}, {least:.1} at least; {:?}", outcome.busy);
    assert!((least..=share + 2.0).contains(&percent), "{pattern:?}: {percent}, {:?}", outcome.busy);
}

#[test]
fn no_pattern_gets_more_than_its_share() {
    for pattern in PATTERNS {
        let stage = Stage::new();
        is_near(&common::outcome(&mut varying(&stage, pattern, None)).silent(), pattern, 2.0);
    }
}

#[test]
fn no_pattern_gets_more_than_its_share_from_a_daemon() {
    for pattern in PATTERNS {
        let stage = Stage::new();
        let daemon = daemon(&stage);
        let socket = socket(&stage);
        is_near(
            &common::outcome(&mut varying(&stage, pattern, Some(&socket))).silent(),
            pattern,
            2.0,
        );
        daemon.kill();
    }
}

/// Most launches are shorter than the estimate, and some much longer.
#[test]
fn a_heavy_tail_gets_no_more_than_its_share() {
    let stage = Stage::new();
    is_near(&common::outcome(&mut varying(&stage, ["0", "0"], None)).silent(), ["0", "0"], 2.0);
}

/// It waits for its launches, and its neighbour always has more: such a program seems to leave the device idle.
#[test]
fn a_neighbour_keeps_its_share_beside_any_pattern() {
    for pattern in [PATTERNS[0], PATTERNS[3]] {
        let stage = Stage::new();
        let daemon = daemon(&stage);
        let socket = socket(&stage);
        let other = start(&mut varying(&stage, pattern, Some(&socket)));
        let dense = ["dense", "--kernel-us", "1000", "--seconds", "4"];
        let mut neighbour = limited(&stage, "neighbour", 70, &socket);
        let neighbour = common::outcome(neighbour.args(dense)).silent();
        let (percent, least) = (neighbour.percent(1000.0), neighbour.busy.least(70.0, 4.0));
        println!("the neighbour of {pattern:?}: {percent:.1} of 70; {:?}", neighbour.busy);
        assert!(percent >= least, "{pattern:?}: {percent:.1} of 70, not {least:.1}");
        // It waits for each step, and then for its turn.
        is_near(&other.end().silent(), pattern, 8.0);
        daemon.kill();
    }
}
