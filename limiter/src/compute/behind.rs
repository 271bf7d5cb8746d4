//! Events that are recorded behind a closed gate. The hooks of `cuEventRecord` and `cuStreamWaitEvent` call this
//! module.
//!
//! A stream that waits for another stream's event keeps its time slices although it does nothing: on an H100 it takes
//! half of the device from another process. A stream that waits for a word in memory costs nothing. So if an event was
//! recorded behind a gate that its stream has not passed, the waiting stream first waits for the number that the
//! event's stream writes when it passes the gate. That write always precedes the event.

use super::fast_path::FAST_PATH;
use super::work::SPREAD;
use super::{driver_calls, is_ungated, lane, named, undisturbing};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Acquire;
use driver::cuda::{CuResult, DevicePtr, Event, STREAM_WAIT_VALUE_GEQ, Stream};
use std::sync::Mutex;

/// How many events are remembered. A new event replaces another one in its place; a thread never waits for a place.
const EVENTS: usize = 256;

/// A batch behind a gate in a stream, and the word to which the stream writes the batch's number when it passes the
/// gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    pub(super) context: usize,
    pub(super) word: &'static AtomicU32,
    pub(super) at: DevicePtr,
    pub(super) number: u32,
}

impl Behind {
    fn is_passed(self) -> bool {
        self.word.load(Acquire).wrapping_sub(self.number).cast_signed() >= 0
    }
}

static RECORDED: [Mutex<Option<(usize, Behind)>>; EVENTS] = [const { Mutex::new(None) }; EVENTS];

fn place(event: Event) -> &'static Mutex<Option<(usize, Behind)>> {
    &RECORDED[((event as usize).wrapping_mul(SPREAD as usize) >> 40) % EVENTS]
}

/// Drops events whose stream is gone: after a fork, or with their context.
fn forget(mut is_gone: impl FnMut(&Behind) -> bool) {
    if no_stream_has_a_gate() {
        return;
    }
    for place in &RECORDED {
        if let Ok(mut place) = place.try_lock() {
            *place = place.filter(|(_, behind)| !is_gone(behind));
        }
    }
}

pub(super) fn after_fork() {
    forget(|_| true);
}

/// The handles of the context and of its events may be reused.
pub(super) fn context_ended(context: usize) {
    forget(|behind| behind.context == context);
}

/// Whether event calls can skip this module.
#[inline]
pub(crate) fn no_stream_has_a_gate() -> bool {
    !FAST_PATH.has_stream_gates()
}

/// Called before an event is recorded into `stream`, or before it is destroyed (`None`).
pub(crate) fn event_comes_after(event: Event, stream: Option<(Stream, bool)>) {
    if no_stream_has_a_gate() || is_ungated() {
        return;
    }
    let stream = stream.filter(|_| !FAST_PATH.has_captures());
    let behind = stream.and_then(|(stream, per_thread)| {
        lane::known_by_any_way(named(stream, per_thread))?.is_behind()
    });
    let Ok(mut place) = place(event).try_lock() else { return };
    if let Some(behind) = behind.filter(|behind| !behind.is_passed()) {
        *place = Some((event as usize, behind));
    } else if place.is_some_and(|(known, _)| known == event as usize) {
        *place = None;
    }
}

/// Called before a stream is made to wait for an event.
pub(super) fn wait_for_its_gate(stream: Stream, per_thread: bool, event: Event) {
    if no_stream_has_a_gate() || is_ungated() || FAST_PATH.has_captures() {
        return;
    }
    let known = place(event).try_lock().ok().and_then(|place| *place);
    let Some((_, behind)) = known.filter(|(known, _)| *known == event as usize) else { return };
    if behind.is_passed() {
        return;
    }
    let Some(lane) = lane::known_by_any_way(named(stream, per_thread)) else { return };
    undisturbing(|| lane.wait_for_gate(behind));
}

impl lane::Lane {
    /// Makes this lane's stream wait until another stream has passed its gate, behind the work that this lane has
    /// already queued. Called by the lane's thread.
    fn wait_for_gate(&self, behind: Behind) {
        let Some(turnstile) = self.turnstile().filter(|_| self.context() == behind.context) else {
            return;
        };
        // Work of one stream runs in order anyway.
        if turnstile.is_behind().is_some_and(|own| own.at == behind.at) || !self.cover() {
            return;
        }
        let stream = self.stream() as Stream;
        let waits = driver_calls::stream_wait_value(
            stream,
            behind.at,
            behind.number,
            STREAM_WAIT_VALUE_GEQ,
        );
        if waits == CuResult::SUCCESS {
            turnstile.comes_behind(behind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_passed_once_the_word_has_reached_its_number() {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(u32::MAX - 1)));
        let behind = |number| Behind { context: 1, word, at: 64, number };
        assert!(behind(u32::MAX - 1).is_passed() && behind(7_u32.wrapping_sub(100)).is_passed());
        assert!(!behind(u32::MAX).is_passed() && !behind(3).is_passed());
        word.store(3, core::sync::atomic::Ordering::Relaxed);
        assert!(behind(u32::MAX).is_passed() && behind(3).is_passed() && !behind(4).is_passed());
    }
}
