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
fn bad_command_lines() {
    for arguments in [&["daemon", "--log", "loud"][..], &["demon"], &[]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_hypervisor")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}
