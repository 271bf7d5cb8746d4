//! Logs that cannot be written.

use std::fs::{self, File};
use std::io::{Read, pipe};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{Daemon, PATIENCE, place, register};

/// A daemon that logs everything, started by a shell command with `"$@"` in it.
fn talkative(socket: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", shell, "sh", env!("CARGO_BIN_EXE_hypervisor")]);
    command.args(["daemon", "--log", "info", "--nvml", "none", "--socket"]).arg(socket);
    command
}

/// It serves, goes on serving, and ends as if nothing was wrong. Returns how many lines were lost.
#[track_caller]
fn serves(command: &mut Command, socket: &Path, registrations: usize) -> u64 {
    let mut daemon = Daemon::start_by(command, socket);
    let client = daemon.client();
    for n in 0..registrations {
        // Each is a line about the process that has left, and one about the new one.
        register(&client, &(n % 2).to_string(), 1000).unwrap();
    }
    let start = Instant::now();
    let lost = loop {
        // The thread that writes may be behind.
        let lost = daemon.log_lines_lost();
        if lost > 0 || start.elapsed() > Duration::from_millis(500) {
            break lost;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let ending = Instant::now();
    assert_eq!(daemon.signal(Signal::TERM), Some(0));
    assert!(ending.elapsed() < Duration::from_secs(5));
    assert!(!socket.exists());
    lost
}

#[test]
fn a_reader_that_ends_stops_nothing() {
    let (_dir, socket) = place();
    let (reader, writer) = pipe().unwrap();
    let mut command = talkative(&socket, r#"exec "$@""#);
    command.stderr(Stdio::from(writer));
    drop(reader);
    assert!(serves(&mut command, &socket, 10) > 0);
}

/// A pipe takes 64 KiB. Whoever writes more waits.
#[test]
fn a_reader_that_stands_still_holds_nobody_up() {
    let (_dir, socket) = place();
    let (mut reader, writer) = pipe().unwrap();
    let mut command = talkative(&socket, r#"exec "$@""#);
    command.stderr(Stdio::from(writer));
    let lost = serves(&mut command, &socket, 3000);
    // 1024 lines wait, and some hundred are in the pipe.
    assert!(lost > 500, "{lost}");
    drop(command);
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert!(read.lines().count() > 100 && read.contains("registered"));
}

#[test]
fn a_file_that_must_not_grow_stops_nothing() {
    let (dir, socket) = place();
    let log = dir.path().join("log");
    let shell = format!(r#"ulimit -f 1; exec "$@" 2>"{}""#, log.display());
    assert!(serves(&mut talkative(&socket, &shell), &socket, 100) > 0);
    assert!(fs::metadata(log).unwrap().len() <= 1024);
}

#[test]
fn a_standard_error_that_is_closed_read_only_or_full_stops_nothing() {
    let (_dir, socket) = place();
    // The runtime opens `/dev/null` in its place, where nothing is lost.
    for shell in [r#"exec "$@" 2>&-"#, r#"exec "$@" <&- >&- 2>&-"#] {
        assert_eq!(serves(&mut talkative(&socket, shell), &socket, 10), 0, "{shell}");
    }
    for shell in [r#"exec "$@" 2</dev/null"#, r#"exec "$@" 2>/dev/full"#] {
        assert!(serves(&mut talkative(&socket, shell), &socket, 10) > 0, "{shell}");
    }
}

#[test]
fn a_log_that_can_be_written_loses_nothing() {
    let (dir, socket) = place();
    let log = dir.path().join("log");
    let mut command = talkative(&socket, r#"exec "$@""#);
    command.stderr(File::create(&log).unwrap());
    assert_eq!(serves(&mut command, &socket, 100), 0);
    let text = fs::read_to_string(log).unwrap();
    assert_eq!(text.matches("registered").count(), 100, "{text}");
    assert!(text.lines().last().unwrap().contains("ends"), "{text}");
}

/// A caller that registers again and again fills no disk.
#[test]
fn a_flood_of_lines_is_bounded_and_counted() {
    let (dir, socket) = place();
    let log = dir.path().join("log");
    let mut command = talkative(&socket, r#"exec "$@""#);
    command.stderr(File::create(&log).unwrap());
    let start = Instant::now();
    let lost = serves(&mut command, &socket, 3000);
    let lines = fs::read_to_string(&log).unwrap().lines().count() as u64;
    // 100 a second, and before each the line that says how many were lost.
    let most = 2_100 + 2 * 100 * (start.elapsed().as_secs() + 1);
    assert!(lost > 0 && lines < most, "{lost} lost, {lines} written, at most {most}");
}

/// A line comes in one piece, and says how many were lost before it.
#[test]
fn a_reader_that_comes_back_is_told_what_it_missed() {
    let (_dir, socket) = place();
    let (mut reader, writer) = pipe().unwrap();
    let mut command = talkative(&socket, r#"exec "$@""#);
    command.stderr(Stdio::from(writer));
    let daemon = Daemon::start_by(&mut command, &socket);
    drop(command);
    let client = daemon.client();
    for n in 0..3000 {
        register(&client, &(n % 2).to_string(), 1000).unwrap();
    }
    assert!(daemon.log_lines_lost() > 0);
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        let start = Instant::now();
        let mut some = [0; 4096];
        while start.elapsed() < PATIENCE {
            let count = reader.read(&mut some).unwrap();
            said.extend_from_slice(&some[..count]);
            let text = String::from_utf8_lossy(&said);
            if count == 0 || text.contains("log lines were lost\n") {
                break;
            }
        }
        String::from_utf8(said).unwrap()
    })
    .join()
    .unwrap();
    assert!(said.contains("log lines were lost"), "{}", said.len());
}

/// Not 101, as after a panic.
#[test]
fn an_error_at_the_start_that_cannot_be_told_is_an_error() {
    let (dir, socket) = place();
    fs::write(&socket, "").unwrap();
    for shell in [
        r#"exec "$@" 2>/dev/full"#,
        r#"exec "$@" 2>&-"#,
        r#"exec "$@" 2</dev/null"#,
        r#"exec "$@" >/dev/full 2>&1"#,
    ] {
        let status = talkative(&socket, shell).status().unwrap();
        assert_eq!(status.code(), Some(1), "{shell}");
    }
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    for arguments in [&["--help"][..], &["--version"], &["daemon", "--log", "loud"]] {
        let to = || Stdio::from(writer.as_fd().try_clone_to_owned().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
        let status = command.args(arguments).stdout(to()).stderr(to()).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 2)), "{arguments:?}: {status}");
    }
    drop(dir);
}

/// What the daemon says from its start to its end, in a format.
fn said(format: &str) -> Vec<String> {
    let (dir, socket) = place();
    let log = dir.path().join("log");
    let shell = format!(r#"exec "$@" --log-format {format}"#);
    let mut command = talkative(&socket, &shell);
    command.stderr(File::create(&log).unwrap());
    assert_eq!(serves(&mut command, &socket, 3), 0);
    fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_line_for_the_journal_has_its_level_and_no_time() {
    let lines = said("journal");
    assert!(lines.iter().any(|line| line.starts_with("<6>hypervisor")), "{lines:?}");
    let of = |word: &str| lines.iter().find(|line| line.contains(word)).unwrap();
    assert!(of("registered").contains(" registered worker="), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with('<') && !line.contains("INFO")), "{lines:?}");
}

#[test]
fn json_is_an_object_each() {
    let objects: Vec<serde_json::Value> =
        said("json").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let registered = objects.iter().find(|line| line["message"] == "registered").unwrap();
    assert_eq!(registered["level"], "INFO");
    assert!(registered["pid"].is_u64() && registered["session"].is_string(), "{registered}");
}
