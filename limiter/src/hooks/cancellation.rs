//! Threads that are cancelled (`pthread_cancel`) in the middle of a hook.
//!
//! The C library ends a cancelled thread at its next cancellation point, most calls that may wait, by unwinding its
//! stack. That would meet frames which cannot be unwound so, and end the process. So it is put off while a hook runs,
//! what the driver waits for in it included: the thread ends at its next cancellation point after the call. A call that
//! jumps straight on to the driver is the driver's own, and is cancelled as it would be without a limiter.

use core::ffi::c_int;
use core::ptr;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// Where a thread may be cancelled at any time, putting its state back is where it ends: the calls have to be ones that
// unwind.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The calling thread's state as it was.
#[must_use]
pub(crate) struct CancelState(c_int);

/// The calling thread is not cancelled from here on.
#[inline]
pub(crate) fn put_off() -> CancelState {
    let mut state = PTHREAD_CANCEL_DISABLE;
    // SAFETY: a state that exists, and a place for the old one.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state) };
    CancelState(state)
}

/// It may be cancelled again, if it could be before. No frame of the limiter's that has something to drop may be above.
#[inline]
pub(crate) fn allow_again(before: CancelState) {
    // SAFETY: a state that the thread had.
    unsafe { pthread_setcancelstate(before.0, ptr::null_mut()) };
}
