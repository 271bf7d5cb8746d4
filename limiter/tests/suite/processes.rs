//! Limits apply in every process of a session, however it was started. Programs that ignore `LD_PRELOAD` run as they
//! would without.

use crate::common::{
    COMPUTE_LIMIT, CONTEXT, MEMORY_LIMIT, MIB, Outcome, Stage, built, eventually, first_device,
    holds, outcome, skipped, start,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The exit status of `start` if the system does not allow the way to start.
const NOT_ALLOWED: i32 = 77;
const NOBODY: u32 = 65534;

/// A program that `start` starts in this way, in a session of 1 GiB.
fn started(stage: &Stage, way: &str, program: &Path, arguments: &[&str]) -> Command {
    let start = stage.compile("start.c", "start", &[]);
    let mut command = stage.limited(start);
    command.arg(way).arg(program).args(arguments).env(MEMORY_LIMIT, first_device("1GiB"));
    command
}

fn is_root() -> bool {
    let own = rustix::process::geteuid().is_root();
    if !own {
        skipped("only root can do this");
    }
    own
}

#[track_caller]
fn holds_when_started(way: &str) {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let outcome = outcome(&mut started(&stage, way, &program, &["now"]));
    if outcome.code() == NOT_ALLOWED {
        return skipped(&outcome.stderr);
    }
    holds(outcome);
}

#[test]
fn vfork_and_exec() {
    holds_when_started("vfork");
}

#[test]
fn posix_spawn() {
    holds_when_started("posix_spawn");
}

/// Two forks and a new kernel session, as workers of Ray and of other daemons have.
#[test]
fn a_process_that_left_its_parents() {
    holds_when_started("daemon");
}

#[test]
fn a_sandbox_that_refuses_system_calls() {
    holds_when_started("sandbox");
}

/// The kernel's own rule that no mapping can become executable.
#[test]
fn mdwe() {
    holds_when_started("mdwe");
}

/// A process in its own time namespace, as `unshare --time` and CRIU make, does not disturb the session's account and
/// memory.
#[test]
fn clocks_that_differ_keep_nobody_waiting() {
    let allowed = Command::new("unshare").args(["--time", "--monotonic=1", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return skipped("time namespaces are not allowed here");
    }
    for ahead in [100_000, -1] {
        let stage = Stage::new();
        let program = stage.compile("clock.c", "clock", &[]);
        let mut other = stage.limited("unshare");
        let clock = |name| format!("--{name}={ahead}");
        other.args(["--time", &clock("monotonic"), &clock("boottime"), "--"]).arg(&program);
        let limits = |command: &mut Command| {
            command.env(COMPUTE_LIMIT, first_device("25")).env(MEMORY_LIMIT, first_device("2GiB"));
        };
        limits(other.arg("hold"));
        let held = start(&mut other);
        eventually("its first kernels", || held.printed().contains("used="));
        let mut own = stage.limited(&program);
        limits(&mut own);
        let own = outcome(&mut own).silent();
        // The first context and its memory are still charged.
        let expected = (2 * CONTEXT + 2 * 64 * MIB) / MIB;
        assert_eq!(own.value("used"), expected, "{own:#?}");
        held.kill();
        held.end();
    }
}

#[test]
fn a_root_that_cannot_be_written_to() {
    holds_when_started("read-only");
}

/// The starter, and so `sluice run`, has write access only where sessions are.
#[test]
fn sluice_run_on_a_root_that_cannot_be_written_to() {
    let stage = Stage::new();
    let program = stage.compile("loader.c", "loader", &[]);
    let run = stage.run(&["--device", "0", "--mem", "1GiB"]);
    let mut command = Command::new(stage.compile("start.c", "start", &[]));
    command.arg("read-only").arg(run.get_program()).args(run.get_args()).arg(program).arg("now");
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let outcome = outcome(&mut command);
    if outcome.code() == NOT_ALLOWED {
        return skipped(&outcome.stderr);
    }
    holds(outcome);
}

/// The ranks of an mpirun or torchrun share the session's memory, to the last chunk.
#[test]
fn ranks_of_a_launcher_share_one_limit() {
    const RANKS: u64 = 3;
    const CHUNK: u64 = 16;
    let limit = 2400;
    let stage = Stage::new();
    let program = stage.compile("ranks.c", "ranks", &[]);
    let mut command = stage.limited(program);
    command.arg(RANKS.to_string()).env(MEMORY_LIMIT, first_device(limit * MIB));
    let outcome = outcome(&mut command).silent();
    assert_eq!(outcome.value("failed"), 0, "{outcome:#?}");
    let all = outcome.value("taken") + RANKS * CONTEXT / MIB;
    assert!(all <= limit && all + CHUNK > limit, "{outcome:#?}");
}

#[test]
fn workers_of_pythons_multiprocessing() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("python3 is not here");
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/workers.py");
    for (method, uses, workers) in [
        ("spawn", "gpu", "worker:0/2 worker:0/2"),
        ("forkserver", "gpu", "worker:0/2 worker:0/2"),
        ("forkserver", "items", "item:0 item:1"),
        ("fork", "items", "item:0 item:1"),
    ] {
        let stage = Stage::new();
        let mut command = stage.limited("python3");
        command.arg(&program).args([method, uses]).env(MEMORY_LIMIT, first_device("2560MiB"));
        let outcome = outcome(&mut command).silent();
        let expected = format!("first:0/2 {workers} ends:0,0");
        assert_eq!(outcome.stdout.trim(), expected, "{method}: {outcome:#?}");
    }
}

/// A copy of a program that all users can reach.
fn for_everybody(stage: &Stage, program: &Path) -> PathBuf {
    let copy = stage.folder().join("copy");
    let _ = fs::remove_file(&copy);
    // Copied by another process: a file that this process has open for writing could not be executed.
    assert!(Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
    fs::set_permissions(stage.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    copy
}

/// Ways in which a program gets more rights than its starter.
#[derive(Clone, Copy, Debug)]
enum Rights {
    User,
    Group,
    Capability,
}

impl Rights {
    const ALL: [Self; 3] = [Self::User, Self::Group, Self::Capability];

    fn give(self, program: &Path) {
        match self {
            Self::User | Self::Group => {
                chown(program, Some(NOBODY), Some(NOBODY)).unwrap();
                let bit = if matches!(self, Self::User) { 0o4000 } else { 0o2000 };
                fs::set_permissions(program, PermissionsExt::from_mode(0o755 | bit)).unwrap();
            }
            Self::Capability => {
                // As in linux/capability.h: revision 2 and effective; CAP_NET_RAW.
                let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
                let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(program, "security.capability", &value, flags).unwrap();
            }
        }
    }

    /// Root has all capabilities already, so another user starts the program.
    fn user(self) -> &'static str {
        if matches!(self, Self::Capability) { "user" } else { "vfork" }
    }
}

/// The loader preloads nothing there.
#[test]
fn programs_with_more_rights_than_their_starter_are_left_alone() {
    if !is_root() {
        return;
    }
    for rights in Rights::ALL {
        let stage = Stage::new();
        let idle = for_everybody(&stage, &stage.compile("idle.c", "idle", &[]));
        let plain = outcome(&mut started(&stage, rights.user(), &idle, &[]));
        rights.give(&idle);
        let with = outcome(&mut started(&stage, rights.user(), &idle, &[])).silent();
        if with.value("secure") != 1 {
            skipped("/dev/shm gives no rights to programs");
            continue;
        }
        assert_eq!(with.value("preloaded"), 0, "{rights:?}: {with:#?}");
        assert_eq!(with.value("threads"), 1, "{rights:?}: {with:#?}");
        // Without extra rights the same program has the library, which the other user cannot reach.
        if !matches!(rights, Rights::Capability) {
            assert_eq!(plain.value("preloaded"), 1, "{plain:#?}");
        }
    }
}

/// `/etc/ld.so.preload` applies to such programs too; the library itself leaves them alone.
#[test]
fn a_library_that_is_preloaded_into_a_program_with_more_rights_does_nothing() {
    if !is_root() {
        return;
    }
    let stage = Stage::new();
    let driver = built("libfake_cuda.so");
    let folder = stage.folder().display();
    let line = format!(
        "mkdir {folder}/etc && cp /etc/passwd {folder}/etc && mount --bind {folder}/etc /etc &&
         cp -L {} {folder}/limiter.so && cp {} {folder}/driver.so && chmod 755 {folder}/*.so &&
         echo {folder}/limiter.so > /etc/ld.so.preload && exec \"$0\" path {folder}/driver.so",
        stage.limiter().display(),
        driver.display(),
    );
    let run = |program: &Path| {
        let mut command = stage.native("unshare");
        command.env("SLUICE_SESSION_DIR", stage.session("session")).env_remove("LD_LIBRARY_PATH");
        command.args(["--mount", "sh", "-c", &line]).arg(program);
        outcome(command.env(MEMORY_LIMIT, first_device("1GiB")))
    };
    let program = for_everybody(&stage, &stage.compile("loader.c", "loader", &[]));
    let plain = run(&program);
    if plain.stderr.contains("unshare") || plain.stderr.contains("mount") {
        return skipped(&plain.stderr);
    }
    // NVML is not beside this driver.
    assert_eq!((plain.value("little"), plain.value("much")), (0, 2), "{plain:#?}");
    assert_eq!(plain.complaints().len(), 1, "{plain:#?}");
    assert!(plain.stderr.contains("libnvidia-ml.so.1 is missing"), "{plain:#?}");
    fs::remove_dir_all(stage.folder().join("etc")).unwrap();
    Rights::Group.give(&program);
    let with = run(&program).silent();
    assert_eq!((with.value("little"), with.value("much")), (0, 0), "{with:#?}");
}

#[test]
fn a_static_program_runs_as_without() {
    let stage = Stage::new();
    let Some(program) = stage.compile_here("idle.c", "static", "-static") else {
        return skipped("there is no C library to link statically");
    };
    let plain = outcome(&mut stage.native(&program)).silent();
    let limited: Outcome =
        outcome(stage.limited(&program).env(MEMORY_LIMIT, first_device("1GiB"))).silent();
    assert_eq!(limited.stdout, plain.stdout);
    assert_eq!(limited.value("preloaded"), 0);
}
