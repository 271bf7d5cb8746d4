//! Lifetime of the patched driver and of NVML as loaded libraries.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use hook::loader;

/// The loader's handle of the driver; null once the driver is kept. Static, because libraries come and go before the
/// process's first call, and stay loaded in a forked child.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Whether the driver stays loaded for the rest of the process. Static for the same reason.
static KEPT: AtomicBool = AtomicBool::new(false);

/// The progress of `cuInit`, as [`Start`]. Static for the same reason.
static STARTED: AtomicU8 = AtomicU8::new(Start::Not as u8);

/// Progress of the driver's initialisation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Not,
    Begun,
    Done,
}

/// Records the progress of the driver's initialisation.
pub(crate) fn starts(state: Start) {
    if self::state() != Start::Done {
        STARTED.store(state as u8, Ordering::Release);
    }
}

/// Progress of the driver's initialisation.
pub(crate) fn state() -> Start {
    match STARTED.load(Ordering::Acquire) {
        0 => Start::Not,
        1 => Start::Begun,
        _ => Start::Done,
    }
}

/// The loader's handle of NVML; null once [`nvml_once`] has returned it.
static NVML: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Records that NVML has been patched.
pub(crate) fn nvml_loaded(handle: *const c_void) {
    NVML.store(handle.cast_mut(), Ordering::Release);
}

/// Records that NVML has been unloaded.
pub(crate) fn nvml_unloaded() {
    NVML.store(ptr::null_mut(), Ordering::Release);
}

/// NVML's handle, for the first caller after it was loaded. Must be called from a call into NVML.
pub(crate) fn nvml_once() -> Option<loader::Library> {
    let handle = NVML.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: a library that stays loaded at least as long as it is being called.
    (!handle.is_null()).then(|| unsafe { loader::Library::of(handle) })
}

/// Records that the driver has been patched.
pub(crate) fn loaded(handle: *const c_void) {
    DRIVER.store(handle.cast_mut(), Ordering::Release);
}

/// Records that the driver has been unloaded.
pub(crate) fn unloaded() {
    DRIVER.store(ptr::null_mut(), Ordering::Release);
}

/// Keeps the driver loaded for the rest of the process, because the limiter's threads call it from now on, and a
/// program that unloads the driver does not know of them. Must be called from a call into the driver, without a lock.
pub(crate) fn keep() {
    let handle = DRIVER.swap(ptr::null_mut(), Ordering::AcqRel);
    if handle.is_null() {
        return;
    }
    // SAFETY: a library that stays loaded at least as long as it is being called.
    if unsafe { loader::keep(handle) } {
        KEPT.store(true, Ordering::Release);
    } else {
        tracing::warn!("cannot keep the driver loaded");
    }
}

/// Whether the driver stays loaded even if the program unloads it.
pub(crate) fn is_kept() -> bool {
    KEPT.load(Ordering::Acquire)
}
