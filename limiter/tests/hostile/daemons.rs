//! Daemons that lie, that belong to another user, and that come and go.

use crate::common::{
    COMPUTE_LIMIT, Outcome, SESSION_DIR, Stage, UUIDS, built, eventually, first_device, outcome,
    start,
};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DAEMON: &str = "SLUICE_DAEMON";

/// A daemon that accepts every registration, and answers every request with the JSON text `lease`.
fn liar(stage: &Stage, lease: &'static str) -> PathBuf {
    let path = stage.folder().join("liar.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap(), lease));
        }
    });
    path
}

fn answer(mut stream: UnixStream, lease: &str) {
    let mut buffer = [0; 16_384];
    // The client sends a request in one write.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let call = String::from_utf8_lossy(&buffer[..count]);
        let body = if call.starts_with("POST /v1/register") {
            r#"{"worker":7}"#.to_owned()
        } else {
            format!(r#"{{"lease":{lease}}}"#)
        };
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
    }
}

/// A program of a session that gets its leases from `socket`.
fn limited(stage: &Stage, session: &str, percent: u32, socket: &Path) -> Command {
    let mut command = stage.limited(built("tenant"));
    command
        .env(SESSION_DIR, stage.session(session))
        .env(COMPUTE_LIMIT, first_device(percent))
        .env(DAEMON, socket);
    command
}

fn dense(command: &mut Command, seconds: &str) -> Outcome {
    let options = ["dense", "--kernel-us", "2000", "--seconds", seconds, "--progress"];
    outcome(command.args(options))
}

/// A daemon for the node that another user runs; `None`: this test cannot become another user.
fn daemon_of_another(stage: &Stage) -> Option<(crate::common::Running, PathBuf)> {
    const ANOTHER: u32 = 4_242;
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("only root can start a daemon as another user");
        return None;
    }
    let folder = stage.folder().join("another");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(ANOTHER), Some(ANOTHER)).unwrap();
    std::fs::set_permissions(stage.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    // Other users may not be able to reach the build folder.
    let program = folder.join("hypervisor");
    std::fs::copy(built("hypervisor"), &program).unwrap();
    let socket = folder.join("daemon.sock");
    let mut command = stage.native(&program);
    command.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
    let running = start(command.uid(ANOTHER).gid(ANOTHER).stdout(Stdio::null()));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    Some((running, socket))
}

#[test]
fn another_user_s_daemon_counts_as_absent() {
    let stage = Stage::new();
    let Some((daemon, socket)) = daemon_of_another(&stage) else { return };
    let outcome = dense(&mut limited(&stage, "one", 50, &socket), "0.3").succeeded();
    let complaints = outcome.complaints();
    assert_eq!(complaints.len(), 1, "{outcome:#?}");
    let line =
        format!("sluice: daemon at unix:{} is not used: user 4242 runs it", socket.display());
    let line = line.replacen(" is not", &format!(": unix:{} is not", socket.display()), 1);
    assert!(complaints[0].starts_with(&line), "{outcome:#?}");
    assert!(complaints[0].contains("own account"), "{outcome:#?}");
    // `sluice run` reports it before the program runs, or does not run it.
    let run = |option: bool| {
        let mut command = stage.native(built("sluice"));
        command.args(["run", "--fake-gpu", "--compute", "50"]);
        if option {
            command.arg("--daemon").arg(&socket);
        } else {
            command.env(DAEMON, &socket);
        }
        crate::common::outcome(command.args(["--", "echo", "ran"]))
    };
    let refused = run(true);
    assert_eq!((refused.code(), &*refused.stdout), (2, ""), "{refused:#?}");
    assert!(refused.stderr.contains("user 4242 runs it; expected root or"), "{refused:#?}");
    let warned = run(false).succeeded();
    assert_eq!(warned.stdout, "ran\n");
    assert!(warned.stderr.contains("ignored, because user 4242 runs it"), "{warned:#?}");
    daemon.kill();
    let _ = daemon.end();
}

/// All lines of the limiter begin with its name, even those that a log level enables.
#[test]
fn every_line_names_the_program() {
    let stage = Stage::new();
    let socket = liar(&stage, r#"{"id":1,"length_us":20000}"#);
    let mut command = limited(&stage, "one", 50, &socket);
    let outcome = dense(command.env("SLUICE_LOG", "trace"), "0.3").succeeded();
    assert!(outcome.complaints().len() > 5, "{outcome:#?}");
    for line in outcome.complaints() {
        assert!(line.starts_with("sluice: "), "{line:?}");
    }
    assert!(outcome.stderr.contains(UUIDS[0]), "{outcome:#?}");
}

mod timed {
    use super::*;
    use std::time::Duration;

    fn native_rate(stage: &Stage) -> f64 {
        let options = ["dense", "--kernel-us", "2000", "--seconds", "1"];
        outcome(stage.native(built("tenant")).args(options)).silent().rate()
    }

    /// Invalid answers instead of a lease. None of them harms the program.
    #[test]
    fn leases_that_are_none_harm_nobody() {
        for lease in [
            r#"{"id":1,"length_us":1e400}"#,
            r#"{"id":1,"length_us":NaN}"#,
            r#"{"id":1,"length_us":-5}"#,
            r#"{"id":1,"length_us":18446744073709551616}"#,
            r#"{"id":-1,"length_us":5}"#,
            r#"{"id":1}"#,
            r#"[[[[[[[[[[[[[[[[[[[[[[[[[[[["#,
            r#""lease""#,
        ] {
            let stage = Stage::new();
            let socket = liar(&stage, lease);
            let outcome = dense(&mut limited(&stage, "one", 50, &socket), "0.8").succeeded();
            assert_eq!(outcome.complaints().len(), 1, "{lease}: {outcome:#?}");
            assert!(outcome.stderr.contains("own account"), "{lease}: {outcome:#?}");
        }
        for lease in [r#"{"id":0,"length_us":0}"#, r#"{"id":18446744073709551615,"length_us":1}"#] {
            let stage = Stage::new();
            let socket = liar(&stage, lease);
            dense(&mut limited(&stage, "one", 50, &socket), "0.3").succeeded();
        }
    }

    /// The most that the session may have by its page: 1.25 times its share plus two points.
    fn most(share: f64) -> f64 {
        share * 1.25 + 2.0
    }

    /// Runs under a daemon that grants a day. Returns the percentage of the device that the program got.
    fn gained(lease: &'static str, mut command: impl FnMut(&Stage, &Path) -> Command) -> f64 {
        let stage = Stage::new();
        let native = native_rate(&stage);
        let socket = liar(&stage, lease);
        let outcome = dense(&mut command(&stage, &socket), "8").succeeded();
        let gained = outcome.rate() / native * 100.0;
        println!("{lease}: {gained:.1} %");
        assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
        assert!(outcome.stderr.contains("more than this session's limit allows"), "{outcome:#?}");
        gained
    }

    const A_DAY: &str = r#"{"id":1,"length_us":100000000000}"#;

    #[test]
    fn a_lease_of_a_day_is_believed_up_to_the_slack() {
        for (share, lease) in [
            (50, A_DAY),
            (10, A_DAY),
            (50, r#"{"id":1,"length_us":18446744073709551615,"shared":true}"#),
            (50, r#"{"id":1,"length_us":30000,"shared":true,"overlaps":true}"#),
        ] {
            let gained = gained(lease, |stage, socket| limited(stage, "one", share, socket));
            let share = f64::from(share);
            // Plus savings: half a second of its share, within 8 s.
            assert!(gained < most(share) * 8.5 / 8.0 + 1.0, "{share}: {gained}");
            assert!(gained > share - 7.0, "{share}: {gained}");
        }
    }

    #[test]
    fn a_ceiling_is_believed_up_to_the_slack() {
        let gained = gained(A_DAY, |stage, socket| {
            let mut command = stage.native(built("sluice"));
            command.args(["run", "--fake-gpu", "--compute", "10", "--burst", "40", "--daemon"]);
            command.arg(socket).arg("--").arg(built("tenant"));
            command
        });
        assert!(gained < most(40.0) * 8.5 / 8.0 + 1.0, "{gained}");
    }

    /// A genuine daemon's sessions trust it whatever they do beside each other: nothing is reported.
    #[test]
    fn a_true_daemon_is_believed() {
        let stage = Stage::new();
        let socket = stage.folder().join("daemon.sock");
        let mut daemon = stage.native(built("hypervisor"));
        daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
        let daemon = start(daemon.stdout(Stdio::null()));
        eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
        let native = native_rate(&stage);
        let programs: [(&str, u32, &[&str]); 4] = [
            ("dense", 40, &["--kernel-us", "2000"]),
            ("short", 30, &["--kernel-us", "100"]),
            ("sparse", 20, &["--kernel-us", "1000", "--pause-us", "9000"]),
            ("long", 10, &["--kernel-us", "60000"]),
        ];
        let running = programs.map(|(name, share, options)| {
            let mut command = limited(&stage, name, share, &socket);
            let running =
                start(command.args(["dense", "--seconds", "8", "--progress"]).args(options));
            (name, share, running)
        });
        for (name, share, running) in running {
            let outcome = running.end().silent();
            println!("{name}, {share} %: {:.1} kernels/s; native {native:.1}", outcome.rate());
        }
        daemon.kill();
        let _ = daemon.end();
    }

    /// A daemon that flaps is reported as lost and back occasionally, not each time.
    #[test]
    fn a_daemon_that_comes_and_goes_floods_nothing() {
        let stage = Stage::new();
        let socket = stage.folder().join("daemon.sock");
        let tenant = start(limited(&stage, "one", 50, &socket).args([
            "dense",
            "--kernel-us",
            "2000",
            "--seconds",
            "9",
            "--progress",
        ]));
        for _ in 0..4 {
            let mut daemon = stage.native(built("hypervisor"));
            daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
            let daemon = start(daemon.stdout(Stdio::null()));
            std::thread::sleep(Duration::from_millis(1_000));
            daemon.kill();
            let _ = daemon.end();
            std::thread::sleep(Duration::from_millis(1_000));
        }
        let outcome = tenant.end().succeeded();
        let complaints = outcome.complaints();
        assert!((1..=2).contains(&complaints.len()), "{outcome:#?}");
        assert!(complaints[0].contains("continuing with this session's own account"));
        if let Some(back) = complaints.get(1) {
            assert!(back.contains("it is back"), "{outcome:#?}");
        }
    }
}
