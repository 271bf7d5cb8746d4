//! Defers cancellation (`pthread_cancel`) of a thread while a hook runs.
//!
//! The C library ends a cancelled thread at its next cancellation point (most calls that may wait) by unwinding its
//! stack. The limiter's frames cannot be unwound in this way: the process would abort. So a thread that is cancelled
//! within a hook, or while the driver waits there, ends at its next cancellation point after the call. A call that
//! jumps on to the driver has no frame of the limiter, and is cancelled as without the limiter.

use core::ffi::c_int;
use core::ptr;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// A thread with asynchronous cancellation ends inside the call that restores its state, so these calls must be able to
// unwind.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The calling thread's previous cancellation state.
#[must_use]
pub(crate) struct CancelState(c_int);

/// Disables cancellation of the calling thread until [`allow_again`].
#[inline]
pub(crate) fn put_off() -> CancelState {
    let mut state = PTHREAD_CANCEL_DISABLE;
    // SAFETY: a state that exists, and a place for the old one.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state) };
    CancelState(state)
}

/// Restores the cancellation state. The thread may end here, so no frame of the limiter up the stack may have anything
/// to drop.
#[inline]
pub(crate) fn allow_again(before: CancelState) {
    // SAFETY: a state that the thread had.
    unsafe { pthread_setcancelstate(before.0, ptr::null_mut()) };
}
