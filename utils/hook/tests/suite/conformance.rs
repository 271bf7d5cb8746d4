//! Runs the conformance suite over the engine of this build.

use hook::conformance::{Case, Failure, Outcome, cases};

/// Cases that an engine may refuse: there is no room for a jump.
const MAY_BE_REFUSED: [&str; 1] = ["a function shorter than a jump, packed against the next one"];

/// Runs a case; `None` if this machine does not support it.
fn outcome(case: &Case) -> Option<Outcome> {
    // SAFETY: the suite runs one case at a time, and nothing else here patches code.
    match unsafe { case.run(hook::engine) } {
        Ok(outcome) => Some(outcome),
        Err(Failure::NotMade(_)) if NEED_FILTERS.contains(&case.name()) && !has_filters() => {
            println!("SKIPPED {}: there are no seccomp filters here", case.name());
            None
        }
        Err(failure) => panic!("{}: {failure}", case.name()),
    }
}

const NEED_FILTERS: [&str; 2] =
    ["no writable and executable memory", "a kernel that only lists all mappings"];

/// Processor emulators have no seccomp filters.
fn has_filters() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) >= 0 }
}

#[test]
fn the_engine_patches_what_can_be_patched_and_refuses_the_rest() {
    for case in cases() {
        if let Some(Outcome::Refused(reason)) = outcome(case) {
            let may = case.must_refuse() || MAY_BE_REFUSED.contains(&case.name());
            assert!(may, "{}: {reason}", case.name());
        }
    }
}

#[test]
fn the_suite_runs_again_in_the_same_process() {
    for case in cases() {
        outcome(case);
    }
}
