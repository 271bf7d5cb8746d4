//! A program's limit applies from the first call, however it loads the driver.

use crate::common::{
    COMPUTE_LIMIT, MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, built, first_device, holds, outcome,
};
use std::path::Path;

fn limited(stage: &Stage, program: &Path, arguments: &[&str]) -> Outcome {
    outcome(stage.limited(program).args(arguments).env(MEMORY_LIMIT, first_device("1GiB")))
}

fn loader(how: &str) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    limited(&stage, &program, &[how])
}

#[test]
fn the_same_program_without_the_limiter_gets_the_memory() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let free = outcome(stage.native(&program).arg("now")).silent();
    assert_eq!((free.value("little"), free.value("much")), (0, 0));
}

#[test]
fn dlopen_then_an_immediate_call() {
    holds(loader("now"));
}

#[test]
fn a_limiter_that_is_loaded_by_hand_cannot_be_unloaded() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = stage.native(program);
    command.arg("unload-limiter").arg(built("libcuda_limiter.so"));
    command.env(SESSION_DIR, stage.session("session")).env(MEMORY_LIMIT, first_device("1GiB"));
    holds(outcome(&mut command));
}

#[test]
fn lazy_binding() {
    holds(loader("lazy"));
}

#[test]
fn function_pointers_from_cu_get_proc_address() {
    holds(loader("proc-address"));
}

#[test]
fn fifty_times_loaded_and_unloaded() {
    holds(loader("reopen"));
}

/// The limiter's own threads continue to call the driver.
#[test]
fn a_driver_that_is_unloaded_while_it_is_used_stays() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    for compute in ["100", "50"] {
        let mut command = stage.limited(&program);
        command.arg("close").env(MEMORY_LIMIT, first_device("1GiB"));
        holds(outcome(command.env(COMPUTE_LIMIT, first_device(compute))));
    }
}

#[test]
fn a_function_that_has_one_name_twice_is_patched_once() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let versions = stage.folder().join("versions");
    std::fs::write(&versions, "FIRST {}; SECOND {} FIRST;").unwrap();
    let script = format!("-Wl,--version-script={}", versions.display());
    let options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", &script];
    let driver = stage.compile("twice.c", "libtwice.so", &options);
    let driver = driver.to_str().unwrap();
    let outcome = outcome(stage.limited(&program).args(["twice", driver])).silent();
    assert_eq!((outcome.value("right"), outcome.value("wrong")), (0, 1), "{outcome:#?}");
}

#[test]
fn eight_threads_load_and_unload() {
    holds(loader("threads"));
}

#[test]
fn exec_keeps_the_limiter() {
    holds(loader("exec"));
    holds(loader("exec-after-init"));
}

#[test]
fn a_program_that_may_have_no_writable_code() {
    holds(loader("exec-hardened"));
}

/// A filter that keeps a page which was made writable from becoming read-only code again.
#[test]
fn a_program_whose_code_cannot_be_made_read_only_again() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    for error in [libc::EPERM, libc::ENOSYS] {
        let error = error.to_string();
        holds(limited(&stage, &program, &["exec-denied", "code", &error, "now"]));
        holds(limited(&stage, &program, &["denied", "code", &error]));
    }
}

#[test]
fn a_program_in_which_no_code_can_be_written_finds_no_device() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let driver = stage.driver().join("libcuda.so.1");
    let path = driver.to_str().unwrap();
    for arguments in [
        &["exec-denied", "all", "1", "now"][..],
        &["exec-denied", "all", "38", "now"],
        &["denied", "all", "1"],
        &["exec-denied", "all", "1", "path", path],
    ] {
        let outcome = limited(&stage, &program, arguments);
        assert_eq!(outcome.code(), 97, "{outcome:#?}");
        assert!(outcome.stderr.contains("CUresult 100"), "{outcome:#?}");
        assert!(outcome.stderr.contains("hides all GPUs from this process"), "{outcome:#?}");
        assert_eq!(outcome.complaints().len(), 2, "{outcome:#?}");
    }
}

#[test]
fn a_child_that_uses_the_driver_first() {
    for how in ["fork-before-load", "fork-before-init"] {
        let outcome = loader(how);
        assert_eq!(outcome.value("status"), 0, "{how}: {outcome:#?}");
        holds(outcome);
    }
}

#[test]
fn a_child_of_a_program_that_uses_the_driver() {
    let outcome = loader("fork-after-init").silent();
    assert_eq!(outcome.value("status"), 0, "{outcome:#?}");
    assert_ne!(outcome.value("much2"), 0, "{outcome:#?}");
    holds(outcome);
}

#[test]
fn a_program_linked_against_the_driver() {
    let stage = Stage::new();
    let library = format!("-L{}", stage.driver().display());
    let program = stage.compile("linked.c", "linked", &[&library, "-lcuda"]);
    holds(limited(&stage, &program, &[]));
}

#[test]
fn a_constructor_that_loads_the_driver_and_calls_it() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let library = stage.compile("constructor.c", "libopens.so", &["-shared", "-fPIC"]);
    holds(limited(&stage, &program, &["library", library.to_str().unwrap()]));
}

#[test]
fn a_constructor_of_a_library_linked_against_the_driver() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let driver = format!("-L{}", stage.driver().display());
    let options = ["-shared", "-fPIC", "-DLINKED", &driver, "-lcuda"];
    let library = stage.compile("constructor.c", "liblinked.so", &options);
    holds(limited(&stage, &program, &["library", library.to_str().unwrap()]));
}

#[test]
fn a_driver_in_a_namespace_of_its_own() {
    holds(loader("namespace"));
}

/// A copy that forwards its calls to another one: at once, or from its first call. Each call is counted once.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_driver_that_hands_its_calls_on_to_another() {
    for lazy in [false, true] {
        let stage = Stage::new();
        let program = stage.compile("loader.c", "loader", &[]);
        let options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1"];
        let forwarder = stage.compile("forward.c", "libforward.so", &options);
        for how in ["path", "path-busy"] {
            let mut command = stage.limited(&program);
            command.arg(how).arg(&forwarder).env("REAL", stage.driver().join("libcuda.so.1"));
            command.envs(lazy.then_some(("LAZY", "1"))).env(COMPUTE_LIMIT, first_device("50"));
            holds(outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))));
        }
    }
}

/// Functions are patched once per process; calls into a further copy lead to the first.
#[test]
fn a_second_copy_of_the_driver_is_not_unlimited() {
    for how in ["second-copy", "two-copies"] {
        let outcome = loader(how).succeeded();
        assert_ne!(outcome.value("much2"), 0, "{how}: {outcome:#?}");
        assert!(outcome.stderr.contains("second libcuda.so.1"), "{how}: {outcome:#?}");
    }
}

#[test]
fn a_copy_of_the_driver_from_another_path_is_not_unlimited() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let copy = stage.folder().join("another-driver.so");
    std::fs::copy(built("libfake_cuda.so"), &copy).unwrap();
    let outcome = limited(&stage, &program, &["second-path", copy.to_str().unwrap()]).succeeded();
    assert_ne!(outcome.value("much2"), 0, "{outcome:#?}");
    assert!(outcome.stderr.contains(copy.to_str().unwrap()), "{outcome:#?}");
}

/// The first copy is unloaded before the other is used.
#[test]
fn a_copy_of_the_driver_without_the_first_fails() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let copy = stage.folder().join("another-driver.so");
    std::fs::copy(built("libfake_cuda.so"), &copy).unwrap();
    let arguments = ["second-path-alone", copy.to_str().unwrap()];
    let outcome = limited(&stage, &program, &arguments).succeeded();
    assert_ne!(outcome.value("init2"), 0, "{outcome:#?}");
    assert_ne!(outcome.value("much2"), 0, "{outcome:#?}");
}

/// Without limits, and without a session that could get some, there is nothing to bypass. Such a program may have any
/// number of copies.
#[test]
fn a_second_copy_is_left_alone_where_nothing_can_be_limited() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = stage.limited(&program);
    let outcome = outcome(command.env_remove(SESSION_DIR).arg("second-copy")).silent();
    assert_eq!((outcome.value("much"), outcome.value("much2")), (0, 0), "{outcome:#?}");
}
