//! Access to memory that a program passed to the driver. Hooks dereference such pointers only here.
//!
//! The driver accepts null in more places than its documentation says, and any alignment. A hook reads what the driver
//! is about to read, and accesses what the driver has just written: if the driver would return, so does the hook; if it
//! would fault, the program faults as without the limiter.

use core::mem;

/// Reads a value; `None` for null.
///
/// # Safety
/// The pointer must be null, or the driver is about to read it or has just written through it.
#[inline]
pub(super) unsafe fn read<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: not null, and otherwise the caller's.
    (!pointer.is_null()).then(|| unsafe { pointer.read_unaligned() })
}

/// The number or handle that the driver has written; 0 if the program passed null.
///
/// # Safety
/// As for [`read`]; `T` must be a number or a handle.
#[inline]
pub(super) unsafe fn written<T: Copy>(pointer: *const T) -> T {
    // SAFETY: the caller's; zero is a number and a handle.
    unsafe { read(pointer).unwrap_or_else(|| mem::zeroed()) }
}

/// The entries of a list; none for null.
///
/// # Safety
/// As for [`read`], for as many entries.
pub(super) unsafe fn list<T: Copy>(list: *const T, count: usize) -> impl Iterator<Item = T> {
    let count = if list.is_null() { 0 } else { count };
    // SAFETY: the caller's; not null.
    (0..count).map(move |at| unsafe { list.add(at).read_unaligned() })
}
