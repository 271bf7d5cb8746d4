//! Runs the suite that every engine has to pass over the engine of this build.

use hook::conformance::{CASES, Case, Outcome};

fn outcome(case: &Case) -> Outcome {
    // SAFETY: the suite runs one case at a time, and nothing else here patches code.
    unsafe { case.run(hook::engine) }.unwrap_or_else(|failure| panic!("{}: {failure}", case.name()))
}

#[test]
fn the_engine_patches_what_can_be_patched_and_refuses_the_rest() {
    for case in CASES {
        let refusal = case.name().ends_with("is refused");
        match outcome(case) {
            Outcome::Patched => assert!(!refusal, "{}", case.name()),
            Outcome::Refused(reason) => assert!(refusal, "{}: {reason}", case.name()),
        }
    }
}

#[test]
fn the_suite_runs_again_in_the_same_process() {
    for case in CASES {
        assert!(matches!(outcome(case), Outcome::Patched | Outcome::Refused(_)), "{}", case.name());
    }
}
