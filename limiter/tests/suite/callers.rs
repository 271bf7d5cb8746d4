//! A program and its libraries see the same of the loader as without the limiter.

use crate::common::{MEMORY_LIMIT, Outcome, Stage, built, first_device, holds, outcome};
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

fn up_to_libc(libraries: &[String]) -> &[String] {
    &libraries[..=libraries.iter().position(|name| name == "libc.so.6").unwrap()]
}

/// Release builds are linked against these libraries, which contain the thread and loader functions of glibc before
/// 2.34. The loader places them after the libraries that the program itself is linked against, and before those of only
/// its libraries. Nothing else is moved, and since glibc 2.34 the two have no function that a lookup could find.
const PARTS_OF_GLIBC: [&str; 2] = ["libpthread.so.0", "libdl.so.2"];

/// Whether the limiter is linked against them; builds by `cargo build` on newer glibc are not.
fn needs_parts_of_glibc() -> bool {
    let limiter = std::fs::read(built("libcuda_limiter.so")).unwrap();
    PARTS_OF_GLIBC.iter().all(|part| {
        let name = format!("\0{part}\0");
        limiter.windows(name.len()).any(|bytes| bytes == name.as_bytes())
    })
}

#[test]
fn what_callers_see_is_the_same() {
    let stage = Stage::new();
    for flag in ["-z,lazy", "-z,now"] {
        let program = program(&stage, flag);
        let native = outcome(&mut stage.native(&program)).silent();
        let mut command = stage.limited(&program);
        let limited = outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))).silent();
        // The next definition of a function, libraries and names of addresses, and a library by the caller's RUNPATH.
        let seen = |outcome: &Outcome| outcome.stdout.lines().next().unwrap().to_owned();
        assert_eq!(seen(&limited), seen(&native), "{flag}");
        for part in
            ["next=libcuda.so.1 ", "inner=7 ", "cuLaunchKernel=1:libcuda.so.1:cuLaunchKernel "]
        {
            assert!(seen(&native).contains(part), "{flag}: {native:#?}");
        }
        // Their order: the limiter comes second, like everything that is preloaded, and moves only the libraries that
        // it needs itself.
        let (mut with, mut without) = (libraries(&limited), libraries(&native));
        let own = with.iter().position(|name| name == "libcuda_limiter.so").unwrap();
        with.remove(own);
        if with != without {
            assert!(needs_parts_of_glibc(), "{flag}: {with:?} instead of {without:?}");
            // The program itself is linked against these.
            assert_eq!(up_to_libc(&with), up_to_libc(&without), "{flag}");
            for list in [&mut with, &mut without] {
                list.retain(|name| !PARTS_OF_GLIBC.contains(&&name[..]));
            }
        }
        assert_eq!(with, without, "{flag}");
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
