//! The identity of processes.

use session::process::{ProcessIdentity, pidfd, start_time};
use std::process::Command;

#[test]
fn the_ended_have_no_start_time() {
    assert!(start_time(std::process::id()).unwrap() > 0);
    assert!(start_time(u32::MAX).is_none());
    let mut ended = Command::new("true").spawn().unwrap();
    let start = std::time::Instant::now();
    while start_time(ended.id()).is_some() {
        assert!(start.elapsed().as_secs() < 60, "a zombie still counts as living");
        std::thread::yield_now();
    }
    ended.wait().unwrap();
}

#[test]
fn an_identity_is_of_one_process() {
    let own = ProcessIdentity::own();
    assert!(own.is_running() && own.pid == std::process::id());
    assert!(own.name().is_some());
    let before = ProcessIdentity { start_time: own.start_time - 1, ..own };
    assert!(!before.is_running() && before.name().is_none());
}

#[test]
fn a_pidfd_needs_a_process() {
    assert!(pidfd(std::process::id().cast_signed()).is_ok());
    for none in [0, i32::MAX] {
        assert!(pidfd(none).is_err());
    }
}
