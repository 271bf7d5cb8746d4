//! The machine's monotonic clock, shared by all processes, and this process's CPU time.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, in seconds.
pub(crate) fn monotonic() -> f64 {
    seconds(ClockId::Monotonic)
}

/// CPU time of all threads of this process, in seconds.
pub(crate) fn cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
