//! Runs the suite that every engine has to pass over the engine of this build.

use hook::conformance::{Case, Outcome, cases};

/// What no engine has to patch: there is no room for a jump.
const MAY_BE_REFUSED: [&str; 1] = ["a function shorter than a jump, packed against the next one"];

fn outcome(case: &Case) -> Outcome {
    // SAFETY: the suite runs one case at a time, and nothing else here patches code.
    unsafe { case.run(hook::engine) }.unwrap_or_else(|failure| panic!("{}: {failure}", case.name()))
}

#[test]
fn the_engine_patches_what_can_be_patched_and_refuses_the_rest() {
    for case in cases() {
        if let Outcome::Refused(reason) = outcome(case) {
            let may = case.must_refuse() || MAY_BE_REFUSED.contains(&case.name());
            assert!(may, "{}: {reason}", case.name());
        }
    }
}

#[test]
fn the_suite_runs_again_in_the_same_process() {
    for case in cases() {
        assert!(matches!(outcome(case), Outcome::Patched | Outcome::Refused(_)), "{}", case.name());
    }
}
