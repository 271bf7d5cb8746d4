//! NVML's own figure, polled from outside while programs work close to their limit, never exceeds the limit.

use crate::common::{MEMORY_LIMIT, MIB, Outcome, Stage, first_device, start};
use std::process::{Command, Stdio};

const LIMIT: u64 = 2048 * MIB;

/// Runs `full` with these arguments in several processes of a session; returns NVML's highest figure.
#[track_caller]
fn highest(stage: &Stage, arguments: &[&str], processes: usize) -> (u64, Vec<Outcome>) {
    let program = stage.compile("full.c", "full", &[]);
    let commands = (0..processes).map(|_| stage.limited(&program)).collect();
    watched(stage, arguments, commands)
}

/// Runs programs of a session with these arguments side by side; returns NVML's highest figure.
#[track_caller]
fn watched(stage: &Stage, arguments: &[&str], commands: Vec<Command>) -> (u64, Vec<Outcome>) {
    let mut watch = stage.native(stage.compile("watch.c", "watch", &[]));
    let mut watching = watch.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let begin =
        |mut one: Command| start(one.args(arguments).env(MEMORY_LIMIT, first_device(LIMIT)));
    let running: Vec<_> = commands.into_iter().map(begin).collect();
    let ended: Vec<Outcome> = running.into_iter().map(|one| one.end().succeeded()).collect();
    drop(watching.stdin.take());
    let said = watching.wait_with_output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let highest = said.trim().strip_prefix("highest=").unwrap().parse().unwrap();
    for one in &ended {
        println!("{arguments:?}: {} MiB; {}", highest / MIB, one.stdout.trim());
    }
    (highest, ended)
}

#[track_caller]
fn stays_below(arguments: &[&str], processes: usize) -> Vec<Outcome> {
    let stage = Stage::new();
    let (highest, ended) = highest(&stage, arguments, processes);
    assert!(highest <= LIMIT, "{} MiB of {}", highest / MIB, LIMIT / MIB);
    assert!(highest >= LIMIT / 100 * 90, "{} MiB of {}", highest / MIB, LIMIT / MIB);
    for one in &ended {
        assert!(one.value("refused") >= 5, "{one:#?}");
        assert_eq!(one.stderr, "", "{one:#?}");
    }
    ended
}

/// When a third of all memory has been freed, most of the refused allocations fit.
#[track_caller]
fn fits_again(ended: &[Outcome]) {
    for one in ended {
        assert!(one.value("fitted") * 2 > one.value("refused"), "{one:#?}");
    }
}

#[test]
fn linear_memory() {
    fits_again(&stays_below(&["linear", "2000", "1"], 1));
    stays_below(&["linear", "1500", "4"], 1);
    stays_below(&["linear", "1500", "2"], 2);
}

#[test]
fn physical_memory() {
    fits_again(&stays_below(&["expand", "1500", "1"], 1));
}

#[test]
fn pools_that_fragment() {
    fits_again(&stays_below(&["pool", "2500", "1"], 1));
    stays_below(&["pool", "1500", "4"], 1);
    stays_below(&["pool", "1500", "2"], 2);
}

#[test]
fn memory_of_graphs() {
    fits_again(&stays_below(&["graph", "2000", "1"], 1));
    stays_below(&["graph", "1500", "2"], 2);
}

/// More code than the headroom can cover. Some of it is placed when the headroom is smallest.
#[test]
fn code_that_is_placed_when_memory_is_full() {
    for threads in ["1", "3"] {
        // The code placed between two allocations fits into the headroom.
        let ended = stays_below(&["code", "2500", threads], 1);
        assert_eq!(ended[0].value("images"), 48);
    }
}

/// Fills the memory while this much code is placed; returns the number of chunks granted. NVML answers slowly.
#[track_caller]
fn fill(arguments: &[&str], list_us: u64) -> u64 {
    let stage = Stage::new();
    let program = stage.compile("fill.c", "fill", &[]);
    let mut command = stage.limited(&program);
    command.env("SLUICE_FAKE_LIST_US", list_us.to_string());
    let (highest, ended) = watched(&stage, arguments, vec![command]);
    assert!(highest <= LIMIT, "{arguments:?}: {} MiB of {}", highest / MIB, LIMIT / MIB);
    assert_eq!(ended[0].stderr, "", "{:#?}", ended[0]);
    ended[0].value("granted")
}

/// The driver places code when a kernel is first used, and no call reports it.
#[test]
fn code_that_was_placed_is_seen_before_the_memory_is_full() {
    for list_us in ["0", "3000", "20000"].map(|us| us.parse().unwrap()) {
        // The context takes 512 MiB, the code 92 MiB; the headroom is at most 64 MiB.
        let granted = fill(&["1", "32", "46", "2", "2", "before"], list_us);
        assert!((43..=45).contains(&granted), "{granted}, {list_us} us");
    }
}

/// More code than 1/16 of the limit, and more than the images' bytes: they are compressed.
#[test]
fn much_code_is_placed_before_the_memory_is_filled() {
    for image in ["8", "1"] {
        let granted = fill(&["1", "32", "50", image, "8", "before"], 1000);
        assert!((33..=35).contains(&granted), "{granted}, images of {image} MiB");
    }
}

/// One process fills the memory while another one's code is placed.
#[test]
fn code_of_another_process_is_seen_before_the_memory_is_full() {
    // Two contexts of 512 MiB and 92 MiB of code; the headroom is at most 32 MiB.
    let granted = fill(&["1", "8", "46", "2", "2", "other"], 1000);
    assert!((108..=116).contains(&granted), "{granted}");
}

#[test]
fn code_is_placed_while_the_memory_is_filled() {
    for when in ["between", "meanwhile"] {
        for threads in ["1", "4"] {
            let granted = fill(&[threads, "2", "46", "2", "2", when], 1000);
            assert!((690..=760).contains(&granted), "{granted}, {when}, {threads} threads");
        }
    }
}
