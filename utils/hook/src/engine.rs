//! The interface of every hook engine.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Holds the trampoline of a patched function: the address that runs the original.
///
/// Null until the function is patched. A detour may rely on the slot being set: an engine fills it
/// before the first caller can arrive.
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot(AtomicPtr<c_void>);

impl Slot {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The trampoline's address, or null.
    #[inline]
    #[must_use]
    pub fn get(&self) -> *const c_void {
        // The patch is written after the slot, so a thread that runs the detour sees both.
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the function has been patched.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.get().is_null()
    }

    /// Records the trampoline.
    pub fn set(&self, original: *const c_void) {
        self.0.store(original.cast_mut(), Ordering::Release);
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a function could not be patched. The function is then unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the function at {address:#x} cannot be patched: {reason}")]
pub struct HookError {
    /// The function's address.
    pub address: usize,
    /// The engine's reason.
    pub reason: String,
}

/// Redirects functions. One engine serves functions that are patched together.
pub trait HookEngine {
    /// The engine's name in logs and reports.
    fn name(&self) -> &'static str;

    /// Whether the jump may lead to code of the engine's own, which calls the detour.
    fn goes_through_own_code(&self) -> bool {
        false
    }

    /// Redirects `target` to `detour` for the rest of the process and puts the trampoline into
    /// `slot`.
    ///
    /// # Safety
    /// `target` must be the entry of a function whose first instructions no thread is executing.
    /// `detour` must be a function of the same signature and calling convention. No other thread
    /// may patch in the same page meanwhile.
    ///
    /// # Errors
    /// [`HookError`] if the function's shape does not allow it; the function is left unpatched.
    unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError>;
}
