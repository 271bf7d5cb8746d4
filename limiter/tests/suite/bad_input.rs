//! Wrong settings and damaged state are reported in one line, and nothing runs unlimited because of them.

use crate::common::{
    COMPUTE_LIMIT, MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, UUIDS, first_device, outcome,
};
use std::process::Command;

/// The limiter's lines.
fn lines(outcome: &Outcome) -> Vec<&str> {
    outcome.complaints().into_iter().filter(|line| line.starts_with("sluice: ")).collect()
}

/// The program's calls failed, one line reported the cause, and the program's exit status was its own.
#[track_caller]
fn refused(outcome: &Outcome, named: &[&str]) {
    assert_eq!(outcome.code(), 42, "{outcome:#?}");
    assert_ne!(outcome.value("first_error"), 0, "{outcome:#?}");
    assert_eq!(outcome.value("granted"), 0, "{outcome:#?}");
    assert_eq!(lines(outcome).len(), 1, "{outcome:#?}");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    for text in named {
        assert!(outcome.stderr.contains(text), "{text}: {outcome:#?}");
    }
}

/// A program that continues after errors, and exits with 42.
fn stubborn(stage: &Stage) -> Command {
    stage.limited(stage.compile("stubborn.c", "stubborn", &[]))
}

#[test]
fn settings_that_cannot_be_read() {
    let stage = Stage::new();
    let unknown_key = first_device(1).replace("GPU-", "TPU-");
    let negative = first_device("-5");
    let too_much = first_device("100.5");
    let bad_size = first_device("much");
    let none = first_device("0");
    let too_large = first_device("101%");
    let part = first_device("1GiB");
    let cases: [(&str, &str); 28] = [
        (MEMORY_LIMIT, "{"),
        (MEMORY_LIMIT, "1GiB"),
        (MEMORY_LIMIT, "[1]"),
        (MEMORY_LIMIT, &negative),
        (MEMORY_LIMIT, &unknown_key),
        (MEMORY_LIMIT, &bad_size),
        (MEMORY_LIMIT, &none),
        (COMPUTE_LIMIT, "{"),
        (COMPUTE_LIMIT, &negative),
        (COMPUTE_LIMIT, &too_much),
        (COMPUTE_LIMIT, &unknown_key),
        (COMPUTE_LIMIT, &none),
        ("CUDA_MEM_LIMIT_0", "12parsecs"),
        ("CUDA_MEM_LIMIT_first", "1g"),
        ("CUDA_CORE_LIMIT", "101"),
        ("VCUDA_MEMORY_LIMIT", "-1"),
        ("SLUICE_POLICY", "fair"),
        (MEMORY_LIMIT, &too_large),
        ("SLUICE_MEM_REAL", &part),
        ("CUDA_CORE_SOFT_LIMIT", "50"),
        ("SLUICE_WEIGHT", "0"),
        ("SLUICE_PRIORITY", "middle"),
        ("CUDA_MEM_RATIO", "0"),
        // These would limit nothing.
        (MEMORY_LIMIT, "{}"),
        (COMPUTE_LIMIT, "{}"),
        ("TENSOR_FUSION_CUDA_MEM_LIMIT_0", "1g"),
        ("TENSOR_FUSION_CUDA_UP_LIMIT_0", "30"),
        ("VCUDA_MEMORY_LIMIT_0", "1g"),
    ];
    for (variable, value) in cases {
        let outcome = outcome(stubborn(&stage).env(variable, value));
        refused(&outcome, &[variable]);
    }
}

/// Limits for devices that the node does not have apply nowhere.
#[test]
fn limits_for_devices_that_are_not_there() {
    let stage = Stage::new();
    for value in [r#"{"7": "1g"}"#, r#"{"GPU-ffffffff-0000-4000-8000-000000000000": "1g"}"#] {
        let outcome = outcome(stubborn(&stage).env(MEMORY_LIMIT, value));
        refused(&outcome, &[MEMORY_LIMIT, "no such device here", "nothing would be limited"]);
    }
    // The existing device is limited, and the other one is reported.
    let both = format!(r#"{{"{}": "1g", "7": "1g"}}"#, UUIDS[0]);
    let outcome = outcome(stubborn(&stage).env(MEMORY_LIMIT, both));
    // `CUDA_ERROR_OUT_OF_MEMORY`: the program asks for more.
    assert_eq!((outcome.code(), outcome.value("first_error")), (42, 2), "{outcome:#?}");
    let [line] = lines(&outcome)[..] else { panic!("{outcome:#?}") };
    assert!(line.contains("TENSOR_FUSION_CUDA_MEM_LIMIT[7]: no such device"), "{line}");
}

/// A wrong setting also stops programs that fail open: their intended limits are unknown.
#[test]
fn open_on_failure_does_not_cover_the_settings() {
    let stage = Stage::new();
    let mut command = stubborn(&stage);
    let outcome = outcome(command.env(MEMORY_LIMIT, "{").env("SLUICE_ON_FAILURE", "open"));
    refused(&outcome, &[MEMORY_LIMIT]);
}

#[test]
fn a_session_that_is_not_a_directory() {
    let stage = Stage::new();
    let file = stage.folder().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file, stage.folder().join("absent")] {
        let limited = || {
            let mut command = stubborn(&stage);
            command.env(SESSION_DIR, &path).env(MEMORY_LIMIT, first_device("1GiB"));
            command
        };
        refused(&outcome(&mut limited()), &[SESSION_DIR, path.to_str().unwrap()]);
        let open = outcome(limited().env("SLUICE_ON_FAILURE", "open"));
        assert_eq!(open.code(), 42, "{open:#?}");
        assert_eq!((open.value("first_error"), open.value("granted")), (0, 1), "{open:#?}");
        assert_eq!(open.complaints().len(), 1, "{open:#?}");
        assert!(open.stderr.contains("NOT limited"), "{open:#?}");
        assert!(open.stderr.contains(SESSION_DIR), "{open:#?}");
    }
}

#[test]
fn a_page_that_is_not_a_page() {
    let stage = Stage::new();
    let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
    std::fs::write(&page, "not a page").unwrap();
    let mut command = stubborn(&stage);
    command.env(MEMORY_LIMIT, first_device("1GiB"));
    refused(&outcome(&mut command), &[page.to_str().unwrap()]);
}

#[test]
fn what_works_says_nothing() {
    let stage = Stage::new();
    let mut command = stubborn(&stage);
    command.env(MEMORY_LIMIT, first_device("4GiB")).env(COMPUTE_LIMIT, first_device("50"));
    let outcome = outcome(&mut command);
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (42, ""), "{outcome:#?}");
    assert_eq!((outcome.value("first_error"), outcome.value("granted")), (0, 1), "{outcome:#?}");
}
