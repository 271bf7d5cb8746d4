//! Close to the memory limit: the speed of a program, and how soon a change is noticed.

use crate::common::{
    MEMORY_LIMIT, MIB, Outcome, SESSION_DIR, Stage, UUIDS, eventually, first_device, start,
};
use session::layout::MemoryKind;
use session::{Page, Summary};
use std::process::Command;

const LIMIT: u64 = 2048 * MIB;

/// A program with threads, of which one is always allocating or freeing. NVML answers slowly.
fn busy() -> Outcome {
    let stage = Stage::new();
    let mut command = stage.limited(stage.compile("busy.c", "busy", &[]));
    command.args(["4", "1000"]).env("SLUICE_FAKE_LIST_US", "20000");
    let outcome = start(command.env(MEMORY_LIMIT, first_device(LIMIT))).end().succeeded();
    println!("{}", outcome.stdout);
    outcome
}

/// Exact checks are still possible, so few are needed.
#[test]
fn a_busy_program_stays_fast_close_to_its_limit() {
    let outcome = busy();
    assert!(outcome.value("near") * 2 > outcome.value("far"), "{outcome:#?}");
}

#[test]
fn a_busy_program_can_use_what_the_driver_has_given_back() {
    let outcome = busy();
    let value = |name| outcome.value(name);
    // The code takes 24 MiB.
    assert!(value("with") + 16 < value("before"), "{outcome:#?}");
    assert!(value("after") >= value("with") + 20, "{outcome:#?}");
}

/// The headroom is only a small part of the limit, has a kind of its own, and ends with the images.
#[test]
fn headroom_is_shown_and_given_back() {
    let stage = Stage::new();
    let steps = stage.compile("steps.c", "steps", &[]);
    let mut command = stage.limited(steps);
    let steps = [
        "image:8",
        "info",
        "use",
        "settle",
        "info",
        "image:100",
        "info",
        "alloc:1480",
        "alloc:1464",
    ];
    let rest = ["unload", "unload", "settle", "info", "sleep:1000"];
    let running = start(command.args(steps).args(rest).env(MEMORY_LIMIT, first_device(LIMIT)));
    let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
    let summary = || Page::open_existing(&page).ok().and_then(|page| page.summary().ok());
    let headroom = |summary: Summary| summary.bytes(MemoryKind::Headroom) / MIB;
    // Two images have 64 MiB, which is 1/32 of the limit.
    eventually("headroom", || summary().map(headroom) == Some(64));
    let outcome = running.end().succeeded();
    let free: Vec<u64> = outcome
        .stdout
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("free=")?.parse().ok())
        .collect();
    // At least 16 MiB of headroom, however much is placed; 8 MiB of code; 64 MiB for the larger image.
    assert_eq!(free[..3], [1536 - 16, 1536 - 16 - 8, 1536 - 64 - 8], "{outcome:#?}");
    assert!(outcome.stdout.contains("alloc=2 alloc=0"), "{outcome:#?}");
    assert_eq!(free[3], 1536 - 1464, "{outcome:#?}");
}

/// A program that allocates and frees with this many MiB left, in a session of its own. NVML takes 1 ms.
fn near(stage: &Stage, session: &str, arguments: &[&str]) -> Command {
    let mut command = stage.limited(stage.compile("near.c", &format!("near-{session}"), &[]));
    command
        .args(arguments)
        .env(SESSION_DIR, stage.session(session))
        .env(MEMORY_LIMIT, first_device(LIMIT))
        .env("SLUICE_FAKE_LIST_US", "1000")
        .env("SLUICE_FAKE_ASKED", stage.folder().join(format!("asked-{session}")));
    command
}

/// Queries of NVML and of the driver took a bounded part of the second, however often the program allocated.
#[track_caller]
fn is_asked_now_and_then(outcome: &Outcome) {
    println!("{}", outcome.stdout);
    let value = |name| outcome.value(name);
    assert!(value("lists") < 100, "{outcome:#?}");
    assert!(value("infos") * 4 < value("rounds"), "{outcome:#?}");
}

#[test]
fn what_is_freed_and_allocated_again_needs_no_check_each_time() {
    for what in ["linear", "mixed", "pool", "physical"] {
        let stage = Stage::new();
        let running = start(&mut near(&stage, "session", &[what, "80", "1000", "1"]));
        is_asked_now_and_then(&running.end().succeeded());
    }
}

#[test]
fn nor_beside_another_session_that_allocates_all_the_time() {
    for what in ["linear", "mixed"] {
        let stage = Stage::new();
        let arguments = [what, "80", "1000", "1"];
        let begin = |session| start(&mut near(&stage, session, &arguments));
        for running in [begin("session"), begin("other")] {
            is_asked_now_and_then(&running.end().succeeded());
        }
    }
}

/// In the middle of this, the driver takes more than is left, and no call reports it. Mostly that is noticed within 2
/// ms.
#[test]
fn what_the_driver_takes_meanwhile_is_noticed_in_time() {
    for what in ["linear", "mixed", "pool", "physical"] {
        let stage = Stage::new();
        let running = start(&mut near(&stage, "session", &[what, "80", "1000", "1", "128"]));
        let outcome = running.end().succeeded();
        println!("{what}: {}", outcome.stdout);
        let most = outcome.busy.most_ms(120) * 1_000;
        assert!(outcome.value("noticed_us") < most, "{outcome:#?}");
    }
}
