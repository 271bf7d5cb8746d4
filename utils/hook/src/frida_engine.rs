//! The second engine: frida-gum. Needs its devkit when linking.

use crate::{HookEngine, HookError, Slot};
use core::ffi::c_void;
use frida_gum::{Gum, NativePointer, interceptor::Interceptor};

/// Patches by gum's interceptor: by `replace_fast` if the function is long enough, else by
/// `replace`. Calls through the latter are slower, but it takes shorter functions.
pub struct FridaEngine {
    interceptor: Interceptor,
}

impl FridaEngine {
    /// Starts gum, once per process.
    #[must_use]
    pub fn new() -> Self {
        let gum = Gum::obtain();
        Self { interceptor: Interceptor::obtain(&gum) }
    }
}

impl Default for FridaEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for FridaEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FridaEngine")
    }
}

impl HookEngine for FridaEngine {
    fn name(&self) -> &'static str {
        "frida-gum"
    }

    /// Where `replace` is used.
    fn goes_through_own_code(&self) -> bool {
        true
    }

    unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError> {
        let function = NativePointer(target.cast_mut());
        let replacement = NativePointer(detour.cast_mut());
        let original = self
            .interceptor
            .replace_fast(function, replacement)
            .or_else(|_| {
                self.interceptor.replace(
                    function,
                    replacement,
                    NativePointer(core::ptr::null_mut()),
                )
            })
            .map_err(|error| HookError { address: target as usize, reason: error.to_string() })?;
        // Gum patches and returns the trampoline in one call. No thread can be in the function in
        // between, as the caller vouches.
        slot.set(original.0.cast_const());
        Ok(())
    }
}
