//! The clock that all processes of the machine share (`CLOCK_MONOTONIC` in ns), and sleeps on it.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::thread::{NanosleepRelativeResult, Timespec, futex};
pub(crate) use session::clock::now_ns as now;

/// Sleeps for `ns` nanoseconds, or until a signal. Uses the bare system call: the C library's function is a
/// cancellation point, and a thread of the program must not be unwound here.
pub(crate) fn sleep(ns: u64) {
    let time = Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // A seccomp filter may forbid `nanosleep`; a futex wait with a timeout does as well.
    if !matches!(
        rustix::thread::nanosleep(&time),
        NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_)
    ) {
        let (word, private) = (AtomicU32::new(0), futex::Flags::PRIVATE);
        let _ = futex::wait(&word, private, 0, Some(&time));
    }
}

/// Like [`sleep`]. The standard library's function panics if the kernel refuses the call.
pub(crate) fn sleep_for(time: Duration) {
    sleep(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}
