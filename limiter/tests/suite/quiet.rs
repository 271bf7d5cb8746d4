//! What the library must not do: replace functions of other libraries, or become visible in a process that never uses a
//! GPU.

use crate::common::{COMPUTE_LIMIT, MEMORY_LIMIT, Stage, built, first_device, outcome};
use std::process::Command;

#[test]
fn no_function_of_the_driver_or_the_loader_is_exported() {
    let library = built("libcuda_limiter.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let listed = listed.unwrap_or_else(|error| panic!("nm: {error}: binutils are needed"));
    assert!(listed.status.success(), "{}", crate::common::text(&listed.stderr));
    let exported = crate::common::text(&listed.stdout);
    let foreign: Vec<_> = exported
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| {
            let driver = name
                .strip_prefix("cu")
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()));
            driver || ["nvml", "dl", "_dl"].iter().any(|prefix| name.starts_with(prefix))
        })
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    // The list above is not empty because `nm` found nothing at all.
    let fake =
        Command::new("nm").args(["-D", "--defined-only"]).arg(built("libfake_cuda.so")).output();
    assert!(crate::common::text(&fake.unwrap().stdout).contains(" cuInit\n"));
}

/// Other programs of the workspace use TLS through the same crate.
#[test]
fn the_library_has_no_tls() {
    let symbols = |file: &str| {
        let listed = Command::new("nm").arg(built(file)).output().unwrap();
        crate::common::text(&listed.stdout)
    };
    let library = symbols("libcuda_limiter.so");
    if !library.contains("http_bidir_comm") {
        println!("SKIPPED: the library was built without names of its functions");
        return;
    }
    for part in ["rustls", "ring_core"] {
        let found: Vec<_> = library.lines().filter(|line| line.contains(part)).take(3).collect();
        assert!(found.is_empty(), "{found:?}");
        // The names are those that a program with TLS has.
        assert!(symbols("sluice").contains(part), "{part}");
    }
}

#[test]
fn programs_without_a_gpu_run_as_before() {
    let stage = Stage::new();
    let programs: [&[&str]; 6] = [
        &["true"],
        &["false"],
        &["env", "-i", "echo", "hello"],
        &["sh", "-c", "echo out; echo err >&2; exit 7"],
        &["sh", "-c", "kill -TERM $$"],
        &["python3", "-c", "import sys; print('hi'); sys.exit(5)"],
    ];
    for program in programs {
        let name = program[0];
        if Command::new(name).arg("--version").output().is_err() {
            assert_eq!(name, "python3", "{name} is part of every system");
            continue;
        }
        let plain = outcome(stage.native(name).args(&program[1..]));
        let limited = outcome(
            stage
                .limited(name)
                .args(&program[1..])
                .env(MEMORY_LIMIT, first_device("1GiB"))
                .env(COMPUTE_LIMIT, first_device(25)),
        );
        assert_eq!(
            (limited.code(), &limited.stdout, &limited.stderr),
            (plain.code(), &plain.stdout, &plain.stderr),
            "{program:?}"
        );
    }
}

/// Wrong settings concern only programs that use a GPU.
#[test]
fn nothing_is_said_about_wrong_settings_before_the_first_call() {
    let stage = Stage::new();
    let outcome = outcome(stage.limited("true").env(MEMORY_LIMIT, "{").env(COMPUTE_LIMIT, "-1"));
    outcome.silent();
}

#[test]
fn no_thread_is_started_and_no_file_made() {
    let stage = Stage::new();
    let program = stage.compile("idle.c", "idle", &[]);
    let plain = outcome(&mut stage.native(&program)).silent();
    let mut command = stage.limited(&program);
    command.env(MEMORY_LIMIT, first_device("1GiB")).env(COMPUTE_LIMIT, first_device(25));
    let limited = outcome(&mut command).silent();
    assert_eq!((plain.value("preloaded"), limited.value("preloaded")), (0, 1), "{limited:#?}");
    assert_eq!(limited.value("threads"), 1, "{limited:#?}");
    assert_eq!(limited.value("descriptors"), plain.value("descriptors"), "{limited:#?}");
    assert_eq!(limited.value("mapped"), 0, "{limited:#?}");
    // Enlarging the descriptor table later would make the first CUDA call wait for every processor.
    assert!(limited.value("table") >= 1024, "{limited:#?}");
    assert_eq!(std::fs::read_dir(stage.session("session")).unwrap().count(), 0);
    assert!(!stage.node().exists(), "the driver was loaded");
}

/// The pages of the library's file that the start has touched are unmapped again, except those of the last steps.
#[test]
fn little_of_the_library_stays_in_memory() {
    let stage = Stage::new();
    let program = stage.compile("idle.c", "idle", &[]);
    let plain = outcome(stage.native(&program).arg("memory")).silent();
    let mut command = stage.limited(&program);
    let limited = outcome(command.arg("memory").env(MEMORY_LIMIT, first_device("1GiB"))).silent();
    let more = limited.value("resident").saturating_sub(plain.value("resident"));
    let [of_limiter, own] = ["of_limiter", "own"].map(|name| limited.value(name));
    println!("KiB: {more} more, {of_limiter} of the library, of them {own} own");
    assert!(own > 0 && of_limiter > own, "{limited:#?}");
    assert!(of_limiter - own <= 512, "{limited:#?}");
    // As docs/specification.md promises.
    assert!(more <= 1024, "{more} KiB more: {limited:#?}");
}
