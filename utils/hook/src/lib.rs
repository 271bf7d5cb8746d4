//! Patches functions of loaded libraries in memory.
//!
//! An engine redirects a function's first instructions ([`HookEngine`], one of two engines); [`loader`]
//! finds the functions and notices libraries as they are loaded.

#[cfg(target_arch = "x86_64")]
mod batch;
#[cfg(target_arch = "x86_64")]
mod code_memory;
mod detour_engine;
mod forced;
#[cfg(feature = "frida")]
mod frida_engine;
#[cfg(target_arch = "x86_64")]
mod in_file;
mod jump;
pub mod loader;
#[cfg(target_arch = "x86_64")]
mod mappings;
mod overwrite;
#[cfg(target_arch = "x86_64")]
mod prologue;

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

pub use detour_engine::DetourEngine;
#[cfg(feature = "frida")]
pub use frida_engine::FridaEngine;

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

/// The engine that this build uses, made for the functions that are patched next.
#[must_use]
pub fn engine() -> Box<dyn HookEngine> {
    #[cfg(feature = "frida")]
    return Box::new(FridaEngine::new());
    #[cfg(not(feature = "frida"))]
    Box::new(DetourEngine::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hint::black_box;

    type Add = extern "C" fn(u64, u64) -> u64;

    static SLOT: Slot = Slot::new();

    #[inline(never)]
    extern "C" fn add(a: u64, b: u64) -> u64 {
        // Long enough to patch whatever the optimiser does.
        let mut sum = black_box(a);
        for _ in 0..black_box(1) {
            sum = sum.wrapping_add(black_box(b));
        }
        sum
    }

    extern "C" fn add_and_ten(a: u64, b: u64) -> u64 {
        // SAFETY: the slot holds the way back into `add`, which has this signature.
        let original: Add = unsafe { core::mem::transmute(SLOT.get()) };
        original(a, b) + 10
    }

    #[test]
    fn a_patched_function_runs_the_detour_and_the_way_back_runs_the_original() {
        let target: Add = black_box(add);
        assert_eq!(target(2, 3), 5);
        assert!(!SLOT.is_set());
        // SAFETY: both have the same signature and nobody else calls `add`.
        unsafe {
            engine().install(add as *const c_void, add_and_ten as *const c_void, &SLOT).unwrap();
        }
        assert!(SLOT.is_set());
        assert_eq!(target(2, 3), 15);
    }

    #[test]
    fn data_is_refused_and_left_alone() {
        let data = [0x90_u8; 32];
        let slot = Slot::new();
        // SAFETY: refused before anything is written.
        let result =
            unsafe { engine().install(data.as_ptr().cast(), add_and_ten as *const c_void, &slot) };
        assert!(result.is_err());
        assert!(!slot.is_set());
        assert!(data.iter().all(|&byte| byte == 0x90));
    }
}
