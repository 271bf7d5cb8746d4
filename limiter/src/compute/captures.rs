//! Whether any stream of this process is being captured.

use super::glance::GLANCE;
use core::sync::atomic::{AtomicU32, Ordering};
use utils::driver::cuda::CuResult;

/// Captures that were begun and not ended. Only says whether to look closer: a stream that ends while
/// it is captured leaves it too high, which costs time and nothing else.
const CAPTURES: &AtomicU32 = &GLANCE.captures;

/// In a forked child: nothing is captured.
pub(super) fn after_fork() {
    CAPTURES.store(0, Ordering::Relaxed);
}

/// Runs a call that begins a capture.
pub(crate) fn capture_begins(call: impl FnOnce() -> CuResult) -> CuResult {
    // Counted before: another thread may launch into the stream at once.
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    // A governor may be about to record an event into the stream.
    let alone = super::has_lanes().then(super::pins::exclude);
    let result = call();
    drop(alone);
    if !result.is_ok() {
        end();
    }
    result
}

/// Runs a call that ends a capture, also one that has failed.
pub(crate) fn capture_ends(call: impl FnOnce() -> CuResult) -> CuResult {
    let result = call();
    if result.is_ok() || result == CuResult::STREAM_CAPTURE_INVALIDATED {
        end();
    }
    result
}

fn end() {
    let _ =
        CAPTURES.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| count.checked_sub(1));
}
