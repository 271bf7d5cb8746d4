//! One process that does all that it may, and the effect on others.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use protocol::{DeviceQuota, LeaseReport, Register, Registered, VERSION, path};

use crate::process::{Daemon, PATIENCE, admission, place, register};

/// Each process takes at least two descriptors, and a shell's limit is low.
#[test]
fn more_processes_than_a_shell_allows_files() {
    const FEW: usize = 64;
    let (_dir, socket) = place();
    let daemon = Daemon::command(&socket);
    let mut command = Command::new("sh");
    command.args(["-c", &format!(r#"ulimit -Sn {FEW}; exec "$0" "$@""#)]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let daemon = Daemon::start_by(&mut command, &socket);
    let _connections: Vec<_> =
        (0..2 * FEW).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    register(&daemon.client(), "a", 1000).unwrap();
}

/// Opens connections one after the other. Returns those that are served, and what the others were
/// answered.
fn flood(socket: &Path, count: usize) -> (Vec<UnixStream>, Vec<String>) {
    let all: Vec<_> = (0..count).map(|_| UnixStream::connect(socket).unwrap()).collect();
    // They are served or refused in order, so the last one's answer comes last.
    let mut refusals = Vec::new();
    let mut served = Vec::new();
    for mut connection in all.into_iter().rev() {
        let wait = if refusals.is_empty() { PATIENCE } else { Duration::from_millis(1) };
        connection.set_read_timeout(Some(wait)).unwrap();
        let mut answer = String::new();
        match connection.read_to_string(&mut answer) {
            Ok(_) => refusals.push(answer),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                served.push(connection);
            }
        }
    }
    (served, refusals)
}

#[test]
fn a_user_that_opens_connections_without_end_cuts_nobody_off() {
    const FILES: usize = 256;
    /// The daemon keeps 64 for itself, and a third of the others for users who have next to nothing;
    /// one user gets half of the rest.
    const MOST: usize = (FILES - 64) * 2 / 3 / 2;
    let (dir, socket) = place();
    let daemon = Daemon::command(&socket);
    let mut command = Command::new("sh");
    command.args(["-c", &format!(r#"ulimit -n {FILES}; exec "$0" "$@""#)]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let log = dir.path().join("log");
    command.stderr(File::create(&log).unwrap());
    let daemon = Daemon::start_by(&mut command, &socket);
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.process.id())).unwrap().count();
    let client = daemon.client();
    // These take two: a connection, which is closed if a slow machine leaves it idle for long, and a watched process.
    let worker = register(&client, "a", 500_000).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let (mut served, refusals) = loop {
            let (served, refusals) = flood(&socket, FILES + MOST);
            assert!(served.len() < MOST, "{} are served", served.len());
            // The daemon may not have noticed yet that the last round's connections are gone.
            if served.len() >= MOST - 2 {
                break (served, refusals);
            }
            assert!(start.elapsed() < PATIENCE, "{} are served", served.len());
        };
        for refusal in &refusals {
            assert!(refusal.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{refusal}");
            assert!(
                refusal.contains(&format!("has {MOST} connections and processes")),
                "{refusal}"
            );
        }
        assert!(open() < FILES - 64, "{} descriptors are open", open());
        // A process that is known already is served as before, and so is each admitted connection.
        let lease = admission(&client, worker, None, Some(PATIENCE)).unwrap().unwrap();
        let report = LeaseReport::busy(lease.id, 1);
        admission(&client, worker, Some(report), None).unwrap();
        let call = b"GET /api/v1/sessions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        served[0].set_read_timeout(Some(PATIENCE)).unwrap();
        served[0].write_all(call).unwrap();
        let mut answer = String::new();
        served[0].read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // Some end in the middle of a call.
        for (n, connection) in served[1..].iter_mut().enumerate() {
            connection.write_all(&call[..n % call.len()]).unwrap();
        }
    }
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("the user has too many"), "{said}");
}

/// The daemon watches each process, not each name that it has had.
#[test]
fn a_process_that_changes_its_session_leaves_nothing_open() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.process.id())).unwrap().count();
    register(&client, "a", 1000).unwrap();
    let before = open();
    for round in 0..200 {
        register(&client, if round % 2 == 0 { "b" } else { "a" }, 1000).unwrap();
    }
    assert!(open() < before + 20, "{before} descriptors were open, and now {}", open());
}

#[test]
fn devices_that_nobody_uses_cost_no_time() {
    const DEVICES: u32 = 64;
    /// One user has half of the 8192 quotas that are kept.
    const SESSIONS: u32 = 4096 / DEVICES;
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let start = Instant::now();
    let uuid = |n: u32| format!("gpu-70000000-0000-4000-8000-{n:012x}").parse().unwrap();
    for round in 0..5 {
        for session in 0..SESSIONS {
            let registration = Register {
                protocol: VERSION,
                session: session.to_string(),
                devices: (0..DEVICES).map(|n| DeviceQuota::fixed(uuid(n), 1000)).collect(),
                gates: None,
            };
            let _: Registered = client.post(path::REGISTER, &registration, PATIENCE).unwrap();
            let late = start.elapsed() > Duration::from_secs(10);
            assert!(!late, "{round}, {session}: sessions take too long");
        }
    }
}
