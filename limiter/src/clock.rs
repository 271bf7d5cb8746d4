//! The clock that all processes of the machine share.

use rustix::thread::Timespec;
pub(crate) use session::clock::now_ns as now;

/// Sleeps for some nanoseconds, or until a signal. It uses the bare system call: the C library's function is
/// a cancellation point, and a thread of the program must not be unwound here.
pub(crate) fn sleep(ns: u64) {
    let time = Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    let _ = rustix::thread::nanosleep(&time);
}
