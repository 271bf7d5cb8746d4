//! `CLOCK_MONOTONIC` without this process's time namespace (time_namespaces(7)), so that processes in different
//! namespaces can compare times.
//!
//! Read through the C library: rustix would look for the kernel's vDSO itself, which valgrind hides.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::fs::File;
use std::io::Read;

/// The furthest that another process's time may be ahead of now, in ns. More than the longest lease plus what a late
/// process may hold beyond it.
pub const AHEAD_NS: u64 = 5_000_000_000;

/// How far this process's clocks are ahead, in ns: `CLOCK_MONOTONIC`, and the time since boot.
static OFFSETS: [AtomicI64; 2] = [const { AtomicI64::new(UNKNOWN) }; 2];
const UNKNOWN: i64 = i64::MIN;
const NAMES: [&str; 2] = ["monotonic", "boottime"];

/// Another process's time (ns), or now if it is further ahead than possible.
#[must_use]
pub const fn at_most(moment_ns: u64, now_ns: u64) -> u64 {
    if moment_ns > now_ns.saturating_add(AHEAD_NS) { now_ns } else { moment_ns }
}

/// The present time, in ns.
#[must_use]
#[inline]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).wrapping_sub(offset(0).cast_unsigned())
}

/// The time of the kernel's last tick, in ns; a few milliseconds old at most. The cheapest clock.
#[must_use]
#[inline]
pub fn tick_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE).wrapping_sub(offset(0).cast_unsigned())
}

/// CPU time of the calling thread, in ns. A system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// How far this process's time since boot is ahead, in ns.
pub(crate) fn boot_offset_ns() -> i64 {
    offset(1)
}

/// Forgets the offsets: a forked child may be in another time namespace.
pub fn forget_namespace() {
    OFFSETS.iter().for_each(|offset| offset.store(UNKNOWN, Relaxed));
}

#[inline]
fn offset(clock: usize) -> i64 {
    match OFFSETS[clock].load(Relaxed) {
        UNKNOWN => look(clock),
        known => known,
    }
}

/// Reads the offsets. Does not allocate, because a signal handler may be the first caller.
#[cold]
fn look(clock: usize) -> i64 {
    let mut text = [0; 256];
    let file = File::open("/proc/self/timens_offsets");
    let length = file.and_then(|mut file| file.read(&mut text)).unwrap_or(0);
    for (offset, name) in OFFSETS.iter().zip(NAMES) {
        offset.store(offset_in(text.get(..length).unwrap_or_default(), name), Relaxed);
    }
    OFFSETS[clock].load(Relaxed)
}

/// The offset (ns) of a clock in the kernel's list, whose lines are: name, seconds, nanoseconds.
fn offset_in(list: &[u8], name: &str) -> i64 {
    let lines = str::from_utf8(list).unwrap_or_default().lines();
    let mut fields = lines.filter_map(|line| line.strip_prefix(name));
    let mut fields = fields.next().unwrap_or_default().split_ascii_whitespace();
    let mut number = || fields.next().and_then(|field| field.parse::<i64>().ok()).unwrap_or(0);
    let ns = number().saturating_mul(1_000_000_000);
    ns.saturating_add(number()).max(UNKNOWN + 1)
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

    #[test]
    fn the_offsets_of_a_namespace() {
        let list = b"monotonic      100000         5\nboottime        -50         0\n";
        assert_eq!(offset_in(list, "monotonic"), 100_000_000_000_005);
        assert_eq!(offset_in(list, "boottime"), -50_000_000_000);
        assert_eq!(offset_in(b"", "boottime"), 0);
        assert_eq!(offset_in(b"monotonic", "monotonic"), 0);
        assert_eq!(offset_in(b"monotonic -9223372036854775808 x", "monotonic"), i64::MIN + 1);
    }

    proptest::proptest! {
        #[test]
        fn any_list_has_offsets(list: Vec<u8>) {
            let _ = offset_in(&list, "monotonic");
        }

        #[test]
        fn no_moment_is_far_ahead(moment: u64, now: u64) {
            let seen = at_most(moment, now);
            assert!(seen <= now.saturating_add(AHEAD_NS));
            assert!(seen == moment || seen == now);
        }
    }
}
