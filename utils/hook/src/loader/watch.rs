//! Watches the loader's list: a callback runs at every change, before a new library's constructors.

use super::notification;
#[cfg(target_arch = "x86_64")]
use super::plain_return::redirect;
use crate::{HookEngine, HookError, PatchBatch, Slot};
use core::ffi::c_void;
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::panic;

/// The reason why changes cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The loader has no notification function, as in a static program.
    #[error("the dynamic loader has no notification function (r_debug.r_brk is null)")]
    NoNotification,
    /// The notification function cannot be patched.
    #[error("the dynamic loader's notification function: {0}")]
    Hook(#[from] HookError),
    /// Only one watch can exist in a process.
    #[error("already watching the dynamic loader")]
    Twice,
}

static ORIGINAL: Slot = Slot::new();
/// The callback's address; 0: none.
static CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// Calls `callback` once now and at every change of the list of libraries. An engine is created only if the loader's
/// notification function does more than return.
///
/// The callback runs with the loader's lock held, often during a `dlopen`. It must not load libraries, wait for other
/// threads or call into a new library. Its panics are caught.
///
/// # Safety
/// Call it from a constructor or while nothing is being loaded, as for [`super::libraries`].
///
/// # Errors
/// [`WatchError`]; nothing is watched then.
pub unsafe fn watch(
    engine: impl FnOnce() -> Box<dyn HookEngine>,
    callback: fn(),
) -> Result<(), WatchError> {
    let (function, _) = notification();
    if function.is_null() {
        return Err(WatchError::NoNotification);
    }
    if CALLBACK.compare_exchange(0, callback as usize, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        return Err(WatchError::Twice);
    }
    let detour = on_change as *const c_void;
    // SAFETY: the function takes no arguments and returns nothing (`_dl_debug_state`), and the
    // caller vouches that nothing is being loaded. Functions are padded to 16 bytes.
    let patched = unsafe {
        if redirect(function, detour) {
            Ok(())
        } else {
            let mut batch = PatchBatch::begin(engine);
            let prepared = batch.prepare(function, detour, &ORIGINAL);
            let lost = batch.enable().lost.into_iter().next();
            prepared.and(lost.map_or(Ok(()), |lost| Err(lost.error)))
        }
    };
    if let Err(error) = patched {
        CALLBACK.store(0, Ordering::Release);
        return Err(error.into());
    }
    callback();
    Ok(())
}

/// One instruction does not reach every target, so the engine patches the function.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn redirect(_: *const c_void, _: *const c_void) -> bool {
    false
}

extern "C" fn on_change() {
    let original = ORIGINAL.get();
    if !original.is_null() {
        // SAFETY: the trampoline of `_dl_debug_state`, of this signature.
        let original: extern "C" fn() = unsafe { mem::transmute(original) };
        original();
    }
    let callback = CALLBACK.load(Ordering::Acquire);
    let (_, consistent) = notification();
    if callback != 0 && consistent {
        // SAFETY: only ever set from a `fn()`.
        let callback: fn() = unsafe { mem::transmute(callback) };
        let _ = panic::catch_unwind(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    static CHANGES: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn every_load_is_noticed() {
        fn count() {
            CHANGES.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: no other test of this crate loads libraries.
        unsafe { watch(engine, count) }.unwrap();
        assert_eq!(CHANGES.load(Ordering::Relaxed), 1);
        // SAFETY: a library of the C library's own.
        let handle = unsafe { libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        assert!(CHANGES.load(Ordering::Relaxed) >= 2);
        // SAFETY: as above.
        assert!(matches!(unsafe { watch(engine, count) }, Err(WatchError::Twice)));
    }
}
