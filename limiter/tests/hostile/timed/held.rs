//! Programs whose streams wait for what the programs do after further launches.

use crate::common::{Busy, COMPUTE_LIMIT, Stage, first_device, outcome};

/// Runs rounds of launches, each behind a value that the program writes at the round's end, under a limit. Returns the
/// longest round and the sum of all (ms).
fn rounds(arguments: [&str; 4], percent: u32) -> (u64, u64, Busy) {
    let stage = Stage::new();
    let program = stage.compile("held.c", "held", &[]);
    // End a program that hangs.
    let mut command = stage.limited("timeout");
    command.arg("40").arg(&program).args(arguments).env(COMPUTE_LIMIT, first_device(percent));
    let outcome = outcome(&mut command).silent();
    let (longest, all) = (outcome.value("longest_ms"), outcome.value("ms"));
    println!("{arguments:?} under {percent}: {longest} ms at most, {all} ms in all");
    (longest, all, outcome.busy)
}

/// More is launched behind the value than may be outstanding. A round has 60 ms of work.
#[test]
fn launches_behind_a_value_are_not_held_up_for_long() {
    let (longest, all, busy) = rounds(["1", "20", "3000", "12"], 50);
    assert!(longest <= busy.most_ms(800), "a round took {longest} ms, {busy:?}");
    assert!(all <= busy.most_ms(4_500), "{all} ms for 720 ms of work, {busy:?}");
}

/// The same with several streams: a round has 320 ms of work.
#[test]
fn launches_into_several_streams_behind_a_value_are_not_held_up_for_long() {
    for streams in ["2", "8"] {
        let each = if streams == "2" { "80" } else { "20" };
        let (longest, all, busy) = rounds([streams, each, "2000", "4"], 50);
        assert!(
            longest <= busy.most_ms(2_500),
            "{streams} streams: a round took {longest} ms, {busy:?}"
        );
        assert!(
            all <= busy.most_ms(6_500),
            "{streams} streams: {all} ms for 1,280 ms of work, {busy:?}"
        );
    }
}

/// Waiting makes no work free: at a share of a quarter, ten rounds of 60 ms take four times as long.
#[test]
fn what_is_launched_behind_a_value_is_charged() {
    let (_, all, _) = rounds(["1", "20", "3000", "20"], 25);
    // The first lease may be ahead of the share.
    assert!(all >= 1_200 * 4 * 9 / 10, "{all} ms for 1,200 ms of work");
}
