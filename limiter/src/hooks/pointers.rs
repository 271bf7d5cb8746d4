//! What programs point to. Hooks read it here only.
//!
//! The driver accepts null in more places than its documentation says, and any alignment. A hook reads what the
//! driver is about to read, and reads or writes what the driver has just written: so where the driver returns,
//! the hook does, and where it faults, the program has the fault that it has without the limiter.

use core::mem;

/// What is there; `None`: null.
///
/// # Safety
/// The pointer must be null, or the driver is about to read it or has just written through it.
#[inline]
pub(super) unsafe fn read<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: not null, and otherwise the caller's.
    (!pointer.is_null()).then(|| unsafe { pointer.read_unaligned() })
}

/// The number or handle that the driver has written; zero where the program did not ask for it.
///
/// # Safety
/// As for [`read`]; `T` must be a number or a handle.
#[inline]
pub(super) unsafe fn written<T: Copy>(pointer: *const T) -> T {
    // SAFETY: the caller's; zero is a number and a handle.
    unsafe { read(pointer).unwrap_or_else(|| mem::zeroed()) }
}

/// What is in a list; nothing in a null one.
///
/// # Safety
/// As for [`read`], for as many entries.
pub(super) unsafe fn list<T: Copy>(list: *const T, count: usize) -> impl Iterator<Item = T> {
    let count = if list.is_null() { 0 } else { count };
    // SAFETY: the caller's; not null.
    (0..count).map(move |at| unsafe { list.add(at).read_unaligned() })
}
