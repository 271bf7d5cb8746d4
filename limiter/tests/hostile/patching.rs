//! Patches that are said to be made and are not, or that do not last.

use crate::common::{MEMORY_LIMIT, Outcome, Stage, first_device, outcome};
use std::path::PathBuf;
use std::process::Command;

/// A program on a machine that undoes patches: `which` of them, see `undo.c`.
fn on_such_a_machine(stage: &Stage, program: PathBuf, which: &str) -> Command {
    let undo = stage.compile("undo.c", "libundo.so", &["-shared", "-fPIC"]);
    let mut command = stage.limited(program);
    command.env("LD_PRELOAD", format!("{}:{}", undo.display(), stage.limiter().display()));
    command.env("UNDO", which);
    command
}

fn loader(which: &str, change: impl FnOnce(&mut Command)) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = on_such_a_machine(&stage, program, which);
    command.arg("now").env(MEMORY_LIMIT, first_device("1GiB"));
    change(&mut command);
    outcome(&mut command)
}

/// Whether the program got further than `cuInit`, and what it was told.
fn refused(outcome: &Outcome) -> bool {
    assert_eq!(
        outcome.complaints().len(),
        if outcome.code() == 97 { 2 } else { 1 },
        "{outcome:#?}"
    );
    outcome.code() == 97 && outcome.stderr.contains("CUresult 800")
}

#[test]
fn patches_that_do_not_last_refuse_the_device() {
    for which in ["jumps", "half", "wrong"] {
        let outcome = loader(which, |_| ());
        assert!(refused(&outcome), "{which}: {outcome:#?}");
        assert!(outcome.stderr.contains("GPU calls of this process fail"), "{which}: {outcome:#?}");
    }
}
