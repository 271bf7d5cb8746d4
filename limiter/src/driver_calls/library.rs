//! The patched driver, and NVML, as loaded libraries.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use hook::loader;

/// The loader's handle; null once the library is kept. A static, because libraries come and go before the
/// process's first call, and stay loaded in a forked child.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Whether the driver stays loaded. A static for the same reason.
static KEPT: AtomicBool = AtomicBool::new(false);

/// How far `cuInit` is. A static for the same reason.
static STARTED: AtomicU8 = AtomicU8::new(Start::Not as u8);

/// How far the driver's start is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Not,
    Begun,
    Done,
}

/// The driver starts, has started, or has failed to.
pub(crate) fn starts(state: Start) {
    if self::state() != Start::Done {
        STARTED.store(state as u8, Ordering::Release);
    }
}

/// How far the driver's start is.
pub(crate) fn state() -> Start {
    match STARTED.load(Ordering::Acquire) {
        0 => Start::Not,
        1 => Start::Begun,
        _ => Start::Done,
    }
}

/// That of NVML; null once its calls have been led elsewhere.
static NVML: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// NVML has been patched.
pub(crate) fn nvml_loaded(handle: *const c_void) {
    NVML.store(handle.cast_mut(), Ordering::Release);
}

/// NVML has been unloaded.
pub(crate) fn nvml_unloaded() {
    NVML.store(ptr::null_mut(), Ordering::Release);
}

/// NVML, for the first that asks after it was loaded. Must be called from a call into NVML.
pub(crate) fn nvml_once() -> Option<loader::Library> {
    let handle = NVML.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: a library that stays loaded at least as long as it is being called.
    (!handle.is_null()).then(|| unsafe { loader::Library::of(handle) })
}

/// The driver has been patched.
pub(crate) fn loaded(handle: *const c_void) {
    DRIVER.store(handle.cast_mut(), Ordering::Release);
}

/// The driver has been unloaded.
pub(crate) fn unloaded() {
    DRIVER.store(ptr::null_mut(), Ordering::Release);
}

/// Keeps the driver loaded for the rest of the process. From now on the limiter's threads call it, and a
/// program that unloads it does not know of them. Must be called from a call into the driver, without a lock.
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

/// Whether the driver stays loaded, whatever the program does.
pub(crate) fn is_kept() -> bool {
    KEPT.load(Ordering::Acquire)
}
