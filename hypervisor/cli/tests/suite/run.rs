//! `sluice run` as a user runs it: what it refuses, what the program gets, what is left behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Sluice, outcome, text};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const FIRST: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";
const SECOND: &str = "GPU-5a1ce000-0000-4000-8000-000000000001";

/// The program's environment, as `env` prints it.
fn variables(sluice: &Sluice, arguments: &[&str]) -> Vec<(String, String)> {
    let output = sluice.run(arguments).args(["--", "env"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn value<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.as_str())
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_option() {
    let sluice = Sluice::new();
    let cases: [(&[&str], &str); 17] = [
        (&["run"], "<CMD>"),
        (&["run", "true", "--mem", "1g"], "put '--' before true"),
        (&["run", "--mem", "much", "--", "true"], "--mem"),
        (&["run", "--mem", "0", "--", "true"], "--mem"),
        (&["run", "--mem=-1", "--", "true"], "--mem"),
        (&["run", "--mem", "8", "--", "true"], "did you mean 8GiB?"),
        (&["run", "--compute=-5", "--", "true"], "--compute"),
        (&["run", "--compute", "101", "--", "true"], "--compute"),
        (&["run", "--policy", "fair", "--", "true"], "--policy"),
        (&["run", "--compute", "5", "--policy", "none", "--", "true"], "--policy none"),
        (&["run", "--policy", "balance", "--", "true"], "--compute"),
        (&["run", "--burst", "50", "--", "true"], "--compute"),
        (&["run", "--compute", "50", "--burst", "40", "--", "true"], "--burst 40%"),
        (&["run", "--mem-real", "1g", "--", "true"], "--mem-real"),
        (&["run", "--mem", "1g", "--mem-real", "2g", "--", "true"], "--mem-real 2GiB"),
        (&["run", "--compute", "5", "--weight", "5", "--", "true"], "--weight"),
        (&["walk"], "walk"),
    ];
    for (arguments, named) in cases {
        let (code, _, stderr) = outcome(sluice.command().args(arguments));
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.contains(named), "{arguments:?}: {stderr}");
    }
}

#[test]
fn more_memory_than_the_device_has_ends_with_2() {
    let sluice = Sluice::new();
    let (code, _, stderr) =
        outcome(sluice.run(&["--fake-gpu", "--mem", "16.5GiB"]).args(["--", "true"]));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--mem") && stderr.contains("has, 16GiB;"), "{stderr}");
    let hosted = ["--fake-gpu", "--mem", "16.5GiB", "--mem-real", "16GiB"];
    assert_eq!(outcome(sluice.run(&hosted).args(["--", "true"])).0, 0);
}

#[test]
fn without_a_driver_limits_end_with_3_and_a_plain_run_works() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return; // There is a driver; nothing to see here.
    }
    let sluice = Sluice::new();
    let (code, _, stderr) = outcome(sluice.run(&["--mem", "1GiB"]).args(["--", "true"]));
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("no NVIDIA driver") && stderr.contains("--fake-gpu"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let (code, _, stderr) = outcome(sluice.run(&[]).args(["--", "true"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn a_missing_part_ends_with_4_and_names_the_file() {
    let sluice = Sluice::new();
    let alone = sluice.folder().join("sluice");
    // Copied by another process. A file that this one has open for writing could be inherited by
    // another test's child, and cannot be executed meanwhile.
    let (code, ..) = outcome(sluice.command_of("cp").arg(env!("CARGO_BIN_EXE_sluice")).arg(&alone));
    assert_eq!(code, 0);
    let mut command = sluice.command_of(&alone);
    let (code, _, stderr) = outcome(command.args(["run", "--", "true"]));
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("libcuda_limiter.so is missing"), "{stderr}");
    let (code, _, stderr) =
        outcome(sluice.run(&[]).args(["--", "true"]).env("SLUICE_LIBRARY", "/nowhere/l.so"));
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("/nowhere/l.so"), "{stderr}");
}

#[test]
fn a_program_that_cannot_run_ends_as_in_a_shell() {
    let sluice = Sluice::new();
    let (code, _, stderr) = outcome(sluice.run(&[]).args(["--", "/nowhere/program"]));
    assert_eq!(code, 127, "{stderr}");
    assert!(stderr.contains("/nowhere/program"), "{stderr}");
    let (code, _, stderr) = outcome(sluice.run(&[]).args(["--", "/etc/passwd"]));
    assert_eq!(code, 126, "{stderr}");
}

#[test]
fn the_exit_status_is_the_programs_and_so_is_the_signal_that_killed_it() {
    let sluice = Sluice::new();
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 1015),
        ("kill -9 $$", 1009),
        ("kill -SEGV $$", 1011),
    ] {
        let (code, _, stderr) = outcome(sluice.run(&[]).args(["--", "sh", "-c", script]));
        assert_eq!((code, stderr.as_str()), (expected, ""), "{script}");
    }
}

#[test]
fn input_and_output_are_the_programs() {
    let sluice = Sluice::new();
    let mut child = sluice
        .run(&[])
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "through");
}

#[test]
fn limits_are_told_per_device() {
    let sluice = Sluice::new();
    let seen = variables(&sluice, &["--fake-gpu", "--mem", "1GiB", "--compute", "12.5%"]);
    assert_eq!(
        value(&seen, "TENSOR_FUSION_CUDA_MEM_LIMIT"),
        Some(format!(r#"{{"{FIRST}":1073741824,"{SECOND}":1073741824}}"#).as_str())
    );
    assert_eq!(
        value(&seen, "TENSOR_FUSION_CUDA_UP_LIMIT"),
        Some(format!(r#"{{"{FIRST}":12.5,"{SECOND}":12.5}}"#).as_str())
    );
    assert_eq!(value(&seen, "SLUICE_POLICY"), Some("fixed"));
    assert_eq!(value(&seen, "CUDA_VISIBLE_DEVICES"), None);
    assert_eq!(value(&seen, "SLUICE_DAEMON"), None);
}

#[test]
fn what_only_a_daemon_can_give_is_told_where_there_is_none() {
    let sluice = Sluice::new();
    for options in [&["--burst", "60"][..], &["--policy", "balance"], &["--priority", "low"]] {
        let mut command = sluice.run(&["--fake-gpu", "--daemon", "none", "--compute", "30"]);
        let (code, stdout, stderr) = outcome(command.args(options).args(["--", "true"]));
        assert_eq!((code, stdout.as_str()), (0, ""));
        assert!(stderr.starts_with("sluice: no daemon"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn chosen_devices_are_the_only_ones_seen_and_limited() {
    let sluice = Sluice::new();
    let seen = variables(&sluice, &["--fake-gpu", "--device", "1", "--mem", "1GiB"]);
    assert_eq!(value(&seen, "CUDA_VISIBLE_DEVICES"), Some(SECOND));
    let memory = value(&seen, "TENSOR_FUSION_CUDA_MEM_LIMIT").unwrap();
    assert!(memory.contains(SECOND) && !memory.contains(FIRST), "{memory}");
}

#[test]
fn the_users_own_variables_pass_unless_an_option_replaces_them() {
    let mut sluice = Sluice::new();
    sluice.set("CUDA_CORE_LIMIT", "20");
    sluice.set("TENSOR_FUSION_CUDA_UP_LIMIT", r#"{"0":40}"#);
    sluice.set("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0":40}"#);
    sluice.set("SLUICE_POLICY", "none");
    let seen = variables(&sluice, &["--fake-gpu", "--mem", "1GiB"]);
    assert_eq!(value(&seen, "CUDA_CORE_LIMIT"), Some("20"));
    assert_eq!(value(&seen, "TENSOR_FUSION_CUDA_UP_LIMIT"), Some(r#"{"0":40}"#));
    assert!(value(&seen, "TENSOR_FUSION_CUDA_MEM_LIMIT").unwrap().contains("1073741824"));
    assert_eq!(value(&seen, "SLUICE_POLICY"), Some("none"));
    let seen = variables(&sluice, &["--fake-gpu", "--compute", "30"]);
    assert_eq!(value(&seen, "SLUICE_POLICY"), Some("fixed"), "a share asked for is enforced");
    sluice.set("SLUICE_SOFT_LIMIT", r#"{"0":50}"#);
    sluice.set("SLUICE_MEM_REAL", r#"{"0":40}"#);
    let seen = variables(&sluice, &["--fake-gpu", "--compute", "30", "--mem", "25%"]);
    assert!(value(&seen, "TENSOR_FUSION_CUDA_MEM_LIMIT").unwrap().contains(r#""25%""#));
    for of_another_limit in ["SLUICE_SOFT_LIMIT", "SLUICE_MEM_REAL"] {
        assert_eq!(value(&seen, of_another_limit), None);
    }
}

#[test]
fn the_limiter_is_preloaded_first_and_the_rest_kept() {
    let mut sluice = Sluice::new();
    // The build may be in a folder that the loader cannot name.
    let [limiter, copy] = ["limiter.so", "other.so"].map(|name| {
        let path = sluice.folder().join(name);
        fs::copy(sluice.built("libcuda_limiter.so", "cuda-limiter"), &path).unwrap();
        path
    });
    sluice.set("SLUICE_LIBRARY", limiter.to_str().unwrap());
    sluice.set("LD_PRELOAD", copy.to_str().unwrap());
    sluice.set("LD_LIBRARY_PATH", "/opt/lib");
    let seen = variables(&sluice, &["--fake-gpu"]);
    // Under the session's own name, then under one that stays; then the rest.
    let session = Path::new(value(&seen, "SLUICE_SESSION_DIR").unwrap());
    let link = session.join("libcuda_limiter.so");
    let expected = [&link, &limiter, &copy].map(|path| path.display().to_string()).join(":");
    assert_eq!(value(&seen, "LD_PRELOAD"), Some(expected.as_str()));
    let libraries = value(&seen, "LD_LIBRARY_PATH").unwrap();
    let (fake, rest) = libraries.split_once(':').unwrap();
    assert!(fake.ends_with("/fake-driver") && rest == "/opt/lib", "{libraries}");
}

#[test]
fn the_session_is_private_and_gone_afterwards() {
    let sluice = Sluice::new();
    let script = r#"echo "$SLUICE_SESSION_DIR"; stat -c %a "$SLUICE_SESSION_DIR"; ls "$SLUICE_SESSION_DIR/fake-driver""#;
    let (code, stdout, stderr) =
        outcome(sluice.run(&["--fake-gpu"]).args(["--", "sh", "-c", script]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<_> = stdout.lines().collect();
    // Root's can be entered by who knows its name: its program may become another user.
    let mode = if rustix::process::geteuid().is_root() { "711" } else { "700" };
    assert_eq!(lines[1..], [mode, "libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi"]);
    assert!(!Path::new(lines[0]).exists());
}

/// A program that waits and does not handle signals.
const PLAINLY: &str = "exec sleep 60";
/// A shell that waits and runs its traps.
const IN_A_SHELL: &str = "while :; do sleep 0.05; done";

/// A `sluice run` in progress. If a test fails, it is ended with its program.
struct Running {
    child: Child,
    session: PathBuf,
}

impl Running {
    /// Starts a program that does `first`, prints its session and waits.
    fn start(sluice: &Sluice, first: &str, how: &str) -> Self {
        let script = format!("{first}; echo \"$SLUICE_SESSION_DIR\"; {how}");
        let mut child = sluice
            .run(&[])
            .args(["--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            // A group whose parent is in another group of the same terminal session. Only there
            // does SIGTSTP stop anything, however the tests themselves were started.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let session = PathBuf::from(line.trim_end());
        assert!(session.is_dir(), "{line}");
        Self { child, session }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// The state letter in `/proc/<pid>/stat`.
    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn signals_reach_the_program_and_the_session_goes() {
    let sluice = Sluice::new();
    for (signal, number) in [
        (Signal::TERM, 15),
        (Signal::INT, 2),
        (Signal::HUP, 1),
        (Signal::QUIT, 3),
        (Signal::USR1, 10),
        (Signal::USR2, 12),
    ] {
        if crate::support::is_ignored(number) {
            continue; // Ignored before the tests started (nohup); then it stays so.
        }
        let mut running = Running::start(&sluice, "ulimit -c 0", PLAINLY);
        running.send(signal);
        let status = running.child.wait().unwrap();
        assert_eq!((status.signal(), status.core_dumped()), (Some(number), false));
        assert!(!running.session.exists(), "signal {number}");
    }
    let mut running = Running::start(&sluice, "trap 'exit 9' TERM", IN_A_SHELL);
    running.send(Signal::TERM);
    assert_eq!(running.exit_code(), Some(9), "the program decides");
}

#[test]
fn what_was_ignored_stays_ignored() {
    let sluice = Sluice::new();
    let sluice_path = env!("CARGO_BIN_EXE_sluice");
    let script = format!(
        "trap '' HUP; exec '{sluice_path}' run -- sh -c 'kill -HUP $PPID; kill -HUP $$; sleep 0.1; exit 5'"
    );
    let (code, _, stderr) = outcome(sluice.command_of("sh").args(["-c", &script]));
    assert_eq!((code, stderr.as_str()), (5, ""));
}

#[test]
fn stopping_and_continuing_goes_along_with_the_program() {
    let sluice = Sluice::new();
    let mut running = Running::start(&sluice, "trap 'exit 9' USR1", IN_A_SHELL);
    running.send(Signal::TSTP);
    crate::support::eventually("sluice stops with its program", || running.state() == 'T');
    running.send(Signal::CONT);
    crate::support::eventually("sluice runs again", || running.state() != 'T');
    running.send(Signal::USR1);
    assert_eq!(running.exit_code(), Some(9), "the program was continued, too");
}

#[test]
fn a_killed_sluice_is_cleaned_up_after_its_program() {
    let sluice = Sluice::new();
    let mut running = Running::start(&sluice, "echo $$ > \"$PIDFILE\"", PLAINLY);
    running.send(Signal::KILL);
    running.exit_code();
    let plain = || assert_eq!(outcome(sluice.run(&[]).args(["--", "true"])).0, 0);
    plain();
    assert!(running.session.is_dir(), "the program still runs under its limits");
    let pid: i32 = fs::read_to_string(sluice.pid_file()).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    plain();
    assert!(running.session.is_dir(), "another program of the session may be about to start");
    crate::support::eventually("the leftover is removed", || {
        crate::support::age(&running.session, std::time::Duration::from_secs(3600));
        plain();
        !running.session.exists()
    });
}

#[test]
fn an_absent_or_mute_daemon_is_told_once_and_the_program_runs() {
    let sluice = Sluice::new();
    let absent = sluice.folder().join("absent.sock");
    let mute = sluice.folder().join("mute.sock");
    let _listener = UnixListener::bind(&mute).unwrap();
    for socket in [absent, mute] {
        let (code, stdout, stderr) =
            outcome(sluice.run(&["--daemon", socket.to_str().unwrap()]).args([
                "--",
                "sh",
                "-c",
                "echo \"[$SLUICE_DAEMON]\"",
            ]));
        assert_eq!((code, stdout.as_str()), (0, "[]\n"));
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.contains("--daemon") && stderr.contains(socket.to_str().unwrap()),
            "{stderr}"
        );
        assert!(stderr.contains("continuing with this session's own account"), "{stderr}");
    }
}

/// A static program that ends when its input does.
fn static_program(sluice: &Sluice) -> Option<PathBuf> {
    let (source, program) = (sluice.folder().join("static.c"), sluice.folder().join("static"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { return getchar() == EOF ? 5 : 6; }\n")
        .unwrap();
    let mut compiler = Command::new("cc");
    let made = compiler.arg("-static").arg("-o").arg(&program).arg(&source).output().unwrap();
    if !made.status.success() {
        println!("SKIPPED: there is no C library to link statically: {}", text(&made.stderr));
        return None;
    }
    Some(program)
}

/// It runs, and somebody is told that no limit holds for it.
#[test]
fn a_program_that_nothing_is_preloaded_into_is_named() {
    let sluice = Sluice::new();
    let Some(program) = static_program(&sluice) else { return };
    let said = "is linked statically, so no library can be preloaded into it: no limit can be enforced on it";
    let script = sluice.folder().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for started in [&program, &script] {
        let mut run = sluice.run(&["--fake-gpu", "--mem", "1GiB", "--"]);
        let (code, stdout, stderr) = outcome(run.arg(started).stdin(Stdio::null()));
        assert_eq!((code, stdout.as_str()), (5, ""), "{stderr}");
        assert_eq!(stderr, format!("sluice: {} {said}\n", program.display()));
    }
    let mut run = sluice.run(&["--fake-gpu", "--mem", "1GiB", "--", "cat"]);
    assert_eq!(outcome(run.stdin(Stdio::null())), (0, String::new(), String::new()));
    // While it runs.
    let mut child = Command::new(&program).stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (_, stdout, stderr) = outcome(sluice.command().args(["explain", &pid]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stdout.contains(&format!("process {pid} {said}")), "{stdout}{stderr}");
}

#[test]
fn arguments_arrive_as_given() {
    let sluice = Sluice::new();
    let given = ["--", "--mem", "a \"strange\" one", "", "$HOME"];
    let script = r#"printf '[%s]' "$@""#;
    let (code, stdout, _) =
        outcome(sluice.run(&[]).args(["--", "sh", "-c", script, "sh"]).args(given));
    assert_eq!((code, stdout.as_str()), (0, r#"[--][--mem][a "strange" one][][$HOME]"#));
}
