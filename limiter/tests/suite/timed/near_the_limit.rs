//! Close to the memory limit: the speed of a program, and how soon a change is seen.

use crate::common::{MEMORY_LIMIT, MIB, Outcome, Stage, UUIDS, eventually, first_device, start};
use session::layout::MemoryKind;
use session::{Page, Summary};

const LIMIT: u64 = 2048 * MIB;

/// A program with threads, of which another one is always allocating or freeing. NVML answers slowly.
fn busy() -> Outcome {
    let stage = Stage::new();
    let mut command = stage.limited(stage.compile("busy.c", "busy", &[]));
    command.args(["4", "1000"]).env("SLUICE_FAKE_LIST_US", "20000");
    let outcome = start(command.env(MEMORY_LIMIT, first_device(LIMIT))).end().succeeded();
    println!("{}", outcome.stdout);
    outcome
}

/// Exact checks are possible all the same, so few are needed.
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
