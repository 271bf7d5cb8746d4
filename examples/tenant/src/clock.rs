//! The clock that all processes of the machine share, and the CPU time of this one.

use rustix::time::{ClockId, clock_gettime};

/// Seconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> f64 {
    seconds(ClockId::Monotonic)
}

/// Seconds of CPU time that all threads of this process have taken.
pub(crate) fn cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
