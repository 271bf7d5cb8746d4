//! One process that does all it may, and what others notice of it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use utils::protocol::{DeviceQuota, Register, Registered, VERSION, path};

use crate::process::{Daemon, PATIENCE, place, register};

/// Each process takes two descriptors at least, and shells allow few.
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
    const SESSIONS: u32 = 300;
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let start = Instant::now();
    for session in 0..SESSIONS {
        let uuid = |n| format!("gpu-{session:08x}-0000-4000-8000-{n:012x}");
        let registration = Register {
            protocol: VERSION,
            session: session.to_string(),
            devices: (0..DEVICES).map(|n| DeviceQuota::fixed(uuid(n), 1000)).collect(),
        };
        let _: Registered = client.call(path::REGISTER, &registration, PATIENCE).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{session} sessions take too long");
    }
}
