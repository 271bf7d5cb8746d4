//! Programs that change their environment to evade their limits.

use crate::common::{
    COMPUTE_LIMIT, MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, UUIDS, first_device, outcome,
};
use std::process::Command;

fn program(stage: &Stage, how: &[&str]) -> Command {
    let mut command = stage.limited(stage.compile("environment.c", "environment", &[]));
    command.args(how);
    command
}

/// All limits held: 1 GiB, and 30 % of the time.
#[track_caller]
fn held(outcome: &Outcome) {
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    assert_eq!((outcome.value("total"), outcome.value("much")), (1024, 2), "{outcome:#?}");
    assert_eq!(outcome.value("little"), 0, "{outcome:#?}");
    assert!(outcome.stderr.contains("compute 30% (TENSOR_FUSION_CUDA_UP_LIMIT"), "{outcome:#?}");
    let unlimited = ["no limit", "NOT limited", "not honoured"];
    assert!(!unlimited.iter().any(|text| outcome.stderr.contains(text)), "{outcome:#?}");
}

/// The effect of each way to drop the limits after the start. The session's variables are dropped too.
#[test]
fn the_environment_counts_as_it_was_when_the_library_was_loaded() {
    let more = [
        format!("{MEMORY_LIMIT}={}", first_device("8GiB")),
        format!("{COMPUTE_LIMIT}={}", first_device("90")),
        "SLUICE_POLICY=none".to_owned(),
        "SLUICE_ON_FAILURE=open".to_owned(),
        "CUDA_DISABLE_CONTROL=true".to_owned(),
        "ENABLE_CUDA_HOOKS=false".to_owned(),
        format!("{SESSION_DIR}="),
        "SLUICE_DAEMON=/nowhere/at/all".to_owned(),
    ];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let put: Vec<&str> = std::iter::once("put").chain(more.iter().copied()).collect();
    for how in [
        &["nothing"][..],
        &["clear"],
        &["null"],
        &["overwrite"],
        &["unset", MEMORY_LIMIT],
        &["unset", MEMORY_LIMIT, COMPUTE_LIMIT, SESSION_DIR],
        &["child"],
        &put,
    ] {
        let stage = Stage::new();
        let mut command = program(&stage, how);
        command
            .env(MEMORY_LIMIT, first_device("1GiB"))
            .env(COMPUTE_LIMIT, first_device("30"))
            .env("SLUICE_LOG", "info");
        let outcome = outcome(&mut command);
        println!("{how:?}");
        held(&outcome);
        let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
        assert!(page.is_file(), "{how:?}: the session is the one that was named at the start");
    }
}

/// Silent by default, and never on standard output.
#[test]
fn lines_go_to_a_file_where_that_can_be_written() {
    let stage = Stage::new();
    let run = |settings: &[(&str, &str)]| {
        let mut command = program(&stage, &["nothing"]);
        command.env(MEMORY_LIMIT, first_device("1GiB")).env(COMPUTE_LIMIT, first_device("30"));
        let outcome = outcome(command.envs(settings.iter().copied())).succeeded();
        assert!(!outcome.stdout.contains("sluice:"), "{outcome:#?}");
        outcome.stderr
    };
    assert!(!run(&[]).contains("sluice:"));
    let file = stage.folder().join("log");
    let named = file.to_str().unwrap();
    let words = ["this is libcuda_limiter.so", "compute 30% (TENSOR_FUSION_CUDA_UP_LIMIT"];
    for n in 1..=2 {
        let said = run(&[("SLUICE_LOG", "debug"), ("SLUICE_LOG_FILE", named)]);
        assert!(!said.contains("sluice:"), "{said}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(words.iter().all(|words| text.matches(words).count() == n), "{n}: {text}");
    }
    // The pipe has no reader.
    let pipe = stage.folder().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for other in ["/nowhere/at/all", "/dev/full", pipe.to_str().unwrap()] {
        let said = run(&[("LOGGER_LEVEL", "4"), ("SLUICE_LOG_FILE", other)]);
        assert!(words.iter().all(|words| said.contains(words)), "{other}: {said}");
    }
}

/// Each copy takes the other's patches for a program that undoes its own.
#[test]
fn a_second_copy_of_the_limiter_opens_nothing() {
    let stage = Stage::new();
    let limiter = stage.limiter();
    let mut command = program(&stage, &["copy", limiter.to_str().unwrap()]);
    command
        .env(MEMORY_LIMIT, first_device("1GiB"))
        .env(COMPUTE_LIMIT, first_device("30"))
        .env("SLUICE_LOG", "info");
    let outcome = outcome(&mut command);
    assert!(outcome.stderr.contains("another copy of Sluice"), "{outcome:#?}");
    assert!(outcome.stderr.contains("d.init(0): CUresult 800"), "{outcome:#?}");
}

/// Limits by visible index: the index counts the devices that were visible when the library was loaded.
#[test]
fn a_choice_of_devices_moves_no_limit_to_another_device() {
    for how in ["visible", "visible-hidden", "visible-again"] {
        for (chosen, expected) in [("1", 2048), ("1,0", 2048), (UUIDS[1], 2048), ("0", 1024)] {
            let stage = Stage::new();
            let mut command = program(&stage, &[how, chosen]);
            command.env("CUDA_DEVICE_MEMORY_LIMIT_0", "1g").env("CUDA_DEVICE_MEMORY_LIMIT_1", "2g");
            let outcome = outcome(&mut command).succeeded();
            assert_eq!(outcome.value("total"), expected, "{how} {chosen}: {outcome:#?}");
        }
    }
    // The index counts the devices that are visible from the start.
    let stage = Stage::new();
    let mut command = program(&stage, &["nothing"]);
    command
        .env("CUDA_VISIBLE_DEVICES", "1")
        .env("CUDA_DEVICE_MEMORY_LIMIT_0", "1g")
        .env("CUDA_DEVICE_MEMORY_LIMIT_1", "2g");
    assert_eq!(outcome(&mut command).succeeded().value("total"), 1024);
}

/// An empty list hides all devices. The program then makes a device visible that no index counts.
#[test]
fn a_device_that_was_hidden_with_all_others_is_refused() {
    for how in ["visible", "visible-again"] {
        let stage = Stage::new();
        let mut command = program(&stage, &[how, "1"]);
        command.env("CUDA_VISIBLE_DEVICES", "").env("CUDA_DEVICE_MEMORY_LIMIT_0", "1g");
        let outcome = outcome(&mut command);
        assert!(outcome.stderr.contains("its index is not known"), "{how}: {outcome:#?}");
        assert!(!outcome.stdout.contains("total="), "{how}: {outcome:#?}");
    }
}

/// The session's or the library's owner decides what happens if the limiter fails, not the program.
#[test]
fn a_failure_that_the_program_brings_about_opens_nothing() {
    let refused = |outcome: &Outcome, line: &str| {
        assert_eq!(outcome.code(), 0, "{outcome:#?}");
        assert_ne!((outcome.value("context"), outcome.value("much")), (0, 0), "{outcome:#?}");
        assert!(outcome.stderr.contains("GPU calls of this process fail"), "{outcome:#?}");
        assert!(outcome.stderr.contains(line), "{outcome:#?}");
    };
    let stage = Stage::new();
    let program = stage.compile("environment.c", "environment", &[]);
    let mut command = stage.run(&["--mem", "1GiB"]);
    command.args(["env", "SLUICE_ON_FAILURE=open"]).arg(&program).arg("exhausted");
    refused(&outcome(&mut command), "SLUICE_ON_FAILURE: not honoured");
    let mut command = stage.limited(&program);
    command.arg("exhausted").env(MEMORY_LIMIT, first_device("1GiB"));
    refused(&outcome(&mut command), "Too many open files");
    let open = outcome(command.env("SLUICE_ON_FAILURE", "open"));
    assert!(open.stderr.contains("NOT limited"), "{open:#?}");
    assert_eq!((open.value("context"), open.value("much")), (0, 0), "{open:#?}");
}
