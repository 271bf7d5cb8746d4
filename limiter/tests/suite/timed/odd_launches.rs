//! Unusual launches. Some of these measure, so run one test at a time.

use crate::common::{
    self, Busy, COMPUTE_LIMIT, Outcome, Stage, UUIDS, built, eventually, first_device, outcome,
    start,
};
use limits::env::GATES;
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

/// Asserts thousandths of the device's time: no more than `wanted`, and less only if the machine is busy.
#[track_caller]
fn is_near(outcome: &Outcome, wanted: u32, tolerance: f64, what: &str) {
    let permille = outcome.value("permille") as f64;
    common::is_near(permille, f64::from(wanted), tolerance, outcome.busy, what);
}

/// A program that needs less than its limit keeps this part of its rate.
#[track_caller]
fn keeps(limited: &Outcome, native: &Outcome, part: f64, what: &str) {
    let [limited_permille, native] = [limited, native].map(|one| one.value("permille") as f64);
    let least = limited.busy.least_in_turn(native, native * (1.0 - part));
    println!("{what}: {limited_permille} of {native} thousandths, {:?}", limited.busy);
    assert!(
        limited_permille >= least,
        "{what}: {limited_permille} of {native}, {:?}",
        limited.busy
    );
}

/// With gates in streams, memory is made visible to the program's contexts; what remains of that disturbs no other use.
#[test]
fn green_contexts_with_gates_in_streams() {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let mut command = stage.limited(&program);
    command.env(COMPUTE_LIMIT, first_device(50)).env(GATES, "stream");
    let _ = outcome(command.args(["green-context", "1"])).succeeded();
}

/// The stream decides where a kernel runs, not the calling thread's context.
#[test]
fn a_stream_of_a_context_that_is_not_current() {
    for how in ["other-device", "other-context"] {
        is_near(&odd(how, 25), 250, 50.0, how);
    }
}

/// The context that represents a green one ends with it, and is not entered any more.
#[test]
fn green_contexts_made_anew() {
    is_near(&odd("green-context", 25), 250, 50.0, "green-context");
}

/// The limiter enqueues nothing into the legacy stream by itself.
#[test]
fn streams_that_the_legacy_one_would_tie_together() {
    let outcome = odd("beside-legacy", 50);
    assert!(outcome.value("rounds") as f64 > outcome.busy.least(50.0, 0.0), "{outcome:#?}");
}

/// They implicitly wait for each other. If one were held, others would lose their time to it.
#[test]
fn streams_that_the_legacy_one_ties_together_are_not_held() {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let is_on_thread = |how| {
        let mut command = stage.limited(&program);
        command.env(COMPUTE_LIMIT, first_device(50)).env(GATES, "stream").env("SLUICE_LOG", "info");
        let outcome = outcome(command.args([how, "1"]));
        assert_eq!(outcome.code(), 0, "{outcome:#?}");
        outcome.stderr.contains("its thread does: no stream of its device may be held")
    };
    assert!(is_on_thread("beside-legacy"));
    assert!(!is_on_thread("host-work"));
}

/// Work that waits for the host does not keep the device busy: kernels that need less than the share are not delayed.
#[test]
fn the_host_at_work_between_kernels() {
    let native = {
        let stage = Stage::new();
        let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
        outcome(stage.native(&program).args(["host-work", "1"])).succeeded()
    };
    keeps(&odd("host-work", 50), &native, 0.85, "half");
    // The program is woken for each kernel, which takes long on a busy machine.
    let tenth = odd("host-work", 10);
    let (permille, least) = (tenth.value("permille") as f64, tenth.busy.least_in_turn(70.0, 20.0));
    assert!((least..=130.0).contains(&permille), "{permille} thousandths, {:?}", tenth.busy);
}

/// The program `odd` keeps 95 % of its rate under limits.
#[track_caller]
fn keeps_its_rate(how: &str, limits: &str) {
    let stage = Stage::new();
    let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
    let native = outcome(stage.native(&program).args([how, "2"])).silent();
    let mut command = stage.limited(&program);
    command.args([how, "3"]).env(COMPUTE_LIMIT, limits);
    keeps(&outcome(&mut command).silent(), &native, 0.95, &format!("{how} under {limits}"));
}

/// A limit of the first device's time and of the second's, in percent.
fn two_devices(percent: u32) -> String {
    let [first, second] = UUIDS;
    format!(r#"{{"{first}": {percent}, "{second}": {percent}}}"#)
}

/// A device does no work while its streams wait for another device. The second device needs a quarter of its time.
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
        is_near(&odd(how, 10), 100, 15.0, how);
    }
}

/// The shares of dense programs limited to a half, each with another kind of wait before its kernels. No wait delays
/// anything. A busy machine disturbs some of so many: each has three tries.
#[track_caller]
fn get_their_share_behind_idle_waits(ahead: &str, fits: impl Fn(&Waiting, f64, Busy) -> bool) {
    let kinds = [
        ("own", 0),
        ("own", 50),
        ("others", 50),
        ("word", 0),
        ("word", 50),
        ("thread", 50),
        ("turns", 0),
    ];
    for (what, gap_us) in kinds {
        let waiting = Waiting { what, gap_us, ahead: ahead.to_owned() };
        let fits = (0..3).any(|_| {
            let (share, busy) = waiting.permille(Some(50));
            println!("{waiting:?}: {share} for 500, {busy:?}");
            fits(&waiting, share, busy)
        });
        assert!(fits, "{waiting:?}");
    }
}

/// A kind of wait, and how many kernels are launched ahead.
#[derive(Debug)]
struct Waiting {
    what: &'static str,
    gap_us: u64,
    ahead: String,
}

impl Waiting {
    /// Thousandths of the device's time: kernels of 100 us, and the pauses between them.
    fn permille(&self, limit: Option<u32>) -> (f64, Busy) {
        let stage = Stage::new();
        let program = stage.compile("odd.c", "odd", &["-rdynamic"]);
        let mut command = match limit {
            Some(_) => stage.limited(&program),
            None => stage.native(&program),
        };
        command.args([&["idle-waits:", self.what].concat(), "2", &self.ahead]);
        command.env("SLUICE_FAKE_GAP_NS", (self.gap_us * 1_000).to_string());
        command.envs(limit.map(|percent| (COMPUTE_LIMIT, first_device(percent))));
        let outcome = outcome(&mut command).silent();
        ((outcome.value("permille") * (100 + self.gap_us)) as f64 / 100.0, outcome.busy)
    }
}

/// A busy machine may leave the program less than its share, with a limit or without one.
fn cost_no_share(waiting: &Waiting, share: f64, busy: Busy) -> bool {
    share >= busy.least_in_turn(380.0, 0.0) || {
        let (native, _) = waiting.permille(None);
        println!("{waiting:?}: {native} without a limit");
        share >= native * 0.38
    }
}

/// The same if the clock charges for more than the kernels' own time because of pauses between them.
#[test]
fn waits_before_each_kernel_make_no_work_free() {
    get_their_share_behind_idle_waits("32", |_, share, _| share <= 530.0);
}

/// The host cannot keep a short queue filled. Not all of the pauses are charged to the program.
#[test]
fn waits_before_each_kernel_of_a_short_queue_make_no_work_free() {
    get_their_share_behind_idle_waits("3", |_, share, _| share <= 560.0);
}

#[test]
fn waits_before_each_kernel_cost_no_share() {
    get_their_share_behind_idle_waits("32", cost_no_share);
}

#[test]
fn waits_before_each_kernel_of_a_short_queue_cost_no_share() {
    get_their_share_behind_idle_waits("3", cost_no_share);
}

/// Thread-local variables lie on the stack of each thread, including the threads that talk to the daemon and to NVML.
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
    is_near(&outcome, 250, 100.0, "under the daemon");
    daemon.kill();
}

/// A call that waits for a thread gets an error if the thread cannot be started, whichever thread tried to start it.
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
