//! Counts the stream captures of this process. The hooks that begin and end captures call it.

use super::fast_path::FAST_PATH;
use crate::exit_guard::Visits;
use core::sync::atomic::Ordering;
use driver::cuda::CuResult;

/// In a forked child nothing is captured.
pub(super) fn after_fork() {
    FAST_PATH.captures.store(0, Ordering::Relaxed);
}

/// Runs a call that begins a capture.
pub(crate) fn capture_begins(governors: &Visits, call: impl FnOnce() -> CuResult) -> CuResult {
    // Counted before the call: another thread may launch into the stream at once.
    FAST_PATH.captures.fetch_add(1, Ordering::SeqCst);
    // A governor may be about to record an event into the stream.
    let alone = super::has_lanes().then(|| governors.exclude());
    let result = call();
    drop(alone);
    if !result.is_ok() {
        end();
    }
    result
}

/// Runs a call that ends a capture. A failed capture has ended too: what it leaves cannot be used.
pub(crate) fn capture_ends(call: impl FnOnce() -> CuResult) -> CuResult {
    let result = call();
    let failed = [CuResult::STREAM_CAPTURE_INVALIDATED, CuResult::STREAM_CAPTURE_UNJOINED];
    if result.is_ok() || failed.contains(&result) {
        end();
    }
    result
}

fn end() {
    let _ = FAST_PATH
        .captures
        .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| count.checked_sub(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_capture_counts_and_nothing_else() {
        let governors = Visits::new();
        for result in [
            CuResult::SUCCESS,
            CuResult::STREAM_CAPTURE_INVALIDATED,
            CuResult::STREAM_CAPTURE_UNJOINED,
        ] {
            assert!(capture_begins(&governors, || CuResult::SUCCESS).is_ok());
            assert!(FAST_PATH.has_captures());
            for not_yet in
                [CuResult::STREAM_CAPTURE_WRONG_THREAD, CuResult::STREAM_CAPTURE_UNMATCHED]
            {
                let _ = capture_ends(|| not_yet);
                assert!(FAST_PATH.has_captures(), "{not_yet:?}");
            }
            let _ = capture_ends(|| result);
            assert!(!FAST_PATH.has_captures(), "{result:?}");
        }
        let _ = capture_begins(&governors, || CuResult::ILLEGAL_STATE);
        assert!(!FAST_PATH.has_captures());
    }
}
