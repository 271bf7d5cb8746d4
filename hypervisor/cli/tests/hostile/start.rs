//! Odd circumstances in which `sluice run` starts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Sluice, eventually, outcome, text};

/// `env` with an option, so that what it starts blocks or ignores a signal.
fn with(sluice: &Sluice, option: &str) -> Command {
    let mut command = sluice.command_of("timeout");
    command.args(["-s", "KILL", "20", "env", option]).env("SLUICE_DAEMON", "none");
    command
}

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

#[test]
fn a_blocked_or_ignored_signal_stops_nothing() {
    let sluice = Sluice::new();
    for option in ["--block-signal=CHLD", "--ignore-signal=CHLD", "--block-signal"] {
        for status in [0, 7] {
            let mut command = with(&sluice, option);
            let script = format!("exit {status}");
            let (code, _, stderr) =
                outcome(command.args([SLUICE, "run", "--", "sh", "-c", &script]));
            assert_eq!((code, stderr.as_str()), (status, ""), "{option}");
        }
    }
}

#[test]
fn the_program_blocks_and_ignores_what_it_would_without_sluice() {
    let sluice = Sluice::new();
    let look = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let options = ["CHLD", "TERM", "INT", "HUP", "USR1", "ALRM", "WINCH", "RTMIN"]
        .into_iter()
        .flat_map(|signal| {
            [format!("--block-signal={signal}"), format!("--ignore-signal={signal}")]
        })
        .chain(["--block-signal".to_owned(), "--default-signal".to_owned()]);
    for option in options {
        let plain = outcome(with(&sluice, &option).args(look));
        let under = outcome(with(&sluice, &option).args([SLUICE, "run", "--"]).args(look));
        assert_eq!((plain.0, under.0), (0, 0), "{option}");
        assert_eq!(plain.1, under.1, "{option}");
    }
}

/// It waits for the program, which was started with it blocked as well.
#[test]
fn a_signal_that_sluice_was_started_with_blocked_is_passed_on() {
    let sluice = Sluice::new();
    let mut command = sluice.command_of("env");
    command.args(["--block-signal=TERM", SLUICE, "run", "--daemon", "none", "--", "sleep", "60"]);
    let mut child = command.spawn().unwrap();
    let program = || {
        let pid = first_child(child.id())?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name == "sleep\n").then_some(pid)
    };
    eventually("the program runs", || program().is_some());
    let program = program().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    eventually("the signal waits for the program", || {
        let status = fs::read_to_string(format!("/proc/{program}/status")).unwrap();
        let waiting = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(waiting.trim(), 16).unwrap() == 1 << 14
    });
    kill_process(Pid::from_raw(program).unwrap(), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

fn first_child(pid: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Runs `script` under a `sluice run` that is the first process of its pid namespace.
fn as_first_process(sluice: &Sluice, script: &str) -> Command {
    let mut command = sluice.command_of("unshare");
    command.args([
        "-pf",
        "--mount-proc",
        SLUICE,
        "run",
        "--daemon",
        "none",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command
}

#[test]
fn as_the_first_process_sluice_collects_orphans() {
    let sluice = Sluice::new();
    let script = r#"
        for i in 1 2 3 4 5; do (sleep 0.05 &) ; done
        sleep 0.5
        ps=$(cat /proc/[0-9]*/stat 2>/dev/null)
        echo "$ps" | awk '{ sub(/.*\) /, ""); if ($1 == "Z") zombies++ } END { print "zombies " zombies + 0 }'
        exit 7"#;
    let (code, stdout, stderr) = outcome(&mut as_first_process(&sluice, script));
    assert_eq!((code, stdout.as_str()), (7, "zombies 0\n"), "{stderr}");
}

#[test]
fn as_the_first_process_sluice_passes_signals_on() {
    let sluice = Sluice::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let mut command = as_first_process(&sluice, &script);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let first = first_child(child.id()).unwrap();
        kill_process(Pid::from_raw(first).unwrap(), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

/// Runs `sluice run -- true` where `mounts` was done first.
fn with_mounts(sluice: &Sluice, mounts: &str) -> (i32, String) {
    let mut command = sluice.command_of("unshare");
    command.args(["-m", "sh", "-c", &format!("{mounts} && exec \"$0\" run --daemon none -- true")]);
    let output = command.arg(SLUICE).stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), text(&output.stderr))
}

#[test]
fn without_shared_memory_sessions_are_in_the_next_place() {
    let sluice = Sluice::new();
    let read_only = "mount -t tmpfs -o ro none /dev/shm";
    let made_before = "mount -t tmpfs none /dev/shm && mkdir -m 711 /dev/shm/sluice-root && \
        mount -o remount,ro /dev/shm";
    for mounts in [read_only, made_before, "mount -t tmpfs none /dev"] {
        let (code, stderr) = with_mounts(&sluice, &format!("mount -t tmpfs none /run && {mounts}"));
        assert_eq!(code, 0, "{mounts}: {stderr}");
        assert!(
            stderr.contains("/dev/shm") && stderr.contains("sessions are in"),
            "{mounts}: {stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{mounts}: {stderr}");
    }
}

/// Without `/proc` `sluice` does not know where it is itself, and says so. One that shows each user
/// only its own processes is enough.
#[test]
fn without_proc_the_error_says_what_is_missing() {
    let sluice = Sluice::new();
    let (code, stderr) = with_mounts(&sluice, "mount -t proc -o hidepid=2 none /proc");
    assert_eq!((code, stderr.as_str()), (0, ""));
    let (code, stderr) = with_mounts(&sluice, "mount -t tmpfs none /proc");
    assert_eq!(code, 70, "{stderr}");
    assert!(stderr.contains("cannot find this executable's own path"), "{stderr}");
}

/// A file that grows beyond the limit on file sizes ends its process by a signal. Neither `sluice` nor the program may
/// end by it.
#[test]
fn no_file_is_made_that_may_not_be_as_long() {
    let sluice = Sluice::new();
    let mut command = sluice.command_of("prlimit");
    command.args(["--fsize=0", SLUICE, "run", "--daemon", "none", "--", "true"]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stdout.as_str()), (70, ""), "{stderr}");
    assert!(stderr.contains("File too large"), "{stderr}");
    // Within a session the files are there.
    let mut command = sluice.command_of(SLUICE);
    command.args(["run", "--daemon", "none", "--", "prlimit", "--fsize=0", "true"]);
    assert_eq!(outcome(&mut command).0, 0);
}
