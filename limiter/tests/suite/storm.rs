//! Many processes of one session race for its last bytes, are killed at random moments, and have its page damaged while
//! they run.

use crate::common::{
    CONTEXT, MEMORY_LIMIT, MIB, Outcome, Stage, UUIDS, eventually, first_device, start,
};
use fake_node::{Config, Node};
use session::{Page, Summary};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// No call takes this long, even if sixteen processes share a slow core. A process that waits for a dead process's lock
/// would wait for ever.
const HELD_UP_US: u64 = 10_000_000;

fn storm(stage: &Stage, limit: u64, arguments: &[&str]) -> Command {
    let program = stage.compile("storm.c", "storm", &[]);
    let mut command = stage.limited(program);
    command.args(arguments).env(MEMORY_LIMIT, first_device(limit));
    command
}

fn page(stage: &Stage) -> PathBuf {
    stage.session("session").join(format!("{}.page", UUIDS[0]))
}

fn summary(stage: &Stage) -> Option<Summary> {
    Page::open_existing(&page(stage)).ok()?.summary().ok()
}

fn node(stage: &Stage) -> Node {
    Node::open_at(&stage.node(), Config::from_lookup(|_| None).unwrap()).unwrap()
}

/// Sixteen processes want a chunk at once, ten thousand times, and five chunks fit. Each time five processes get one,
/// in any order, and the device never has a byte too much.
#[test]
fn the_last_bytes_are_given_once() {
    const WORKERS: u64 = 16;
    const FITS: u64 = 5;
    let stage = Stage::new();
    let limit = WORKERS * CONTEXT + FITS * 2 * MIB;
    let (workers, chunk, fits) = (WORKERS.to_string(), (2 * MIB).to_string(), FITS.to_string());
    let running = start(&mut storm(&stage, limit, &["race", &workers, "10000", &chunk, &fits]));
    let node = node(&stage);
    let over = AtomicBool::new(false);
    let (mut most, mut samples) = (0, 0);
    let outcome = std::thread::scope(|scope| {
        let race = scope.spawn(|| running.end());
        while !race.is_finished() {
            most = node.lock_reaped().devices[0].used.max(most);
            samples += 1;
            if summary(&stage).is_some_and(|summary| summary.used > limit) {
                over.store(true, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(1));
        }
        race.join().unwrap()
    })
    .silent();
    println!("{} most={most} of {limit}, {samples} samples, {:?}", outcome.stdout, outcome.took);
    assert_eq!((outcome.value("bad"), outcome.value("wrong")), (0, 0), "{outcome:#?}");
    assert!(most <= limit && most > WORKERS * CONTEXT, "{most} of {limit}");
    assert!(!over.into_inner());
}

#[test]
fn five_hundred_kills() {
    const WORKERS: u64 = 8;
    let stage = Stage::new();
    let limit = WORKERS * CONTEXT + 600 * MIB;
    let result = stage.folder().join("result");
    let running = start(&mut storm(&stage, limit, &["kill", "8", "500", result.to_str().unwrap()]));
    let node = node(&stage);
    let mut most = 0;
    eventually("the survivors report", || {
        most = node.lock_reaped().devices[0].used.max(most);
        result.exists()
    });
    let report = fs::read_to_string(&result).unwrap();
    let held: u64 = report
        .split_whitespace()
        .find_map(|word| word.strip_prefix("held=")?.parse().ok())
        .unwrap();
    assert!(held > 0, "{report}");
    let survivors = held + WORKERS * CONTEXT;
    let found = summary(&stage).unwrap();
    let on_node = node.lock_reaped().devices[0].used;
    fs::write(stage.folder().join("result.done"), "").unwrap();
    let outcome = running.end().succeeded();
    println!("{} {report} most={most} of {limit}, {:?}", outcome.stdout, outcome.took);
    assert_eq!(found.processes.len() as u64, WORKERS, "{found:#?}");
    assert_eq!(
        (found.total(), found.used, on_node),
        (survivors, survivors, survivors),
        "{found:#?}"
    );
    assert_eq!(outcome.value("bad"), 0, "{outcome:#?}");
    assert!(outcome.value("slowest_us") < HELD_UP_US, "{outcome:#?}");
    // The kernel releases a killed process's locks before its device memory. For a moment that memory counts as free
    // and is still in use.
    assert!(most <= limit + CONTEXT, "{most} of {limit}");
}

/// The damage's name, and the function that does it.
type Damage = (&'static str, fn(&PathBuf));
/// Damage that a process with write access to the session's directory can do to its page.
const DAMAGES: [Damage; 4] = [
    ("cut to nothing", |path| {
        OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    }),
    ("cut in the middle", |path| {
        OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    }),
    ("noise", |path| fill(path, |place| (place.wrapping_mul(2_654_435_761) >> 13) as u8)),
    ("zeros", |path| fill(path, |_| 0)),
];

fn fill(path: &PathBuf, byte: impl Fn(usize) -> u8) {
    let length = usize::try_from(fs::metadata(path).unwrap().len()).unwrap();
    let bytes: Vec<u8> = (0..length).map(byte).collect();
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&bytes, 0).unwrap();
}

fn damaged(damage: fn(&PathBuf), rounds: &str, on_failure: &str) -> Outcome {
    let stage = Stage::new();
    let mut command = storm(&stage, 4 * CONTEXT + 600 * MIB, &["steady", "4", rounds]);
    let running = start(command.env("SLUICE_ON_FAILURE", on_failure));
    let contexts = 4 * CONTEXT;
    eventually("all work", || summary(&stage).is_some_and(|found| found.total() >= contexts));
    sleep(Duration::from_millis(100));
    damage(&page(&stage));
    running.end().succeeded()
}

#[test]
fn a_page_that_is_damaged_while_in_use_is_said_and_refused() {
    for (name, damage) in DAMAGES {
        let outcome = damaged(damage, "5000", "closed");
        println!("{name}: {} {:?}", outcome.stdout, outcome.took);
        assert_eq!(outcome.value("bad"), 0, "{name}: {outcome:#?}");
        // `CUDA_ERROR_NOT_PERMITTED`
        assert_eq!(
            (outcome.value("failed"), outcome.value("code")),
            (4, 800),
            "{name}: {outcome:#?}"
        );
        assert!(outcome.value("slowest_us") < HELD_UP_US, "{name}: {outcome:#?}");
        let lines = outcome.complaints();
        assert_eq!(lines.len(), 4, "{name}: {outcome:#?}");
        let clear = |line: &&str| line.contains(".page was damaged while in use: ");
        assert!(lines.iter().all(clear), "{name}: {outcome:#?}");
    }
}

#[test]
fn a_damaged_page_is_said_where_calls_pass_all_the_same() {
    for (name, damage) in DAMAGES {
        let outcome = damaged(damage, "200", "open");
        assert_eq!((outcome.value("bad"), outcome.value("failed")), (0, 0), "{name}: {outcome:#?}");
        let lines = outcome.complaints();
        assert_eq!(lines.len(), 4, "{name}: {outcome:#?}");
        assert!(lines.iter().all(|line| line.contains("NOT limited")), "{name}: {outcome:#?}");
    }
}
