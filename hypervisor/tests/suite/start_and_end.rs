//! How the daemon starts, and how it ends.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::ClientError;
use rustix::process::Signal;

use crate::process::{Daemon, admission, place, register};

#[test]
fn a_clean_end_removes_the_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let (_dir, socket) = place();
        let mut daemon = Daemon::start(&socket);
        let client = daemon.client();
        let worker = register(&client, "a", 10_000).unwrap();
        // A call that waits does not delay the end.
        let waiting =
            thread::spawn(move || admission(&client, worker, None, Some(Duration::from_secs(10))));
        thread::sleep(Duration::from_millis(50));
        let started = Instant::now();
        assert_eq!(daemon.signal(signal), Some(0));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(!socket.exists());
        assert!(matches!(waiting.join().unwrap(), Err(ClientError::Connect { .. }) | Ok(Some(_))));
    }
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let second = Daemon::command(&socket).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{text}");
    assert!(text.contains("in use by a running server"), "{text}");
    assert!(text.contains(&*socket.to_string_lossy()), "{text}");
    assert!(second.stdout.is_empty());
    register(&daemon.client(), "a", 1).unwrap();
}

#[test]
fn bad_command_lines() {
    for arguments in [&["daemon", "--log", "loud"][..], &["demon"], &[]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_hypervisor")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    let (dir, _) = place();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let output = Daemon::command(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a server's socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}
