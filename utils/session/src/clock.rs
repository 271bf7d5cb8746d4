//! `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! It is read through the C library. rustix would look for the kernel's vDSO itself, which valgrind
//! hides.

/// Nanoseconds.
#[must_use]
#[inline]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds as of the kernel's last tick, some milliseconds ago at most. It is the cheapest
/// clock.
#[must_use]
#[inline]
pub fn tick_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// CPU time of the calling thread, in nanoseconds. It is a system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time` only. These clocks are always there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_not_far_behind() {
        let (before, tick, after) = (now_ns(), tick_ns(), now_ns());
        assert!(tick <= after && before - tick < 100_000_000, "{before} {tick} {after}");
    }
}
