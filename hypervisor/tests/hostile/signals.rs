//! Every way to end the daemon.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use http_bidir_comm::server::Peer;
use hypervisor::{Caller, Identity, KernelIdentity, Options, Sources, Unidentified};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Daemon, PATIENCE, freeze, place, register, thaw};

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// By their numbers: all that would end a process which does not handle them, and can be handled.
#[test]
fn every_signal_that_ends_it_removes_the_socket() {
    for signal in [2, 3, 5, 10, 12, 14, 15, 16, 24, 26, 27, 29, 30, 31].into_iter().chain(34..=64) {
        let (dir, socket) = place();
        let mut daemon = Daemon::start(&socket);
        register(&daemon.client(), "a", 1000).unwrap();
        let command = format!("kill -{signal} {}", daemon.process.id());
        assert!(Command::new("bash").args(["-c", &command]).status().unwrap().success());
        assert_eq!(daemon.process.wait().unwrap().code(), Some(0), "{signal}");
        assert_eq!(names(dir.path()), [""; 0], "{signal}");
    }
}

/// A supervisor may block signals for itself, and forget that its children inherit that.
#[test]
fn signals_that_were_blocked_at_the_start_end_it_too() {
    for signal in [Signal::TERM, Signal::INT] {
        let (dir, socket) = place();
        let command = Daemon::command(&socket);
        let mut blocking = Command::new("env");
        blocking.arg("--block-signal").arg(command.get_program()).args(command.get_args());
        let mut daemon = Daemon::start_by(&mut blocking, &socket);
        kill_process(Pid::from_child(&daemon.process), Signal::HUP).unwrap();
        register(&daemon.client(), "a", 1000).unwrap();
        kill_process(Pid::from_child(&daemon.process), signal).unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = daemon.process.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "{signal:?} does nothing");
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!((status.code(), names(dir.path())), (Some(0), Vec::new()), "{signal:?}");
    }
}

#[test]
fn a_hangup_and_a_child_s_end_change_nothing() {
    let (_dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 1000).unwrap();
    let pid = Pid::from_child(&daemon.process);
    for signal in [Signal::HUP, Signal::HUP, Signal::XFSZ, Signal::PIPE, Signal::CHILD] {
        kill_process(pid, signal).unwrap();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(register(&client, "a", 1000).unwrap(), worker, "{signal:?}");
    }
    assert_eq!(daemon.process.try_wait().unwrap(), None);
    assert_eq!(daemon.sessions()[0].pids.len(), 1);
}

#[test]
fn several_signals_at_once_end_it_once() {
    let (dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    let pid = Pid::from_child(&daemon.process);
    freeze(&daemon.process);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM] {
        kill_process(pid, signal).unwrap();
    }
    thaw(&daemon.process);
    let start = Instant::now();
    let code = loop {
        if let Some(status) = daemon.process.try_wait().unwrap() {
            break status.code();
        }
        let _ = kill_process(pid, Signal::TERM);
        assert!(start.elapsed() < PATIENCE);
    };
    assert_eq!((code, names(dir.path())), (Some(0), Vec::new()));
}

/// Panics when it is asked to.
#[derive(Debug, Default)]
struct Fragile(Arc<Mutex<bool>>);

impl Identity for Fragile {
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
        let broken = *self.0.lock().unwrap();
        assert!(!broken, "as asked");
        KernelIdentity::default().caller(peer)
    }
}

#[test]
fn a_handler_that_panics_ends_its_own_call() {
    let (dir, socket) = place();
    let breaks = Arc::new(Mutex::new(false));
    let identity: Arc<dyn Identity> = Arc::new(Fragile(Arc::clone(&breaks)));
    let options = Options { socket: Some(socket.clone()), ..Options::default() };
    let serving = thread::spawn(move || {
        hypervisor::run(&options, Sources { identity, ..Sources::default() })
    });
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
    // Who calls is asked once for each connection.
    let client = || BlockingHttpClient::new(Endpoint::Unix(socket.clone()));
    let first = client();
    let worker = register(&first, "a", 1000).unwrap();
    for _ in 0..10 {
        *breaks.lock().unwrap() = true;
        let ended = register(&client(), "a", 1000).unwrap_err();
        assert!(matches!(ended, ClientError::Connect { .. }), "{ended}");
        *breaks.lock().unwrap() = false;
        assert_eq!(register(&first, "a", 1000).unwrap(), worker);
        assert_eq!(register(&client(), "a", 1000).unwrap(), worker);
    }
    // It handles the signal, so this process goes on.
    kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
    serving.join().unwrap().unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}
