//! Memory that the driver takes without a call that says how much.

use crate::common::{
    CONTEXT, MEMORY_LIMIT, MIB, Outcome, SESSION_DIR, Stage, UUIDS, eventually, first_device,
    outcome, start,
};
use limits::Limits;
use session::Page;
use session::layout::MemoryKind;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const USED: u64 = CONTEXT / MIB;

fn limited(stage: &Stage, limit: &str) -> Command {
    let program = stage.folder().join("steps");
    if !program.exists() {
        stage.compile("steps.c", "steps", &[]);
    }
    let mut command = stage.limited(program);
    command.env(MEMORY_LIMIT, first_device(limit));
    command
}

fn steps(stage: &Stage, limit: &str, steps: &[&str]) -> Outcome {
    outcome(limited(stage, limit).args(steps)).succeeded()
}

/// All values of `name=` in the output, in order.
fn values(outcome: &Outcome, name: &str) -> Vec<u64> {
    let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    outcome.stdout.split_whitespace().filter_map(value).collect()
}

#[test]
fn what_the_driver_takes_is_charged_and_given_back() {
    let stage = Stage::new();
    let limit = "2GiB";
    let outcome = steps(
        &stage,
        limit,
        &[
            "used", "load:300", "settle", "heap:108", "settle", "alloc:64", "settle", "unload",
            "settle",
        ],
    );
    assert_eq!(values(&outcome, "used"), [USED]);
    let expected = [USED + 300, USED + 400, USED + 464, USED + 164];
    assert_eq!(values(&outcome, "settled"), expected, "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
    // The rest of the limit can be allocated.
    let outcome =
        steps(&stage, limit, &["load:300", "settle", "alloc:1200", "alloc:100", "alloc:36"]);
    assert_eq!(values(&outcome, "alloc"), [0, 2, 0], "{outcome:#?}");
}

#[test]
fn it_is_noticed_within_a_fraction_of_a_second() {
    let stage = Stage::new();
    let looks = [["sleep:100", "used"]; 20];
    let outcome =
        steps(&stage, "2GiB", &[&["sleep:300", "load:300"], looks.as_flattened()].concat());
    let noticed = values(&outcome, "used").iter().position(|&used| used == USED + 300);
    let after_ms = noticed.map(|look| 100 * (look as u64 + 1));
    let most = outcome.busy.most_ms(300);
    assert!(after_ms.is_some_and(|ms| ms <= most), "{after_ms:?}, not {most} ms: {outcome:#?}");
}

/// Over the limit nothing grows. That is reported once, and released memory can be used again.
#[test]
fn over_the_limit_nothing_grows_until_there_is_less() {
    let stage = Stage::new();
    let outcome = steps(
        &stage,
        "1GiB",
        &[
            "heap:708",
            "settle",
            "alloc:1",
            "heap:712",
            "settle",
            "alloc:1",
            "heap:8",
            "settle",
            "alloc:500",
        ],
    );
    assert_eq!(values(&outcome, "alloc"), [2, 2, 0], "{outcome:#?}");
    assert_eq!(values(&outcome, "settled"), [1024, 1024, USED], "{outcome:#?}");
    let said: Vec<_> = outcome
        .complaints()
        .into_iter()
        .filter(|line| line.contains("over the memory limit"))
        .collect();
    assert_eq!(said.len(), 1, "{outcome:#?}");
    assert!(said[0].contains("1024 MiB") && said[0].contains("700 MiB"), "{outcome:#?}");
}

#[test]
fn idle_memory_of_pools_makes_room_for_it() {
    let stage = Stage::new();
    let outcome = steps(&stage, "1GiB", &["pool:256", "used", "load:400", "settle", "alloc:64"]);
    assert_eq!(values(&outcome, "used"), [USED + 256], "{outcome:#?}");
    assert_eq!(values(&outcome, "settled"), [USED + 400], "{outcome:#?}");
    assert_eq!(values(&outcome, "alloc"), [0]);
    assert_eq!(outcome.stderr, "");
}

/// Memory that is exported and then released stays charged to its importer.
#[test]
fn memory_whose_exporter_is_gone_is_its_importers() {
    let stage = Stage::new();
    let outcome = steps(&stage, "1GiB", &["reimport:256", "settle", "alloc:300", "alloc:200"]);
    assert_eq!(values(&outcome, "reimport"), [0], "{outcome:#?}");
    assert_eq!(values(&outcome, "settled"), [USED + 256], "{outcome:#?}");
    assert_eq!(values(&outcome, "alloc"), [2, 0], "{outcome:#?}");
}

/// The highest figure in the page while a program runs, once a second process's reader has found the page.
fn highest(stage: &Stage, command: &mut Command) -> u64 {
    let running = start(command);
    let dir = stage.session("session");
    let page = || Page::open(&dir, UUIDS[0].parse().unwrap(), &Limits::NONE);
    eventually("the page", || dir.join(format!("{}.page", UUIDS[0])).exists());
    let page = page().unwrap();
    let (mut highest, mut seen) = (0, false);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        let slots = page.layout().slots.iter();
        let figures = slots.map(|slot| slot.bytes[MemoryKind::Driver as usize].load(Relaxed));
        highest = highest.max(figures.max().unwrap());
        let alive = std::path::Path::new(&format!("/proc/{}/exe", running.pid())).exists();
        if seen && !alive {
            break;
        }
        seen |= alive;
        std::thread::sleep(Duration::from_millis(1));
    }
    running.end().succeeded();
    highest
}

#[test]
fn a_program_that_allocates_and_frees_all_the_time_sees_no_false_figures() {
    let stage = Stage::new();
    let mut command = limited(&stage, "4GiB");
    assert_eq!(highest(&stage, command.arg("churn:2500")), 0);
}

#[test]
fn what_the_driver_takes_is_seen_in_the_midst_of_allocations() {
    let stage = Stage::new();
    let mut command = limited(&stage, "4GiB");
    let highest = highest(&stage, command.args(["load:300", "churn:2500"]));
    // Everything except what was in flight at the moment of the check.
    assert!((200 * MIB..=300 * MIB).contains(&highest), "{highest}");
}

#[test]
fn there_is_one_reconciler_and_no_more_than_needed() {
    let stage = Stage::new();
    let outcome = steps(&stage, "1GiB", &["sleep:200", "threads", "alloc:10", "load:1", "threads"]);
    assert_eq!(values(&outcome, "reconcilers"), [1, 1], "{outcome:#?}");
    // The program's end does not wait for it.
    assert!(outcome.took < outcome.busy.most(Duration::from_secs(2)), "{outcome:#?}");
    // A session without limits may get one at any time; a program outside of a session may not.
    for (session, reconcilers) in [(Some("free"), 1), (None, 0)] {
        let mut unlimited = limited(&stage, "1GiB");
        unlimited.env_remove(MEMORY_LIMIT).env_remove(SESSION_DIR);
        unlimited.envs(session.map(|name| (SESSION_DIR, stage.session(name))));
        let outcome = crate::common::outcome(unlimited.args(["sleep:200", "threads"])).silent();
        assert_eq!(values(&outcome, "reconcilers"), [reconcilers], "{outcome:#?}");
    }
}

#[test]
fn a_forked_child_has_its_own() {
    let stage = Stage::new();
    let outcome = steps(&stage, "1GiB", &["fork", "sleep:200", "threads", "load:100", "settle"]);
    assert_eq!(values(&outcome, "reconcilers"), [1], "{outcome:#?}");
    assert_eq!(values(&outcome, "settled"), [USED + 100], "{outcome:#?}");
    assert_eq!(values(&outcome, "child"), [0], "{outcome:#?}");
}

/// A process ends before the reconciler has done anything, many times.
#[test]
fn the_end_of_a_process_does_not_meet_the_reconciler() {
    let stage = Stage::new();
    for round in 0..30 {
        let nap = format!("sleep:{}", round * 3);
        let outcome = steps(&stage, "1GiB", &["load:1", &nap]);
        assert_eq!(outcome.stderr, "", "{round}");
    }
}
