//! The memory limit, for every way to allocate and to query.

use crate::common::{
    CONTEXT, GIB, MEMORY_LIMIT, MIB, OUT_OF_MEMORY, Outcome, SESSION_DIR, Stage, UUIDS, built,
    eventually, first_device, outcome, start,
};
use limits::{Limits, MemoryLimit};
use session::Page;
use std::process::Command;
use std::time::{Duration, Instant};

const CHUNK: u64 = 32 * MIB;
/// Above every limit in these tests, below the device's memory.
const CAP: &str = "8GiB";

/// The use of its session as `steps` prints it, after the driver has taken memory by itself.
fn settled(first: &[&str]) -> u64 {
    let stage = Stage::new();
    let mut command = stage.limited(stage.compile("steps.c", "steps", &[]));
    command.args(first).args(["load:300", "settle", "unload"]);
    let outcome = outcome(command.env(MEMORY_LIMIT, first_device("2GiB"))).silent();
    outcome.value("settled")
}

/// A program may shut down NVML more often than it has initialized it. Sluice's own use continues.
#[test]
fn nvml_that_is_ended_once_too_often_is_started_again() {
    assert_eq!(settled(&["nvml:3"]), settled(&["nvml:1"]));
}

#[test]
fn a_kernel_that_knows_no_sleep_harms_no_thread() {
    assert_eq!(settled(&["nosleep"]), settled(&[]));
}

fn tenant(command: &mut Command, api: &str) -> Outcome {
    outcome(command.args(["mem", "--api", api, "--chunk", "32MiB", "--cap", CAP])).succeeded()
}

#[track_caller]
fn granted(outcome: &Outcome) -> u64 {
    outcome.json()["granted_bytes"].as_u64().unwrap()
}

/// The program got all that `limit` leaves, at most one chunk less, and was refused the rest.
#[track_caller]
fn stopped_at(limit: u64, outcome: &Outcome) {
    let (granted, result) = (granted(outcome), outcome.json());
    assert!(granted + CONTEXT <= limit, "{granted}: {outcome:#?}");
    assert!(granted + CONTEXT + CHUNK > limit, "{granted}: {outcome:#?}");
    assert_eq!(result["stop"], OUT_OF_MEMORY, "{outcome:#?}");
    assert_eq!(result["meminfo_total"], limit, "{outcome:#?}");
    assert_eq!(outcome.stderr, "", "{outcome:#?}");
}

#[test]
fn every_api_stops_at_the_limit() {
    let stage = Stage::new();
    for api in
        ["alloc", "pitch", "managed", "async", "pool", "vmm", "array", "array3d", "mipmap", "graph"]
    {
        let mut command = stage.limited(built("tenant"));
        let outcome = tenant(command.env(MEMORY_LIMIT, first_device("1200MiB")), api);
        println!("{api}: {}", granted(&outcome));
        stopped_at(1200 * MIB, &outcome);
    }
}

#[test]
fn without_a_limit_the_cap_is_reached() {
    let stage = Stage::new();
    let outcome = tenant(&mut stage.limited(built("tenant")), "alloc");
    assert_eq!(outcome.json()["stop"], "cap");
    assert_eq!(granted(&outcome), 8 * GIB);
}

/// Small allocations share pages of 2 MiB. The last one succeeds if a page is left.
#[test]
fn small_allocations_stop_where_no_page_is_left() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.args(["mem", "--api", "alloc", "--chunk", "256KiB", "--cap", CAP]);
    let outcome = outcome(command.env(MEMORY_LIMIT, first_device("600MiB"))).succeeded();
    assert_eq!(granted(&outcome), 600 * MIB - CONTEXT - 2 * MIB + (256 << 10), "{outcome:#?}");
}

#[test]
fn what_is_freed_can_be_allocated_again() {
    let stage = Stage::new();
    let program = stage.compile("free_again.c", "free_again", &[]);
    let outcome = outcome(stage.limited(&program).env(MEMORY_LIMIT, first_device("1GiB"))).silent();
    assert_eq!(outcome.value("granted"), (GIB - CONTEXT) / (64 * MIB));
}

/// Runs a self-checking program of `tests/programs`, under a limit in GiB.
#[track_caller]
fn checks_itself(name: &str, limit: u64) {
    let stage = Stage::new();
    let program = stage.compile(&format!("{name}.c"), name, &[]);
    let mut command = stage.limited(&program);
    let outcome = outcome(command.env(MEMORY_LIMIT, first_device(limit * GIB))).silent();
    assert_eq!(outcome.value("left"), (limit * GIB - CONTEXT) / MIB, "{outcome:#?}");
}

#[test]
fn graphs_take_what_they_hold() {
    checks_itself("graphs", 1);
}

#[test]
fn physical_memory_is_charged_while_anything_refers_to_it() {
    checks_itself("physical", 1);
}

#[test]
fn shared_memory_is_charged_to_its_exporter() {
    checks_itself("shared", 3);
}

/// Also if the exporter belongs to another session, and if it ends first.
#[test]
fn exported_memory_is_charged_while_anything_refers_to_it() {
    let stage = Stage::new();
    let program = stage.compile("exported.c", "exported", &[]);
    let mut command = stage.limited(&program);
    command.env("OTHER_SESSION", stage.session("other"));
    let outcome = outcome(command.env(MEMORY_LIMIT, first_device(2 * GIB))).silent();
    assert_eq!(outcome.value("left"), (2 * GIB - CONTEXT) / MIB, "{outcome:#?}");
}

#[test]
fn memory_that_is_there_before_or_after_its_context_is_charged_once() {
    checks_itself("orders", 2);
}

#[test]
fn contexts_of_every_kind_take_what_they_take() {
    checks_itself("contexts", 1);
}

#[test]
fn external_sparse_and_multicast_memory_is_charged_while_it_lives() {
    checks_itself("external", 1);
}

#[test]
fn a_caching_allocator_that_is_refused_succeeds_when_it_has_freed() {
    checks_itself("caching", 1);
}

#[test]
fn pools_give_back_at_once() {
    checks_itself("pools", 1);
}

/// Sums lines of `tenant mem`.
#[track_caller]
fn sum(outcome: &Outcome) -> u64 {
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    outcome.stdout.lines().map(|text| line(text)["granted_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn processes_of_a_session_share_its_limit() {
    let stage = Stage::new();
    let tenant = format!("'{}' mem --api alloc --chunk 32MiB", built("tenant").display());
    // One program takes a part and keeps it; two race for the rest.
    let script = format!(
        "{tenant} --cap 512MiB --hold 4 & sleep 1; {tenant} --cap 8GiB --hold 1 & {tenant} --cap 8GiB --hold 1; wait"
    );
    let outcome = outcome(stage.run(&["--mem", "3GiB"]).args(["sh", "-c", &script]));
    // One of the two may not even have got its context.
    let running = outcome.stdout.lines().count() as u64;
    assert!((2..=3).contains(&running), "{outcome:#?}");
    let used = sum(&outcome) + running * CONTEXT;
    assert!(used <= 3 * GIB && used + 2 * CHUNK > 3 * GIB, "{outcome:#?}");
}

#[test]
fn sessions_do_not_share_their_limits() {
    let stage = Stage::new();
    let each = ["mem", "--api", "alloc", "--chunk", "32MiB", "--cap", CAP, "--hold", "1"];
    let sessions = [(); 2].map(|()| {
        let mut command = stage.run(&["--mem", "1GiB"]);
        start(command.arg(built("tenant")).args(each))
    });
    for session in sessions {
        stopped_at(GIB, &session.end().succeeded());
    }
}

#[test]
fn what_a_killed_process_held_is_free_within_a_second() {
    let stage = Stage::new();
    let limited = || {
        let mut command = stage.limited(built("tenant"));
        command.env(MEMORY_LIMIT, first_device("1GiB"));
        command
    };
    let hold = ["mem", "--api", "alloc", "--chunk", "32MiB", "--cap", CAP, "--hold", "20"];
    // The amount that the second process gets if no other holds memory, on this machine.
    let begun = Instant::now();
    stopped_at(GIB, &tenant(&mut limited(), "alloc"));
    let alone = begun.elapsed();
    let holder = start(limited().args(hold));
    // In a second process of the session nothing fits, not even its context.
    let full = |outcome: &Outcome| outcome.code() != 0 && outcome.stderr.contains("memory limit");
    let small = ["mem", "--api", "alloc", "--chunk", "32MiB", "--cap", "32MiB"];
    let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
    eventually("the first process takes everything", || {
        let page = Page::open_existing(&page).ok();
        page.and_then(|page| page.summary().ok()).is_some_and(|found| found.total() == GIB)
    });
    let refused = outcome(limited().args(small));
    assert!(full(&refused), "{refused:#?}");
    holder.kill();
    let died = Instant::now();
    let _ = holder.end();
    let again = tenant(&mut limited(), "alloc");
    let most = Duration::from_secs(1) + alone * 2;
    assert!(died.elapsed() < most, "{:?}, {alone:?} alone", died.elapsed());
    stopped_at(GIB, &again);
}

/// A limit that is lowered below the current use refuses growth, and nothing else.
#[test]
fn what_a_pool_has_can_be_used_under_a_lower_limit() {
    let stage = Stage::new();
    let program = stage.compile("steps.c", "steps", &[]);
    let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
    let lower = CONTEXT + 64 * MIB;
    let shown = format!("total:{}", lower / MIB);
    let steps = ["async:320", &shown, "freeasync", "async:320", "async:32"];
    let mut command = stage.limited(&program);
    let running = start(command.args(steps).env(MEMORY_LIMIT, first_device("1GiB")));
    // The bytes are in the page before the call; the program reports its return.
    eventually("the first allocation", || running.printed().contains("async=0 "));
    let limits = Limits { memory: Some(MemoryLimit::new(lower)), ..Limits::NONE };
    Page::open_existing(&page).unwrap().change_limits(&limits).unwrap();
    let outcome = running.end().succeeded();
    let results: Vec<&str> =
        outcome.stdout.split_whitespace().filter(|word| word.starts_with("async=")).collect();
    assert_eq!(results, ["async=0", "async=0", "async=2"], "{outcome:#?}");
}

/// A piece larger than the freed one, before the device has reached the free.
#[test]
fn what_a_stream_is_about_to_free_is_waited_for_before_memory_is_refused() {
    let stage = Stage::new();
    let program = stage.compile("steps.c", "steps", &[]);
    let mut command = stage.limited(&program);
    let steps = ["async:320", "busy:300", "freeasync", "async:448", "async:448"];
    let outcome = outcome(command.args(steps).env(MEMORY_LIMIT, first_device("1GiB"))).succeeded();
    let results: Vec<&str> =
        outcome.stdout.split_whitespace().filter(|word| word.starts_with("async=")).collect();
    assert_eq!(results, ["async=0", "async=0", "async=2"], "{outcome:#?}");
}

/// The new program has the old one's pid and start time, and none of its memory.
#[test]
fn what_a_program_held_before_exec_is_free() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = stage.limited(&program);
    let sleeper = start(command.arg("exec-something-else").env(MEMORY_LIMIT, first_device("1GiB")));
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", sleeper.pid())).unwrap();
    eventually("exec", || name().trim() == "sleep");
    let mut command = stage.limited(built("tenant"));
    stopped_at(GIB, &tenant(command.env(MEMORY_LIMIT, first_device("1GiB")), "alloc"));
    assert_eq!(name().trim(), "sleep");
    sleeper.kill();
    let _ = sleeper.end();
}

/// The figures that `sizes` prints for a device must add up to its limit.
#[track_caller]
fn shows(outcome: &Outcome, device: u32, limit: u64) {
    for (when, used) in [("before", CONTEXT), ("after", CONTEXT + 256 * MIB)] {
        let value = |name: &str| outcome.value(&format!("{when}{device}_{name}"));
        for name in ["info_total", "total_mem", "nvml_total", "nvml2_total"] {
            assert_eq!(value(name), limit, "{when} {device} {name}: {outcome:#?}");
        }
        for name in ["info_free", "nvml_free", "nvml2_free"] {
            assert_eq!(value(name), limit - used, "{when} {device} {name}: {outcome:#?}");
        }
        for name in ["nvml_used", "nvml2_used"] {
            assert_eq!(value(name), used, "{when} {device} {name}: {outcome:#?}");
        }
    }
}

#[test]
fn everything_that_tells_sizes_shows_the_limit() {
    let stage = Stage::new();
    let program = stage.compile("sizes.c", "sizes", &[]);
    let by_uuid =
        format!(r#"{{"{}": "1GiB", "{}": {}}}"#, UUIDS[0].to_uppercase(), UUIDS[1], 3 * GIB);
    let by_index = format!(r#"{{"1": {}, "0": "1024MiB"}}"#, 3 * GIB);
    for (number, limits) in [by_uuid, by_index].iter().enumerate() {
        let mut command = stage.limited(&program);
        command.env(SESSION_DIR, stage.session(&format!("sizes{number}")));
        let outcome = outcome(command.env(MEMORY_LIMIT, limits)).silent();
        shows(&outcome, 0, GIB);
        shows(&outcome, 1, 3 * GIB);
    }
}

/// An index refers to the host's order, whatever the program sees.
#[test]
fn an_index_is_the_hosts() {
    let stage = Stage::new();
    let mut command = stage.limited(built("tenant"));
    command.env("CUDA_VISIBLE_DEVICES", "1").env(MEMORY_LIMIT, r#"{"0": "1GiB", "1": "2GiB"}"#);
    stopped_at(2 * GIB, &tenant(&mut command, "alloc"));
}

#[test]
fn a_limit_below_the_context_is_named() {
    let stage = Stage::new();
    for (limit, named) in [("100MiB", "100 MiB"), ("511MiB", "511 MiB")] {
        let mut command = stage.limited(built("tenant"));
        command.env(SESSION_DIR, stage.session(limit)).env(MEMORY_LIMIT, first_device(limit));
        let outcome =
            outcome(command.args(["mem", "--api", "alloc", "--chunk", "1MiB", "--cap", "1MiB"]));
        assert_ne!(outcome.code(), 0, "{outcome:#?}");
        let of_sluice: Vec<_> =
            outcome.complaints().into_iter().filter(|line| line.starts_with("sluice: ")).collect();
        assert_eq!(of_sluice.len(), 1, "{outcome:#?}");
        assert!(of_sluice[0].contains(named) && of_sluice[0].contains("512 MiB"), "{outcome:#?}");
        assert!(outcome.stderr.contains(OUT_OF_MEMORY), "{outcome:#?}");
    }
}

#[test]
fn the_variables_of_other_systems_work() {
    let stage = Stage::new();
    for (number, (variable, value)) in [
        ("CUDA_MEM_LIMIT_0", "1024m"),
        ("CUDA_MEM_LIMIT", "1024m"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1024m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "0x40000000"),
        ("VCUDA_MEMORY_LIMIT", "1024m"),
        ("TF_GPU_MEMORY_LIMIT", "1024"),
        ("TF_CUDA_MEMORY_LIMIT", "1024"),
        ("GPU_MEMORY_LIMIT", "1073741824"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = stage.limited(built("tenant"));
        command.env(SESSION_DIR, stage.session(&format!("alias{number}"))).env(variable, value);
        let outcome = tenant(&mut command, "alloc");
        println!("{variable}: {}", granted(&outcome));
        stopped_at(GIB, &outcome);
    }
}
