//! NVML's process lists show the session's processes and no others.

use crate::common::{
    COMPUTE_LIMIT, CONTEXT, MEMORY_LIMIT, MIB, Outcome, Running, SESSION_DIR, Stage, UUIDS,
    eventually, first_device, outcome, start,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The lists that have entries on this device.
const FULL: [&str; 4] = [
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "details",
];
const EMPTY: [&str; 3] = [
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
];

struct Lists {
    stage: Stage,
    program: PathBuf,
}

impl Lists {
    fn new() -> Self {
        let stage = Stage::new();
        let program = stage.compile("lists.c", "lists", &[]);
        Self { stage, program }
    }

    fn in_session(&self, session: &str) -> Command {
        let mut command = self.stage.limited(&self.program);
        command
            .env(SESSION_DIR, self.stage.session(session))
            .env(MEMORY_LIMIT, first_device("2GiB"));
        command
    }

    /// Starts a process, and waits until it holds its memory.
    #[track_caller]
    fn hold(&self, command: &mut Command, arguments: &[&str]) -> Holder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let path = self.stage.folder().join(format!("holder{number}"));
        let script = format!("exec \"$0\" \"$@\" > {}", path.display());
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(command.get_program()).args(arguments);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let running = start(&mut shell);
        let said = || std::fs::read_to_string(&path).unwrap_or_default();
        eventually("the holder is ready", || said().ends_with('\n'));
        let pid = said().trim().strip_prefix("pid=").unwrap().parse().unwrap();
        Holder { running: Some(running), pid }
    }
}

struct Holder {
    running: Option<Running>,
    pid: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
            let _ = running.end();
        }
    }
}

/// The entries of a list, sorted: process and figure.
#[track_caller]
fn entries(outcome: &Outcome, list: &str) -> Vec<(u64, u64)> {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(&format!("{list}:")));
    let pair = |word: &str| {
        let (pid, figure) = word.split_once('/').unwrap();
        (pid.parse().unwrap(), figure.parse().unwrap())
    };
    let line = line.unwrap_or_else(|| panic!("no {list}: {outcome:#?}"));
    let mut entries: Vec<_> = line.split_whitespace().map(pair).collect();
    entries.sort_unstable();
    entries
}

fn sorted(mut entries: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    entries.sort_unstable();
    entries
}

#[track_caller]
fn shows(command: &mut Command, expected: Vec<(u64, u64)>) {
    let outcome = outcome(command.arg("show")).silent();
    let expected = sorted(expected);
    for list in FULL {
        assert_eq!(entries(&outcome, list), expected, "{list}: {outcome:#?}");
    }
    for list in EMPTY {
        assert_eq!(entries(&outcome, list), [], "{list}: {outcome:#?}");
    }
}

fn used(mib: u64) -> u64 {
    CONTEXT + mib * MIB
}

#[test]
fn a_session_sees_its_own_processes() {
    let lists = Lists::new();
    let first = lists.hold(&mut lists.in_session("one"), &["hold", "10"]);
    let second = lists.hold(&mut lists.in_session("one"), &["hold", "20"]);
    let other = lists.hold(&mut lists.in_session("two"), &["hold", "30"]);
    let free = lists.hold(&mut lists.stage.native(&lists.program), &["hold", "40"]);
    shows(&mut lists.in_session("one"), vec![(first.pid, used(10)), (second.pid, used(20))]);
    shows(&mut lists.in_session("two"), vec![(other.pid, used(30))]);
    shows(&mut lists.in_session("three"), vec![]);
    let all = [(&first, 10), (&second, 20), (&other, 30), (&free, 40)];
    let everybody = all.iter().map(|(holder, mib)| (holder.pid, used(*mib))).collect();
    shows(&mut lists.stage.native(&lists.program), everybody);
    // A dead process is gone from the session and from the device.
    drop(second);
    shows(&mut lists.in_session("one"), vec![(first.pid, used(10))]);
}

#[test]
fn a_session_that_is_limited_in_time_only_sees_its_own_processes_too() {
    let lists = Lists::new();
    let in_time = |session: &str| {
        let mut command = lists.in_session(session);
        command.env_remove(MEMORY_LIMIT).env(COMPUTE_LIMIT, first_device(50));
        command
    };
    if !is_host_namespace() {
        return crate::common::skipped("this is in a pid namespace of its own");
    }
    let own = lists.hold(&mut in_time("one"), &["hold", "10"]);
    let _other = lists.hold(&mut in_time("two"), &["hold", "10"]);
    shows(&mut in_time("one"), vec![(own.pid, used(10))]);
}

/// In other namespaces process ids are learnt when the contexts are measured.
fn is_host_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self/ns/pid")).unwrap().ino() == 0xEFFF_FFFC
}

/// As in a container: NVML has the host's ids and may not report a process's memory.
#[test]
fn processes_are_known_by_ids_of_another_namespace() {
    const ELSEWHERE: u64 = 1_000_000;
    let lists = Lists::new();
    let contained = |session: &str| {
        let mut command = lists.in_session(session);
        command.env("SLUICE_FAKE_PID_OFFSET", ELSEWHERE.to_string());
        command
    };
    let first = lists.hold(&mut contained("one"), &["hold", "10"]);
    let second = lists.hold(&mut contained("one"), &["hold", "20"]);
    let _other = lists.hold(&mut contained("two"), &["hold", "30"]);
    let expected = || vec![(first.pid + ELSEWHERE, used(10)), (second.pid + ELSEWHERE, used(20))];
    shows(&mut contained("one"), expected());
    let mut without_figures = contained("one");
    shows(without_figures.env("SLUICE_FAKE_PROCESS_MEMORY", "0"), expected());
}

#[test]
fn utilisation_is_that_of_the_session() {
    let lists = Lists::new();
    let own = lists.hold(&mut lists.in_session("one"), &["busy"]);
    let other = lists.hold(&mut lists.in_session("two"), &["busy"]);
    for (session, pid) in [("one", own.pid), ("two", other.pid)] {
        eventually("samples", || {
            let outcome = outcome(lists.in_session(session).arg("show")).silent();
            let (samples, uses) = (entries(&outcome, "utilization"), entries(&outcome, "uses"));
            for (seen, percent) in samples.iter().chain(&uses) {
                assert_eq!(*seen, pid, "{outcome:#?}");
                assert!((1..=100).contains(percent), "{outcome:#?}");
            }
            !samples.is_empty() && !uses.is_empty()
        });
    }
}

/// The codes of `nvml.h`: the limiter does not change the results of wrong calls.
#[test]
fn wrong_and_short_calls_are_answered_as_the_driver_answers_them() {
    let lists = Lists::new();
    let _own = lists.hold(&mut lists.in_session("one"), &["hold", "10"]);
    let plain = outcome(lists.stage.native(&lists.program).arg("calls")).silent();
    let limited = outcome(lists.in_session("one").arg("calls")).silent();
    assert_eq!(plain.stdout, limited.stdout);
    for (name, value) in [
        ("ask", 7),
        ("asked", 1),
        ("short", 7),
        ("shorted", 1),
        ("null_count", 2),
        ("null_list", 2),
        ("no_device", 2),
        ("details", 7),
        ("detailed", 1),
        ("details_version", 25),
        ("details_mode", 2),
        ("null_details", 2),
        ("null_memory", 2),
        ("null_memory_v2", 2),
        ("memory_version", 25),
        ("memory_device", 2),
    ] {
        assert_eq!(limited.value(name), value, "{name}");
    }
    // Two processes are on the device; one belongs to the session.
    let _other = lists.hold(&mut lists.in_session("two"), &["hold", "10"]);
    let limited = outcome(lists.in_session("one").arg("calls")).silent();
    assert_eq!((limited.value("asked"), limited.value("shorted")), (1, 1));
}

/// A stand-in for NVIDIA's kernel module, for private functions.
struct Kernel<'a> {
    lists: &'a Lists,
    library: PathBuf,
}

impl<'a> Kernel<'a> {
    fn new(lists: &'a Lists) -> Self {
        let library = lists.stage.compile("kernel.c", "kernel.so", &["-shared", "-fPIC"]);
        Self { lists, library }
    }

    /// Calls a private function for the processes on a device. The kernel reports `pids` for each device.
    fn asked(&self, mut command: Command, device: u32, pids: &[u64]) -> Outcome {
        let pids: Vec<String> = pids.iter().map(u64::to_string).collect();
        let pids = pids.join(" ");
        let digits = UUIDS.map(|uuid| uuid.trim_start_matches("GPU-").replace('-', ""));
        let preloaded = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        let limiter = preloaded.and_then(|(_, value)| value).map(|path| path.to_owned());
        let mut preload = limiter.map_or_else(Default::default, |mut limiter| {
            limiter.push(":");
            limiter
        });
        preload.push(&self.library);
        command.env("LD_PRELOAD", preload).env("KERNEL_PIDS", format!("{pids};{pids}"));
        if !command.get_envs().any(|(name, _)| name == "KERNEL_UUIDS") {
            command.env("KERNEL_UUIDS", digits.join(";"));
        }
        outcome(command.args(["private", &device.to_string()]))
    }

    /// The processes that it lists: the same in both rounds, and with the kernel's `errno`.
    #[track_caller]
    fn shows(&self, command: Command, device: u32, pids: &[u64]) -> Vec<u64> {
        let outcome = self.asked(command, device, pids).silent();
        assert_eq!((outcome.value("private"), outcome.value("errno")), (0, 77), "{outcome:#?}");
        let listed = |round| {
            let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(round)).unwrap();
            line.split_whitespace()
                .map(|word| word.trim_end_matches("/0").parse().unwrap())
                .collect()
        };
        let first: Vec<u64> = listed("round0:");
        assert_eq!(first, listed("round1:"), "{outcome:#?}");
        first
    }

    fn in_session(&self, session: &str) -> Command {
        self.lists.in_session(session)
    }
}

/// As `nvidia-smi` does: by a private function, which asks the kernel.
#[test]
fn private_functions_list_the_session_too() {
    let lists = Lists::new();
    let kernel = Kernel::new(&lists);
    let first = lists.hold(&mut lists.in_session("one"), &["hold", "10"]);
    let other = lists.hold(&mut lists.in_session("two"), &["hold", "10"]);
    let second = lists.hold(&mut lists.in_session("one"), &["hold", "10"]);
    let free = lists.hold(&mut lists.stage.native(&lists.program), &["hold", "10"]);
    let all = [second.pid, other.pid, first.pid, free.pid];
    let native = || lists.stage.native(&lists.program);
    assert_eq!(kernel.shows(native(), 0, &all), all);
    assert_eq!(kernel.shows(kernel.in_session("one"), 0, &all), [second.pid, first.pid]);
    assert_eq!(kernel.shows(kernel.in_session("two"), 0, &all), [other.pid]);
    assert!(kernel.shows(kernel.in_session("three"), 0, &all).is_empty());
    // The other device has no limit.
    assert_eq!(kernel.shows(kernel.in_session("one"), 1, &all), all);
    // Without any limit.
    let mut unlimited = kernel.in_session("four");
    unlimited.env_remove(MEMORY_LIMIT);
    assert_eq!(kernel.shows(unlimited, 0, &all), all);
    // One question for the device with each list.
    let outcome = kernel.asked(kernel.in_session("one"), 0, &all).silent();
    assert_eq!((outcome.value("lists"), outcome.value("devices")), (2, 2), "{outcome:#?}");
    drop(second);
    let rest = [other.pid, first.pid, free.pid];
    assert_eq!(kernel.shows(kernel.in_session("one"), 0, &rest), [first.pid]);
}

/// As in a container: the kernel has the host's ids, as NVML has.
#[test]
fn private_functions_have_ids_of_another_namespace() {
    const ELSEWHERE: u64 = 1_000_000;
    let lists = Lists::new();
    let kernel = Kernel::new(&lists);
    let contained = |session: &str| {
        let mut command = lists.in_session(session);
        command.env("SLUICE_FAKE_PID_OFFSET", ELSEWHERE.to_string());
        command
    };
    let own = lists.hold(&mut contained("one"), &["hold", "10"]);
    let other = lists.hold(&mut contained("two"), &["hold", "10"]);
    let all = [other.pid + ELSEWHERE, own.pid + ELSEWHERE, own.pid];
    assert_eq!(kernel.shows(contained("one"), 0, &all), [own.pid + ELSEWHERE]);
}

/// If the kernel does not tell the device, the list is unchanged. If limits cannot be read, there is no list.
#[test]
fn private_lists_of_unknown_devices_stay_and_unreadable_limits_refuse() {
    const NO_PERMISSION: u64 = 4;
    let lists = Lists::new();
    let kernel = Kernel::new(&lists);
    let mut untold = lists.in_session("one");
    untold.env("KERNEL_UUIDS", "-;-");
    assert_eq!(kernel.shows(untold, 0, &[7, 8]), [7, 8]);
    let mut unreadable = lists.in_session("one");
    unreadable.env(MEMORY_LIMIT, "{");
    let outcome = kernel.asked(unreadable, 0, &[7, 8]);
    assert_eq!(outcome.value("private"), NO_PERMISSION, "{outcome:#?}");
    assert!(!outcome.stdout.contains("7/0"), "{outcome:#?}");
}
