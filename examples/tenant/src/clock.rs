//! The clock that all programs of the machine share.

/// Seconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
