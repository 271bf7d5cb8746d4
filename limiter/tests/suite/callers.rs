//! What a program and its libraries see of the loader is what they see without the limiter.

use crate::common::{MEMORY_LIMIT, Outcome, Stage, first_device, holds, outcome};
use std::path::PathBuf;

/// The program, linked against the driver with a plugin before it, with a flag for the linker.
fn program(stage: &Stage, flag: &str) -> PathBuf {
    let inner = stage.folder().join("inner");
    if !inner.is_dir() {
        std::fs::create_dir(&inner).unwrap();
        stage.compile("plugin.c", "inner/libinner.so", &["-shared", "-fPIC", "-DINNER"]);
        let only_here = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/inner";
        stage.compile("plugin.c", "libplugin.so", &["-shared", "-fPIC", only_here]);
    }
    let folder = stage.folder().display();
    let [own, driver] = [format!("-L{folder}"), format!("-L{}", stage.driver().display())];
    let path = format!("-Wl,--no-as-needed,{flag},-rpath,{folder}");
    stage.compile("callers.c", "callers", &[&own, &driver, &path, "-lplugin", "-lcuda"])
}

#[track_caller]
fn libraries(outcome: &Outcome) -> Vec<String> {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("libraries="));
    line.unwrap().split(',').map(str::to_owned).collect()
}

#[test]
fn what_callers_see_is_the_same() {
    let stage = Stage::new();
    for flag in ["-z,lazy", "-z,now"] {
        let program = program(&stage, flag);
        let native = outcome(&mut stage.native(&program)).silent();
        let mut command = stage.limited(&program);
        let limited = outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))).silent();
        // The function behind one's own, libraries and names of addresses, a library by the caller's RUNPATH.
        let seen = |outcome: &Outcome| outcome.stdout.lines().next().unwrap().to_owned();
        assert_eq!(seen(&limited), seen(&native), "{flag}");
        for part in
            ["next=libcuda.so.1 ", "inner=7 ", "cuLaunchKernel=1:libcuda.so.1:cuLaunchKernel "]
        {
            assert!(seen(&native).contains(part), "{flag}: {native:#?}");
        }
        // Their order: the limiter comes second, as all that is preloaded, and moves no other.
        let mut with = libraries(&limited);
        let own = with.iter().position(|name| name == "libcuda_limiter.so").unwrap();
        with.remove(own);
        assert_eq!(with, libraries(&native), "{flag}");
        holds(limited);
    }
}

/// The loader binds all names before the first constructor runs.
#[test]
fn a_program_that_is_bound_at_once() {
    let stage = Stage::new();
    let library = format!("-L{}", stage.driver().display());
    for flag in ["-Wl,-z,now", "-Wl,-z,lazy"] {
        let program = stage.compile("linked.c", "linked", &[&library, flag, "-lcuda"]);
        let mut command = stage.limited(&program);
        holds(outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))));
    }
}
