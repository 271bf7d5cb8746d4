//! Helpers for driver calls of the limiter: current context, calls in another context, capture modes.

use super::{ctx_get_current, ctx_pop_current, ctx_push_current, exchange_capture_mode};
use core::ptr;
use driver::cuda::{CAPTURE_MODE_RELAXED, Context};

/// The handle of the calling thread's context; 0 for none.
pub(crate) fn current_context() -> usize {
    let mut context: Context = ptr::null_mut();
    if ctx_get_current(&raw mut context).is_ok() { context as usize } else { 0 }
}

/// Runs driver calls with `context` current; `None` if it cannot be made current.
pub(crate) fn within<R>(context: usize, calls: impl FnOnce() -> R) -> Option<R> {
    let mut current: Context = ptr::null_mut();
    if ctx_get_current(&raw mut current).is_ok() && current as usize == context {
        return Some(calls());
    }
    if !ctx_push_current(context as Context).is_ok() {
        return None;
    }
    let result = calls();
    let _ = ctx_pop_current(&raw mut current);
    Some(result)
}

/// Runs driver calls that cannot invalidate a capture of the program (`cuThreadExchangeStreamCaptureMode`).
pub(crate) fn undisturbing<R>(calls: impl FnOnce() -> R) -> R {
    let mut mode = CAPTURE_MODE_RELAXED;
    let exchanged = exchange_capture_mode(&raw mut mode).is_ok();
    let result = calls();
    if exchanged {
        let _ = exchange_capture_mode(&raw mut mode);
    }
    result
}

/// Makes the calling thread, one of the limiter's own, never invalidate a capture of the program.
pub(crate) fn never_disturb() {
    let mut mode = CAPTURE_MODE_RELAXED;
    let _ = exchange_capture_mode(&raw mut mode);
}
