//! The daemon under a service manager: what it says, and the socket that it gets.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{Daemon, PATIENCE, place, register};

/// A manager that hears what a daemon says.
fn manager(folder: &Path) -> (UnixDatagram, PathBuf) {
    let path = folder.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    (manager, path)
}

/// The next word that has this in it.
#[track_caller]
fn hears(manager: &UnixDatagram, wanted: &str) -> String {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let mut bytes = [0; 1024];
        let length = manager.recv(&mut bytes).unwrap();
        let said = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if said.lines().any(|line| line.starts_with(wanted)) {
            return said;
        }
    }
    panic!("{wanted} is not heard");
}

#[test]
fn a_manager_is_told_of_the_start_of_each_moment_and_of_the_end() {
    let (dir, socket) = place();
    let (manager, notify) = manager(dir.path());
    let mut command = Daemon::command(&socket);
    command.env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "200000");
    let mut daemon = Daemon::start_by(&mut command, &socket);
    let first = hears(&manager, "READY=1");
    assert!(first.contains("STATUS=Serves 0 processes of 0 sessions\n"), "{first}");
    assert!(first.contains("WATCHDOG=1\n"), "{first}");
    register(&daemon.client(), "a", 300_000).unwrap();
    let status = hears(&manager, "STATUS=Serves 1 process of 1 session");
    assert!(!status.contains("READY"), "{status}");
    for _ in 0..3 {
        hears(&manager, "WATCHDOG=1");
    }
    assert_eq!(daemon.signal(Signal::TERM), Some(0));
    hears(&manager, "STOPPING=1");
}

#[test]
fn a_manager_that_does_not_listen_holds_nobody_up() {
    let (dir, socket) = place();
    let (_manager, notify) = manager(dir.path());
    let mut command = Daemon::command(&socket);
    // It is told so often that soon nothing more fits.
    command.env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "200");
    let mut daemon = Daemon::start_by(&mut command, &socket);
    std::thread::sleep(Duration::from_millis(500));
    register(&daemon.client(), "a", 300_000).unwrap();
    let ending = Instant::now();
    assert_eq!(daemon.signal(Signal::TERM), Some(0));
    assert!(ending.elapsed() < PATIENCE / 2);
}

/// A daemon that gets a descriptor as its third, as systemd passes it.
fn given(passed: OwnedFd, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"LISTEN_PID=$$ exec "$@" 3<&0 </dev/null"#, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_hypervisor")).args(["daemon", "--log", "warn"]).args(arguments);
    command.env("LISTEN_FDS", "1").stdin(Stdio::from(passed));
    command
}

#[test]
fn a_socket_of_the_manager_is_served_and_left_to_it() {
    let (dir, socket) = place();
    let listener = UnixListener::bind(&socket).unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    let passed = || OwnedFd::from(listener.try_clone().unwrap());
    for _ in 0..2 {
        // It is in the queue before there is a daemon: nobody is turned away while one starts.
        let mut early = UnixStream::connect(&socket).unwrap();
        early.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        early.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut daemon = Daemon::start_by(&mut given(passed(), &["--state", state]), &socket);
        let mut answer = String::new();
        early.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        register(&daemon.client(), "a", 300_000).unwrap();
        assert_eq!(daemon.signal(Signal::TERM), Some(0));
        assert!(socket.exists());
    }
}

#[test]
fn what_else_is_passed_is_refused() {
    let (dir, socket) = place();
    let refused = |passed: OwnedFd, arguments: &[&str]| {
        let output = given(passed, arguments).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let listener = UnixListener::bind(&socket).unwrap();
    let elsewhere = refused(listener.into(), &["--socket", "/tmp/other.sock"]);
    assert!(elsewhere.contains(socket.to_str().unwrap()), "{elsewhere}");
    assert!(elsewhere.contains("/tmp/other.sock"), "{elsewhere}");
    let wanted = "expected a listening Unix stream socket";
    let (datagrams, _) = manager(dir.path());
    let of_datagrams = refused(datagrams.into(), &[]);
    assert!(of_datagrams.contains(wanted), "{of_datagrams}");
    let file = refused(std::fs::File::open("/dev/null").unwrap().into(), &[]);
    assert!(file.contains(wanted), "{file}");
    // It is connected, and listens to nobody.
    let connected = refused(UnixStream::pair().unwrap().0.into(), &[]);
    assert!(connected.contains("no path"), "{connected}");
}
