//! Unusual launches. Some of these measure, so run one test at a time.

use crate::common::{
    COMPUTE_LIMIT, Outcome, Stage, UUIDS, built, eventually, first_device, outcome, start,
};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The program `odd` under a limit of the first device's time, in percent.
fn odd(how: &str, percent: u32) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let mut command = stage.limited(&program);
    command.env(COMPUTE_LIMIT, first_device(percent)).env("SLUICE_FAKE_ENDED_CONTEXTS", "abort");
    outcome(command.args([how, "2"])).succeeded()
}

/// The stream decides where a kernel runs, not the calling thread's context.
#[test]
fn a_stream_of_a_context_that_is_not_current() {
    for how in ["other-device", "other-context"] {
        let permille = odd(how, 25).value("permille");
        assert!((200..=300).contains(&permille), "{how}: {permille} thousandths instead of 250");
    }
}

/// The context that stands for a green one ends with it, and is not entered any more.
#[test]
fn green_contexts_made_anew() {
    let permille = odd("green-context", 25).value("permille");
    assert!((200..=300).contains(&permille), "{permille} thousandths instead of 250");
}

/// The limiter puts nothing into the legacy stream by itself.
#[test]
fn streams_that_the_legacy_one_would_tie_together() {
    assert!(odd("beside-legacy", 50).value("rounds") > 50);
}

/// Work that waits for the host keeps no device busy: kernels that need less than the share are not delayed.
#[test]
fn the_host_at_work_between_kernels() {
    let native = {
        let stage = Stage::new();
        let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
        outcome(stage.native(&program).args(["host-work", "1"])).succeeded().value("permille")
    };
    let half = odd("host-work", 50).value("permille");
    assert!(half * 100 >= native * 85, "{half} instead of {native} thousandths");
    let little = odd("host-work", 10).value("permille");
    assert!((70..=130).contains(&little), "{little} thousandths instead of 100");
}

/// The program `odd` keeps 95 % of its rate under limits.
#[track_caller]
fn keeps_its_rate(how: &str, limits: &str) {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let native = outcome(stage.native(&program).args([how, "2"])).silent().value("permille");
    let mut command = stage.limited(&program);
    command.args([how, "3"]).env(COMPUTE_LIMIT, limits);
    let limited = outcome(&mut command).silent().value("permille");
    println!("{how} under {limits}: {limited} of {native} thousandths");
    assert!(limited * 100 >= native * 95, "{how}: {limited} of {native} thousandths");
}

/// A limit of the first device's time and of the second's, in percent.
fn two_devices(percent: u32) -> String {
    let [first, second] = UUIDS;
    format!(r#"{{"{first}": {percent}, "{second}": {percent}}}"#)
}

/// A device does no work while its streams wait for another device. The second device needs a quarter of its
/// time.
#[test]
fn a_pipeline_over_two_devices_keeps_its_rate() {
    keeps_its_rate("pipeline", &format!(r#"{{"{}": 50}}"#, UUIDS[1]));
}

#[test]
fn a_pipeline_that_the_host_feeds_keeps_its_rate() {
    keeps_its_rate("pipeline-of-host", &two_devices(50));
}

/// Each of two devices needs half of its time. Every second wait of a device's stream is long.
#[test]
fn a_model_that_is_split_over_two_devices_keeps_its_rate() {
    keeps_its_rate("there-and-back", &two_devices(65));
}

#[test]
fn a_model_that_is_split_over_default_streams_keeps_its_rate() {
    keeps_its_rate("there-and-back-by-default", &two_devices(65));
}

/// The same for waits on a value that the host writes, and on a stream that waits for one.
#[test]
fn streams_that_wait_for_words_keep_their_rate() {
    keeps_its_rate("words", &first_device(50));
}

#[test]
fn streams_that_wait_for_streams_that_wait_for_words_keep_their_rate() {
    keeps_its_rate("words-elsewhere", &first_device(50));
}

#[test]
fn streams_that_wait_for_words_get_their_share() {
    for how in ["words", "words-elsewhere"] {
        let little = odd(how, 10).value("permille");
        assert!((80..=115).contains(&little), "{how}: {little} thousandths instead of 100");
    }
}

/// What dense programs get of a half, each with another kind of wait before its kernels. None of the waits
/// delays anything.
fn shares_behind_idle_waits(ahead: &str) -> impl Iterator<Item = (String, u64)> {
    let kinds = [
        ("own", 0),
        ("own", 50),
        ("others", 50),
        ("word", 0),
        ("word", 50),
        ("thread", 50),
        ("turns", 0),
    ];
    kinds.into_iter().map(move |(what, gap_us)| {
        let stage = Stage::new();
        let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
        let mut command = stage.limited(&program);
        command.args([&["idle-waits:", what].concat(), "2", ahead]);
        command.env("SLUICE_FAKE_GAP_NS", (gap_us * 1_000).to_string());
        let outcome = outcome(command.env(COMPUTE_LIMIT, first_device(50))).silent();
        // Kernels of 100 us each.
        let share = outcome.value("permille") * (100 + gap_us) / 100;
        let case = format!("{what}, {ahead} ahead, pauses of {gap_us} us");
        println!("{case}: {share} thousandths");
        (case, share)
    })
}

/// The same if the clock charges for more than the kernels' own time because of pauses between them.
#[test]
fn waits_before_each_kernel_make_no_work_free() {
    for (case, share) in shares_behind_idle_waits("32") {
        assert!(share <= 530, "{case}: {share} for 500");
    }
}

/// The host cannot keep a short queue filled. Not all of the pauses are charged to the program.
#[test]
fn waits_before_each_kernel_of_a_short_queue_make_no_work_free() {
    for (case, share) in shares_behind_idle_waits("3") {
        assert!(share <= 560, "{case}: {share} for 500");
    }
}

#[test]
fn waits_before_each_kernel_cost_no_share() {
    for (case, share) in shares_behind_idle_waits("32") {
        assert!(share >= 380, "{case}: {share} for 500");
    }
}

#[test]
fn waits_before_each_kernel_of_a_short_queue_cost_no_share() {
    for (case, share) in shares_behind_idle_waits("3") {
        assert!(share >= 380, "{case}: {share} for 500");
    }
}

/// Thread-local variables lie on the stack of each thread, also of the threads that talk to the daemon and to
/// NVML.
#[test]
fn thread_local_variables_that_are_larger_than_a_stack() {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let socket = stage.folder().join("daemon.sock");
    let mut daemon = stage.native(built("hypervisor"));
    let daemon = start(daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    let mut command = stage.limited(&program);
    command.env(COMPUTE_LIMIT, first_device(25)).env("SLUICE_DAEMON", &socket);
    let outcome = outcome(command.args(["other-context", "1"])).succeeded();
    // On a busy machine the daemon may answer late.
    assert!(outcome.complaints().iter().all(|line| line.contains("own account")), "{outcome:#?}");
    let permille = outcome.value("permille");
    assert!((100..=350).contains(&permille), "{permille} thousandths instead of 250");
    daemon.kill();
}

/// A call that waits for a thread gets an error if the thread cannot be started, whichever thread tried to
/// start it.
#[test]
fn no_thread_can_be_started() {
    for (on_failure, failed) in [("closed", 4), ("open", 0)] {
        let stage = Stage::new();
        let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
        let mut command = stage.limited(&program);
        command.env(COMPUTE_LIMIT, first_device(25)).env("SLUICE_ON_FAILURE", on_failure);
        let outcome = outcome(command.arg("without-threads")).succeeded();
        assert_eq!(outcome.value("failed"), failed, "{on_failure}: {outcome:#?}");
        assert_eq!(outcome.complaints().len(), 1, "{on_failure}: {outcome:#?}");
    }
}

/// The program did not ask for the messages on standard error. They must neither end nor delay it.
#[test]
fn standard_error_that_nobody_reads() {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    for full in [false, true] {
        let (reader, writer) = std::io::pipe().unwrap();
        if full {
            // More than the pipe takes: it stays full until the reader is gone.
            let mut other = writer.try_clone().unwrap();
            std::thread::spawn(move || other.write_all(&vec![0; 64 << 20]));
            std::thread::sleep(Duration::from_millis(300));
        }
        let kept = full.then_some(reader);
        let mut command = stage.limited(&program);
        command.arg("init").env(COMPUTE_LIMIT, "nonsense").stderr(writer);
        let mut child = command.spawn().unwrap();
        let mut status = None;
        eventually("the program ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(3), "full: {full}, {status:?}");
        drop(kept);
    }
}
