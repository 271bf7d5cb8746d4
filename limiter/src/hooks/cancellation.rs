//! Threads that are cancelled (`pthread_cancel`) in the middle of a hook.
//!
//! The C library ends a cancelled thread at its next cancellation point (most calls that may wait) by
//! unwinding its stack. The limiter's frames cannot be unwound in this way: the process would end. So
//! cancellation is put off while a hook runs, including what the driver waits for in it. The thread ends at
//! its next cancellation point after the call. A call that jumps on to the driver has no frame of the
//! limiter, and is cancelled as without it.

use core::ffi::c_int;
use core::ptr;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// Where a thread may be cancelled at any time, it ends inside the call that restores its state. So these
// calls must be able to unwind.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The calling thread's state as it was.
#[must_use]
pub(crate) struct CancelState(c_int);

/// From here on the calling thread is not cancelled.
#[inline]
pub(crate) fn put_off() -> CancelState {
    let mut state = PTHREAD_CANCEL_DISABLE;
    // SAFETY: a state that exists, and a place for the old one.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state) };
    CancelState(state)
}

/// Allows cancellation again, if it was allowed before. No caller's frame of the limiter may have something
/// to drop.
#[inline]
pub(crate) fn allow_again(before: CancelState) {
    // SAFETY: a state that the thread had.
    unsafe { pthread_setcancelstate(before.0, ptr::null_mut()) };
}
