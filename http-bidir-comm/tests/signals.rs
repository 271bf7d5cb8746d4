//! Signals to the host program neither break nor prolong a wait. Runs without the test harness: the kernel delivers a
//! process's signal to its main thread, so the main thread must be the waiting one. The program answers like a harness
//! with this one test.
#![allow(clippy::unwrap_used)] // helpers of tests
#![allow(clippy::print_stdout, reason = "the answer")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use rustix::process::{Signal, getpid, kill_process};

const NAME: &str = "a_wait_is_neither_broken_nor_prolonged";

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |option: &str| asked.iter().any(|asked| asked == option);
    if is_asked("--list") {
        if !is_asked("--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    waits();
    println!("test result: ok. 1 passed; 0 failed");
}

fn waits() {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hits);
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGWINCH]).unwrap();
    thread::spawn(move || {
        for _ in &mut signals {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&stop);
    let sender = thread::spawn(move || {
        while !until.load(Ordering::SeqCst) {
            kill_process(getpid(), Signal::WINCH).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
    });
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let started = Instant::now();
    let error = client.post::<_, u32>("/", &1, Duration::from_millis(300)).unwrap_err();
    let took = started.elapsed();
    stop.store(true, Ordering::SeqCst);
    sender.join().unwrap();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert!(took >= Duration::from_millis(290), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(hits.load(Ordering::SeqCst) > 5);
}
