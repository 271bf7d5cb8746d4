//! The clock that all processes of the machine share.

use core::time::Duration;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(super) fn now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    u64::try_from(tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(tv_nsec).unwrap_or(0)
}

/// Sleeps for some nanoseconds.
pub(super) fn sleep(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}
