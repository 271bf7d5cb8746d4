//! What programs may do while their work is held at a closed gate. Each test runs with the gate on the thread and in
//! the stream: no program hangs, fails, behaves differently, or gets another share because of a gate.

use crate::common::{
    COMPUTE_LIMIT, MEMORY_LIMIT, Outcome, Stage, eventually, first_device, outcome, start,
};
use limits::env::GATES;
use std::process::Command;
use std::time::Duration;

/// Of the device's time, in percent.
const SHARE: u32 = 10;

/// The program, under a tenth of the device's time.
fn program(stage: &Stage, gates: &str, how: &str, rounds: &str) -> Command {
    let program = stage.compile("while_held.c", "while_held", &[]);
    let mut command = stage.limited(&program);
    command.args([how, rounds]).env(COMPUTE_LIMIT, first_device(SHARE)).env(GATES, gates);
    command
}

/// Runs it with both kinds of gates. Unless stated otherwise a round has 20 ms of work, so it should take a fifth of a
/// second.
#[track_caller]
fn holds(how: &str, rounds: &str, longest_ms: u64) {
    for gates in ["thread", "stream"] {
        holds_with(how, gates, rounds, longest_ms, &[]);
    }
}

#[track_caller]
fn holds_with(
    how: &str,
    gates: &str,
    rounds: &str,
    longest_ms: u64,
    more: &[(&str, &str)],
) -> Outcome {
    let stage = Stage::new();
    let mut command = program(&stage, gates, how, rounds);
    let outcome = outcome(command.envs(more.iter().copied())).succeeded();
    let (permille, longest) = (outcome.value("permille"), outcome.value("longest_ms"));
    println!(
        "{how}, gate on the {gates}: {permille} thousandths, a round took {longest} ms at most"
    );
    let busy = outcome.busy;
    let fits = busy.least_in_turn(100.0, 30.0)..=130.0;
    assert!(fits.contains(&(permille as f64)), "{how}, {gates}: {permille} thousandths, {busy:?}");
    assert!(
        longest <= busy.most_ms(longest_ms),
        "{how}, {gates}: a round took {longest} ms, {busy:?}"
    );
    outcome
}

/// No thread launches, and none waits in the driver.
#[test]
fn a_program_that_only_asks() {
    holds("asks", "6", 700);
}

/// The resources that hold its stream still exist.
#[test]
fn a_launch_fails() {
    holds("launch-fails", "6", 900);
}

/// The gate may close between its check and the copy, whose thread then waits in the driver.
#[test]
fn copies_are_waited_for() {
    holds("copies", "12", 900);
}

/// They return at once, and so do launches between them, once their kinds are known: the stream waits, not the thread.
/// A round has 24 ms of work.
#[test]
fn fills_are_not_waited_for() {
    holds_with("fills", "thread", "6", 900, &[]);
    let outcome = holds_with("fills", "stream", "6", 900, &[]);
    let call = outcome.value("call_ms");
    println!("launching took {call} ms");
    assert!(call <= outcome.busy.most_ms(8), "launching took {call} ms, {:?}", outcome.busy);
}

/// Its lane is removed after its work is done, not before.
#[test]
fn a_thread_ends() {
    holds("thread-ends", "6", 700);
    holds("thread-and-stream-end", "6", 700);
}

/// The words that its work will write are not reused by another stream before.
#[test]
fn streams_end() {
    holds("stream-ends", "8", 700);
}

/// 40 ms of work, and a context that is made anew. Nothing is left of the previous one.
#[test]
fn contexts_end() {
    holds("context-ends", "8", 1_500);
    holds("primary-is-reset", "4", 1_500);
}

#[test]
fn processes_fork() {
    holds("forks", "6", 700);
    let stage = Stage::new();
    for gates in ["thread", "stream"] {
        outcome(&mut program(&stage, gates, "children", "1")).silent();
    }
}

/// With lazy loading the first launch of a kernel waits for all held streams, and the driver's other calls wait for it.
#[test]
fn code_is_loaded() {
    // The first durations of a new kernel are not known, so the first rounds weigh less.
    holds("loads", "12", 900);
}

#[test]
fn a_stream_is_captured() {
    holds("captures", "6", 900);
}

/// 256 ms of work.
#[test]
fn very_many_streams() {
    holds("many-streams", "2", 5_000);
}

/// A launch of one thread while another thread begins a batch waits for the gate as well.
#[test]
fn threads_share_a_stream() {
    holds("threads-share", "10", 900);
}

/// Natively, work in the legacy stream delays the others.
#[test]
fn default_streams() {
    holds("default-streams", "6", 700);
}

/// A stream waits for another stream's event, so its mark is queued behind held work there. 41 ms of work.
#[test]
fn streams_wait_for_streams() {
    holds("in-order", "6", 900);
}

/// 40 ms of work in thousands of launches. Natively an allocation beside them returns at once.
#[test]
fn thousands_of_launches_are_queued() {
    holds("far-ahead", "4", 1_400);
}

/// Memory that a stream frees is free when its work is done. At a fiftieth that takes four seconds for 80 ms, and
/// allocations meanwhile, close to the limit, are not refused.
#[test]
fn memory_is_freed_in_a_held_stream() {
    let limit = first_device("1GiB");
    for gates in ["thread", "stream"] {
        let stage = Stage::new();
        let mut command = program(&stage, gates, "frees", "1");
        command.env(COMPUTE_LIMIT, first_device(2)).env(MEMORY_LIMIT, &limit);
        let outcome = outcome(command.env("SLUICE_FAKE_CONTEXT", "8MiB")).silent();
        println!("gate on the {gates}: {} ms", outcome.value("longest_ms"));
    }
}

/// With fewer hardware queues fewer streams are held: work behind a held stream in the same queue is held as well.
#[test]
fn few_hardware_queues() {
    for queues in ["1", "2"] {
        let queues = [("CUDA_DEVICE_MAX_CONNECTIONS", queues)];
        holds_with("many-streams", "stream", "2", 5_000, &queues);
        holds_with("in-order", "stream", "6", 900, &queues);
        holds_with("loads", "stream", "6", 900, &queues);
    }
}

/// A client that is killed with held work might harm the others.
#[test]
fn under_an_mps_server_the_gate_is_on_the_thread() {
    let said = "an MPS server may share contexts";
    for (mps, is_on_thread) in [("1", true), ("0", false)] {
        let settings = [("SLUICE_FAKE_MPS", mps), ("SLUICE_LOG", "info")];
        let outcome = holds_with("asks", "stream", "3", 700, &settings);
        assert_eq!(outcome.stderr.contains(said), is_on_thread, "{outcome:#?}");
    }
}

/// Its queued work ends with it, and the session's next program runs as well as the first one.
#[test]
fn a_program_is_killed() {
    for gates in ["thread", "stream"] {
        let stage = Stage::new();
        let killed = start(&mut program(&stage, gates, "far-ahead", "1000"));
        std::thread::sleep(Duration::from_millis(1_500));
        killed.kill();
        let took = eventually("the program is gone", || {
            rustix::process::test_kill_process(killed.pid()).is_err() || {
                let status = format!("/proc/{}/stat", killed.pid().as_raw_nonzero());
                std::fs::read_to_string(status).is_ok_and(|stat| stat.contains(") Z"))
            }
        });
        assert!(took < Duration::from_secs(10), "{gates}: {took:?}");
        assert_eq!(killed.end().code(), 1009);
        let next = outcome(&mut program(&stage, gates, "asks", "3")).silent();
        let longest = next.value("longest_ms");
        let busy = next.busy;
        assert!(longest <= busy.most_ms(900), "{gates}: a round took {longest} ms, {busy:?}");
    }
}
