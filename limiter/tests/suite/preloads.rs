//! Other libraries in `LD_PRELOAD`, before and after the limiter: limits apply, and the program runs.

use crate::common::{COMPUTE_LIMIT, MEMORY_LIMIT, Stage, first_device, holds, outcome, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `LD_PRELOAD` in both orders.
fn orders(stage: &Stage, other: &Path) -> [String; 2] {
    let (limiter, other) = (stage.limiter().display().to_string(), other.display().to_string());
    [format!("{limiter}:{other}"), format!("{other}:{limiter}")]
}

/// An allocator of the system, or one that `scripts/test.sh` has unpacked, possibly for another glibc.
fn allocator(name: &str) -> Option<PathBuf> {
    let folder = "usr/lib/x86_64-linux-gnu";
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/allocators");
    let roots = match std::env::var_os("SLUICE_TEST_ALLOCATORS") {
        Some(of_its_glibc) => vec![of_its_glibc.into()],
        None => vec![PathBuf::from("/"), unpacked],
    };
    let places = roots.into_iter().map(|root| root.join(folder).join(name));
    let found = { places }.find(|path| path.is_file());
    if found.is_none() {
        skipped(&format!("{name} is not here; scripts/test.sh gets it"));
    }
    found
}

#[track_caller]
fn holds_beside(other: &Path) {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    // With a compute limit the limiter has threads.
    let how = ["now", "threads", "proc-address", "exec", "fork-after-init", "close"];
    for order in orders(&stage, other) {
        for how in how {
            let mut command = stage.limited(&program);
            command.arg(how).env("LD_PRELOAD", &order).env(MEMORY_LIMIT, first_device("1GiB"));
            println!("{how}: {order}");
            holds(outcome(command.env(COMPUTE_LIMIT, first_device("50"))));
        }
    }
}

#[test]
fn jemalloc() {
    if let Some(library) = allocator("libjemalloc.so.2") {
        holds_beside(&library);
    }
}

#[test]
fn tcmalloc() {
    if let Some(library) = allocator("libtcmalloc_minimal.so.4") {
        holds_beside(&library);
    }
}

/// Another limiter that exports the driver's functions, and answers lookups with its own.
#[test]
fn an_interposer_of_the_drivers_functions() {
    let stage = Stage::new();
    let interposer = stage.compile("interposer.c", "interposer.so", &["-shared", "-fPIC"]);
    holds_beside(&interposer);
    let program = stage.compile("loader.c", "loader", &[]);
    let says = stage.folder().join("said");
    for order in orders(&stage, &interposer) {
        for how in ["now", "proc-address"] {
            let mut command = stage.limited(&program);
            command.arg(how).env("LD_PRELOAD", &order).env("INTERPOSER_SAYS", &says);
            holds(outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))));
            let said = std::fs::read_to_string(&says).unwrap();
            assert!(said.contains(" allocations=2 "), "{how} with {order}: {said}");
        }
    }
}

/// The compiler's library for programs with address checks.
fn sanitizer() -> Option<PathBuf> {
    let said = Command::new("cc").arg("-print-file-name=libasan.so").output().ok()?;
    let path = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim()).canonicalize().ok();
    if path.is_none() {
        skipped("the compiler has no address sanitizer");
    }
    path
}

/// A sanitizer ends programs in which it is not the first library, unless it is told not to. Its allocator does not
/// support a fork beside threads, which the limiter has, so these programs do not fork.
#[test]
fn an_address_sanitizer() {
    let Some(sanitizer) = sanitizer() else { return };
    let stage = Stage::new();
    let checked = stage.compile_here("loader.c", "checked", "-fsanitize=address").unwrap();
    let plain = stage.compile("loader.c", "loader", &[]);
    let [last, first] = orders(&stage, &sanitizer);
    let only = stage.limiter().display().to_string();
    // The simulated driver leaks as a real driver does.
    let any_order = "detect_leaks=0:verify_asan_link_order=0";
    for (program, preload, options) in [
        (&checked, &first, "detect_leaks=0"),
        (&plain, &first, "detect_leaks=0"),
        (&checked, &only, any_order),
        (&checked, &last, any_order),
    ] {
        for how in ["now", "threads", "exec", "close"] {
            let mut command = stage.limited(program);
            command.arg(how).env("LD_PRELOAD", preload).env("ASAN_OPTIONS", options);
            println!("{how}: {preload} {options}");
            command.env(MEMORY_LIMIT, first_device("1GiB"));
            holds(outcome(command.env(COMPUTE_LIMIT, first_device("50"))));
        }
    }
}

/// `sluice run` keeps a sanitizer in its place.
#[test]
fn an_address_sanitizer_under_sluice_run() {
    let Some(sanitizer) = sanitizer() else { return };
    let stage = Stage::new();
    let checked = stage.compile_here("loader.c", "checked", "-fsanitize=address").unwrap();
    let mut command = stage.run(&["--device", "0", "--mem", "1GiB"]);
    command.arg(&checked).arg("now").env("LD_PRELOAD", &sanitizer);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    holds(outcome(&mut command));
}
