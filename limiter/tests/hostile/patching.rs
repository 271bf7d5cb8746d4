//! Patches that fail although the system reports success, or that do not last.

use crate::common::{MEMORY_LIMIT, Outcome, SESSION_DIR, Stage, built, first_device, outcome};
use std::path::{Path, PathBuf};
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

/// Whether the program got further than `cuInit`, and what was reported to it.
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
fn where_nothing_can_be_written_the_driver_finds_no_device() {
    let outcome = loader("all", |_| ());
    assert_eq!((outcome.code(), outcome.complaints().len()), (97, 2), "{outcome:#?}");
    assert!(outcome.stderr.contains("CUresult 100"), "{outcome:#?}");
    assert!(outcome.stderr.contains("hides all GPUs from this process"), "{outcome:#?}");
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

/// Without any limit nothing is reported or refused, in a session without limits and outside of one.
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

/// A session's limits apply, whatever a process's own environment says.
#[test]
fn a_process_of_a_limited_session_is_refused_without_a_limit_of_its_own() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut first = stage.limited(&program);
    outcome(first.arg("now").env(MEMORY_LIMIT, first_device("1GiB"))).silent();
    let second = outcome(on_such_a_machine(&stage, program, "half").arg("now"));
    assert!(refused(&second), "{second:#?}");
}

/// Then the limiter does not learn of later libraries. Libraries that are loaded with the program are still patched,
/// and so is the driver, which is loaded at once.
#[test]
fn a_loader_that_cannot_be_watched_is_said() {
    let later = loader("loader", |_| ()).succeeded();
    assert_eq!((later.value("little"), later.value("much")), (0, 2), "{later:#?}");
    assert_eq!(later.complaints().len(), 1, "{later:#?}");
    assert!(
        later.stderr.contains("a driver loaded from another file is NOT limited"),
        "{later:#?}"
    );
    loader("loader", |command| {
        command.env_remove(MEMORY_LIMIT);
    })
    .silent();
    // The driver is not where the limiter looks for it.
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let mut command = on_such_a_machine(&stage, program, "loader");
    command.env_remove("LD_LIBRARY_PATH").env(MEMORY_LIMIT, first_device("1GiB"));
    let elsewhere = outcome(command.arg("path").arg(built("libfake_cuda.so")));
    assert_eq!((elsewhere.code(), elsewhere.complaints().len()), (97, 2), "{elsewhere:#?}");
    assert!(elsewhere.stderr.contains("hides all GPUs from this process"), "{elsewhere:#?}");
    let driver = format!("-L{}", stage.driver().display());
    let program = stage.compile("linked.c", "linked", &[&driver, "-lcuda"]);
    let mut command = on_such_a_machine(&stage, program, "loader");
    let outcome = outcome(command.env(MEMORY_LIMIT, first_device("1GiB"))).succeeded();
    assert_eq!((outcome.value("little"), outcome.value("much")), (0, 2), "{outcome:#?}");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
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

/// A library, a debugger or the program itself restores a function's original instructions.
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
    assert!(
        init.stderr.contains("cuInit: another tool or another copy of Sluice overwrote"),
        "{init:#?}"
    );
    // Calls that still reach Sluice are refused.
    assert_eq!((init.value("init"), init.stdout.contains("little")), (0, false), "{init:#?}");
    let alloc = restored(&["later", "cuMemFree_v2"], "closed");
    assert_eq!((alloc.value("little"), alloc.value("much")), (800, 800), "{alloc:#?}");
    assert_eq!(alloc.complaints().len(), 1, "{alloc:#?}");
}

#[test]
fn a_patch_that_is_undone_is_noticed_within_seconds() {
    let one = restored(&["wait", "cuMemFree_v2"], "closed");
    assert_eq!((one.value("little"), one.value("much")), (800, 800), "{one:#?}");
    // Calls of an unpatched function cannot be refused, but the loss is reported.
    let alloc = restored(&["wait", "cuMemAlloc_v2"], "closed");
    assert_eq!((alloc.value("little"), alloc.value("much")), (0, 0), "{alloc:#?}");
    for outcome in [one, alloc] {
        assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
        assert!(
            outcome.stderr.contains("another tool or another copy of Sluice overwrote"),
            "{outcome:#?}"
        );
        let truth = "calls to it are NOT limited and cannot be refused; other GPU calls of this process fail";
        assert!(outcome.stderr.contains(truth), "{outcome:#?}");
    }
}

#[test]
fn a_patch_that_is_undone_is_noticed_when_a_context_is_made() {
    let outcome = restored(&["context", "cuMemAlloc_v2"], "closed");
    assert_eq!(outcome.value("init"), 0, "{outcome:#?}");
    assert!(!outcome.stdout.contains("little") && outcome.stderr.contains("cuMemAlloc_v2"));
}

/// The entry leads to the hook, but the hook is broken.
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

/// `sluice hooks` lists the verified patches.
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

/// Modifies entries of a library's dynamic section, or reads the words that they point to.
fn change(path: &Path, change: impl Fn(&mut [u8], i64, usize)) {
    let mut file = std::fs::read(path).unwrap();
    let number = |file: &[u8], at: usize, length: usize| {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(&file[at..at + length]);
        usize::from_le_bytes(bytes)
    };
    const PT_DYNAMIC: usize = 2;
    let (heads, count) = (number(&file, 0x20, 8), number(&file, 0x38, 2));
    let mut heads = (0..count).map(|index| heads + 56 * index);
    let dynamic = heads.find(|&head| number(&file, head, 4) == PT_DYNAMIC).unwrap();
    let mut at = number(&file, dynamic + 8, 8);
    loop {
        let tag = number(&file, at, 8) as i64;
        if tag == 0 {
            break;
        }
        change(&mut file, tag, at + 8);
        at += 16;
    }
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, file).unwrap();
}

/// A library's own metadata may be wrong in parts that the loader does not read.
#[test]
fn a_library_that_tells_nonsense_of_itself_harms_nothing() {
    const DT_STRSZ: i64 = 10;
    const DT_SONAME: i64 = 14;
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libstrange.so.1"];
    let library = stage.compile("undo.c", "libstrange.so", &options);
    let text = std::fs::read(&library).unwrap();
    std::fs::remove_file(&library).unwrap();
    std::fs::write(&library, text).unwrap();
    change(&library, |file, tag, at| match tag {
        DT_STRSZ => file[at..at + 8].fill(0xff),
        DT_SONAME => file[at..at + 8].copy_from_slice(&0x1234_5678_9000_u64.to_le_bytes()),
        _ => {}
    });
    for (mut command, much) in [(stage.native(&program), 0), (stage.limited(&program), 2)] {
        command.env(MEMORY_LIMIT, first_device("1GiB"));
        let outcome = outcome(command.arg("then").arg(&library)).silent();
        assert_eq!((outcome.value("loaded"), outcome.value("much")), (1, much), "{outcome:#?}");
    }
}

/// A copy of the driver whose symbols claim another kind.
fn driver_with_symbols_of(stage: &Stage, kind: u8, name: Option<&str>) -> PathBuf {
    let mut file = std::fs::read(built("libfake_cuda.so")).unwrap();
    let number = |file: &[u8], at: usize, length: usize| {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(&file[at..at + length]);
        usize::from_le_bytes(bytes)
    };
    const SHT_DYNSYM: usize = 11;
    let (sections, count) = (number(&file, 0x28, 8), number(&file, 0x3c, 2));
    let section = |index: usize| sections + 64 * index;
    let symbols =
        (0..count).map(section).find(|&at| number(&file, at + 4, 4) == SHT_DYNSYM).unwrap();
    let strings = section(number(&file, symbols + 40, 4));
    let strings = number(&file, strings + 24, 8);
    let (first, size) = (number(&file, symbols + 24, 8), number(&file, symbols + 32, 8));
    for at in (first..first + size).step_by(24) {
        let text = strings + number(&file, at, 4);
        let is = |name: &str| file[text..].starts_with(format!("{name}\0").as_bytes());
        if file[at + 4] & 0xf == 2 && name.is_none_or(is) {
            file[at + 4] = file[at + 4] & 0xf0 | kind;
        }
    }
    let path = stage.folder().join("strange-driver.so");
    std::fs::write(&path, file).unwrap();
    path
}

fn with_driver(kind: u8, name: Option<&str>) -> Outcome {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let driver = driver_with_symbols_of(&stage, kind, name);
    let mut command = stage.limited(&program);
    command.arg("path").arg(driver).env(MEMORY_LIMIT, first_device("1GiB"));
    outcome(&mut command)
}

#[test]
fn functions_without_a_type_are_patched() {
    let outcome = with_driver(0, None).silent();
    assert_eq!((outcome.value("little"), outcome.value("much")), (0, 2), "{outcome:#?}");
}

/// If `cuInit` is not a function, the driver finds no device, and a line reports it.
#[test]
fn a_driver_whose_symbols_are_no_functions_is_said() {
    for name in [Some("cuInit"), None] {
        let outcome = with_driver(1, name);
        assert_eq!(outcome.code(), 97, "{outcome:#?}");
        assert!(outcome.stderr.contains("cuInit: not found among the symbols"), "{outcome:#?}");
        assert!(outcome.stderr.contains("strange-driver.so"), "{outcome:#?}");
    }
}
