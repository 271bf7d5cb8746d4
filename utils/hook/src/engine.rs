//! What every hook engine does, whatever it is made of.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Where the way back into a patched function is kept: the address that runs the original.
///
/// Null until the function is patched. A detour may rely on it being set, because an engine fills
/// the slot before the first caller can arrive.
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot(AtomicPtr<c_void>);

impl Slot {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The original's address, or null.
    #[inline]
    #[must_use]
    pub fn get(&self) -> *const c_void {
        // A patch is written after the slot; whoever runs the detour sees both.
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the function has been patched.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.get().is_null()
    }

    /// Records the way back.
    pub fn set(&self, original: *const c_void) {
        self.0.store(original.cast_mut(), Ordering::Release);
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a function could not be patched. The function is then as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the function at {address:#x} cannot be patched: {reason}")]
pub struct HookError {
    /// The function's address.
    pub address: usize,
    /// The engine's own words.
    pub reason: String,
}

/// Redirects functions: one engine for those that are patched together.
pub trait HookEngine {
    /// The engine's name in logs and reports.
    fn name(&self) -> &'static str;

    /// Redirects `target` to `detour` for the rest of the process and puts the way back into
    /// `slot`.
    ///
    /// # Safety
    /// `target` must be the entry of a function that no thread is executing the first
    /// instructions of, and `detour` a function of the same signature and calling convention. Nor may
    /// another thread patch in the same page meanwhile.
    ///
    /// # Errors
    /// [`HookError`] where the function's shape does not allow it; it is left unpatched.
    unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError>;
}
