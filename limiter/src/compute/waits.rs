//! Waits of streams for anything but work of their own device: other devices, words in memory, semaphores, the host.
//! The hooks of such calls report them here.
//!
//! A waiting stream does not keep the device busy, although its queue looks full. So work in a stream with such waits
//! is charged by estimates, not by the clock. But the clock sees more than estimates do, and a wait that delays nothing
//! must not disable it. So some waits are measured, by an event before and one after, and stand for the waits since the
//! last measured one. If next to none of the time is spent waiting, the waits do not count.
//!
//! A wait for an event does not count as long as only work of the same device can precede the event. The other stream's
//! work is then counted in its own lane.

use super::fast_path::FAST_PATH;
use super::work::SPREAD;
use super::{behind, is_ungated, lane, named};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam::utils::CachePadded;
use driver::cuda::{CuResult, Event, Stream};

/// Streams that are distinguished; streams that share a place count as one.
const STREAMS: usize = 64;
/// The waiting time is averaged over this time.
const OVER_NS: u64 = 1_000_000_000;
/// At most this much waiting is ignored, and charged as if the device had been busy.
const NEXT_TO_NOTHING_NS: u64 = OVER_NS / 16;
/// The initial average: it decays below the bound within a quarter of the time.
const AT_FIRST_NS: u64 = NEXT_TO_NOTHING_NS / 4 * 5;
/// One in this many waits is measured.
const MEASURE_EVERY: u64 = 8;
/// Unmeasured waits after which waits no longer count: more than a stream holds behind one that is being measured. So
/// many occur only if the thread launches nothing itself, so that nothing can be measured; otherwise a program could
/// disable the clock at will.
const MOST_UNMEASURED: u64 = 2_048;

/// The waits of a stream. Concurrent updates may lose one of them.
pub(super) struct Waits {
    /// Number of waits, and how many of them the measured ones stand for.
    count: AtomicU64,
    measured: AtomicU64,
    /// Average waiting time (ns per [`OVER_NS`]), and when it was last updated; 0: never.
    waited_ns: AtomicU64,
    at: AtomicU64,
}

static WAITS: [CachePadded<Waits>; STREAMS] = [const { CachePadded::new(Waits::new()) }; STREAMS];

/// The waits of a stream. A default stream's handle means a different stream in each context.
fn of(stream: usize, context: usize) -> &'static Waits {
    let which = if lane::is_default(stream) { stream ^ context } else { stream };
    &WAITS[(which.wrapping_mul(SPREAD as usize) >> 40) % STREAMS]
}

impl Waits {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            waited_ns: AtomicU64::new(AT_FIRST_NS),
            at: AtomicU64::new(0),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// Whether the last wait is to be measured. In no fixed rhythm, which might always meet the same wait of a program
    /// that alternates short and long ones.
    fn is_drawn(&self) -> bool {
        let spread = self.count().wrapping_mul(SPREAD);
        let mixed = (spread ^ spread >> 29).wrapping_mul(SPREAD) >> 32;
        mixed.is_multiple_of(MEASURE_EVERY)
    }

    /// Whether next to no time is waited, or the waiting cannot be measured.
    pub(super) fn hold_nothing_up(&self) -> bool {
        self.waited_ns.load(Relaxed) < NEXT_TO_NOTHING_NS
            || self.count().saturating_sub(self.measured.load(Relaxed)) > MOST_UNMEASURED
    }

    /// Called before a wait is measured; returns the number of waits that it stands for.
    pub(super) fn stand_for(&self) -> u64 {
        let count = self.count();
        count.saturating_sub(self.measured.swap(count, Relaxed)).max(1)
    }

    /// Records a measured wait of `ns`, which stands for `stands_for` waits.
    pub(super) fn took(&self, ns: u64, stands_for: u64, now: u64) {
        let before = self.at.swap(now, Relaxed);
        let passed = if before == 0 { 0 } else { now.saturating_sub(before).min(OVER_NS) };
        let old = self.waited_ns.load(Relaxed).min(OVER_NS);
        let left = old - old * passed / OVER_NS;
        self.waited_ns.store(left.saturating_add(ns.saturating_mul(stands_for)), Relaxed);
    }
}

/// Runs a call that makes a stream wait for something outside of the device.
pub(crate) fn wait_outside(
    stream: Stream,
    per_thread: bool,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    // Streams that wait for this stream's events may now wait for the outside too.
    comes_from_outside();
    wait(stream, per_thread, call)
}

/// From now on, events may stand for something outside of the device.
pub(crate) fn comes_from_outside() {
    FAST_PATH.note_outside();
}

/// Whether an event can only stand for work of the only device.
#[inline]
pub(crate) fn events_are_the_devices_own() -> bool {
    FAST_PATH.has_one_place() && !FAST_PATH.has_outside()
}

/// Runs a call that makes a stream wait for an event.
pub(crate) fn wait_for_event(
    stream: Stream,
    per_thread: bool,
    event: Event,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    behind::wait_for_its_gate(stream, per_thread, event);
    if events_are_the_devices_own() { call() } else { wait(stream, per_thread, call) }
}

fn wait(stream: Stream, per_thread: bool, call: impl FnOnce() -> CuResult) -> CuResult {
    if is_ungated() {
        return call();
    }
    let stream = named(stream, per_thread);
    let context = if lane::is_default(stream) { lane::context_of(stream).unwrap_or(0) } else { 0 };
    let waits = of(stream, context);
    waits.count.fetch_add(1, AcqRel);
    // Nothing may be recorded into a stream that is being captured, and this call may start its capture.
    let measured = || !FAST_PATH.has_captures();
    let lane = if waits.is_drawn() && measured() { lane::known(stream) } else { None };
    let started = lane.as_ref().and_then(|lane| lane.start_wait());
    let result = call();
    if let (Some(lane), Some(started)) = (lane, started)
        && result.is_ok()
        && measured()
    {
        lane.finish_wait(started);
    }
    result
}

/// The waits of a lane's stream, by the batches that cover them.
pub(super) struct StreamWaits {
    pub(super) of: &'static Waits,
    /// Number of waits at the end of the last batch that covers one, and that batch's number.
    covered: AtomicU64,
    until: AtomicU64,
}

impl StreamWaits {
    pub(super) fn new(stream: usize, context: usize) -> Self {
        let of = of(stream, context);
        Self { of, covered: AtomicU64::new(0), until: AtomicU64::new(0) }
    }

    /// Whether there may have been a wait in batch `number`, or later.
    pub(super) fn are_since(&self, number: u64) -> bool {
        self.of.count() != self.covered.load(Acquire) || self.until.load(Acquire) >= number
    }

    /// Records that batch `number` covers the first `count` waits. Called by the lane's thread.
    pub(super) fn are_covered_by(&self, number: u64, count: u64) {
        if count != self.covered.load(Relaxed) {
            // In this order: a reader that sees the second store sees the first.
            self.until.store(number, Release);
            self.covered.store(count, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A wait each millisecond, one in ten of them measured.
    fn after(waits: &Waits, begun: u64, ms: u64, each_ns: u64) -> bool {
        for at in 1..=ms {
            waits.count.fetch_add(1, Relaxed);
            if at.is_multiple_of(10) {
                waits.took(each_ns, waits.stand_for(), begun + at * MS);
            }
        }
        waits.hold_nothing_up()
    }

    #[test]
    fn waits_count_by_how_much_of_the_time_they_take() {
        let waits = Waits::new();
        assert!(!waits.hold_nothing_up());
        assert!(!after(&waits, MS, 100, 0));
        assert!(after(&waits, 101 * MS, 300, 0));
        assert!(after(&waits, 401 * MS, 3_000, MS / 20));
        assert!(!after(&waits, 3_401 * MS, 3_000, MS / 10));
        assert!(after(&waits, 6_401 * MS, 3_000, MS / 50));
        // A single long wait.
        waits.took(100 * MS, 1, 9_402 * MS);
        assert!(!waits.hold_nothing_up());
    }

    #[test]
    fn those_that_are_measured_follow_no_rhythm() {
        for rhythm in [2, 3, 4, 5, 8] {
            let mut drawn = vec![0; rhythm];
            for count in 0..20_000 {
                let waits = Waits { count: AtomicU64::new(count), ..Waits::new() };
                drawn[usize::try_from(count).unwrap() % rhythm] += usize::from(waits.is_drawn());
            }
            let fair = 20_000 / usize::try_from(MEASURE_EVERY).unwrap() / rhythm;
            assert!(drawn.iter().all(|n| (fair * 3 / 4..fair * 5 / 4).contains(n)), "{drawn:?}");
        }
    }

    #[test]
    fn waits_that_nobody_measures_do_not_stop_the_clock() {
        let waits = Waits::new();
        waits.count.store(MOST_UNMEASURED, Relaxed);
        assert!(!waits.hold_nothing_up());
        waits.count.fetch_add(1, Relaxed);
        assert!(waits.hold_nothing_up());
        let _ = waits.stand_for();
        assert!(!waits.hold_nothing_up());
    }

    #[test]
    fn numbers_at_their_ends() {
        let waits = Waits::new();
        assert_eq!(waits.stand_for(), 1);
        waits.took(u64::MAX, u64::MAX, 5);
        waits.took(u64::MAX, 2, 4);
        waits.took(0, 1, u64::MAX);
        assert!(waits.hold_nothing_up());
    }
}
