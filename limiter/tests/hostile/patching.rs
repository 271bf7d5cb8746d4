//! Patches that are said to be made and are not, or that do not last.

use crate::common::{MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, built, first_device, outcome};
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

#[test]
fn where_nothing_can_be_written_a_line_says_that_nothing_is_limited() {
    let outcome = loader("all", |_| ()).succeeded();
    assert_eq!((outcome.value("little"), outcome.value("much")), (0, 0), "{outcome:#?}");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("NOT limited, and cannot be refused"), "{outcome:#?}");
}

#[test]
fn patches_that_do_not_last_are_said_and_pass_where_failures_are_open() {
    for which in ["jumps", "all"] {
        let outcome = loader(which, |command| {
            command.env("SLUICE_ON_FAILURE", "open");
        });
        let outcome = outcome.succeeded();
        assert_eq!((outcome.value("little"), outcome.value("much")), (0, 0), "{outcome:#?}");
        assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
        assert!(outcome.stderr.contains("are NOT limited"), "{outcome:#?}");
    }
}

/// Without any limit nothing is said, and nothing refused: in a session without limits, and outside of one.
#[test]
fn a_process_without_a_limit_is_left_alone_whatever_became_of_the_patches() {
    for which in ["jumps", "half", "all"] {
        for alone in [true, false] {
            let outcome = loader(which, |command| {
                command.env_remove(MEMORY_LIMIT);
                if alone {
                    command.env_remove(SESSION_DIR);
                }
            });
            let outcome = outcome.silent();
            assert_eq!((outcome.value("little"), outcome.value("much")), (0, 0), "{outcome:#?}");
        }
    }
}

/// The limits of a session count, whatever a process's own environment says.
#[test]
fn a_process_of_a_limited_session_is_refused_without_a_limit_of_its_own() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut first = stage.limited(&program);
    outcome(first.arg("now").env(MEMORY_LIMIT, first_device("1GiB"))).silent();
    let second = outcome(on_such_a_machine(&stage, program, "half").arg("now"));
    assert!(refused(&second), "{second:#?}");
}

#[test]
fn a_second_copy_whose_patches_do_not_last_is_refused() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = on_such_a_machine(&stage, program, "jumps");
    command.arg("two-copies").env(MEMORY_LIMIT, first_device("1GiB"));
    let outcome = outcome(&mut command).succeeded();
    assert_eq!((outcome.value("init1"), outcome.value("init2")), (800, 800), "{outcome:#?}");
    assert_ne!(outcome.value("much2"), 0, "{outcome:#?}");
}

fn restored(arguments: &[&str], policy: &str) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("restore.c", "restore", &[]);
    let mut command = stage.limited(program);
    command.args(arguments).env(MEMORY_LIMIT, first_device("1GiB"));
    outcome(command.env("SLUICE_ON_FAILURE", policy)).succeeded()
}

/// A library, a debugger or the program itself writes a function's own first instructions back.
#[test]
fn a_patch_that_is_undone_is_noticed_when_the_driver_starts() {
    for name in ["cuMemAlloc_v2", "cuMemFree_v2", "cuDriverGetVersion"] {
        let closed = restored(&["before-init", name], "closed");
        assert_eq!((closed.value("init"), closed.complaints().len()), (800, 1), "{closed:#?}");
        assert!(closed.stderr.contains(name), "{closed:#?}");
    }
    let open = restored(&["before-init", "cuMemAlloc_v2"], "open");
    assert_eq!((open.value("init"), open.complaints().len()), (0, 1), "{open:#?}");
    assert!(open.stderr.contains("NOT limited"), "{open:#?}");
}

#[test]
fn a_patch_that_is_undone_is_noticed_when_a_library_is_loaded() {
    // The hook of `cuInit` is gone, and with it the last place that could refuse.
    let init = restored(&["before-load", "cuInit"], "closed");
    assert_eq!(init.complaints().len(), 1, "{init:#?}");
    assert!(init.stderr.contains("cuInit: its first instructions were changed"), "{init:#?}");
    // What still reaches Sluice is refused.
    assert_eq!((init.value("init"), init.stdout.contains("little")), (0, false), "{init:#?}");
    let alloc = restored(&["later", "cuMemFree_v2"], "closed");
    assert_eq!((alloc.value("little"), alloc.value("much")), (800, 800), "{alloc:#?}");
    assert_eq!(alloc.complaints().len(), 1, "{alloc:#?}");
}

#[test]
fn a_patch_that_is_undone_is_noticed_when_a_context_is_made() {
    let outcome = restored(&["context", "cuMemAlloc_v2"], "closed");
    assert_eq!(outcome.value("init"), 0, "{outcome:#?}");
    assert!(!outcome.stdout.contains("little") && outcome.stderr.contains("cuMemAlloc_v2"));
}

/// The entry leads to the hook, and something is wrong with the hook.
#[test]
fn a_call_that_does_not_arrive_is_noticed() {
    let closed = restored(&["hook", "cuDriverGetVersion"], "closed");
    assert_eq!((closed.value("init"), closed.complaints().len()), (800, 1), "{closed:#?}");
    assert!(closed.stderr.contains("did not reach Sluice"), "{closed:#?}");
}

#[test]
fn a_breakpoint_at_a_patched_function_is_no_failure() {
    for arguments in [&["breakpoint"][..], &["later"]] {
        let outcome = restored(arguments, "closed").silent();
        let told = (outcome.value("init"), outcome.value("little"), outcome.value("much"));
        assert_eq!(told, (0, 0, 2), "{outcome:#?}");
    }
}

/// `sluice hooks` tells what was verified.
#[test]
fn what_does_not_last_is_not_listed_as_patched() {
    let stage = Stage::new();
    let undo = stage.compile("undo.c", "libundo.so", &["-shared", "-fPIC"]);
    let hooks = |which: Option<&str>| {
        let mut command = stage.native(built("sluice"));
        command.args(["hooks", "--fake-gpu"]).env("LD_PRELOAD", &undo);
        outcome(command.envs(which.map(|which| ("UNDO", which))))
    };
    let right = hooks(None).silent();
    let total = right.stdout.lines().last().unwrap().to_owned();
    assert!(total.ends_with(" 0 failed") && !total.contains(" 0 patched"), "{total}");
    for which in ["jumps", "half", "wrong", "all"] {
        let wrong = hooks(Some(which));
        let total = wrong.stdout.lines().last().unwrap_or_default();
        assert_eq!((wrong.code(), wrong.stderr.as_str()), (1, ""), "{which}: {wrong:#?}");
        assert!(!total.ends_with(" 0 failed"), "{which}: {total}");
        assert_eq!(which != "half", total.contains(" 0 patched"), "{which}: {total}");
        assert!(wrong.stdout.contains("FAILED: the hook engine reports it"), "{wrong:#?}");
    }
}
