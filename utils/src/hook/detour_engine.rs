//! The default engine: the `detour` crate, pure Rust.

use super::{HookEngine, HookError, Slot};
use core::ffi::c_void;
use core::mem;
use detour::RawDetour;

/// Patches with a five-byte jump to a relay near the target, 1 ns a call.
#[derive(Debug, Default)]
pub struct DetourEngine;

impl HookEngine for DetourEngine {
    fn name(&self) -> &'static str {
        "detour"
    }

    unsafe fn install(
        &mut self,
        target: *const c_void,
        detour: *const c_void,
        slot: &Slot,
    ) -> Result<(), HookError> {
        let failed = |error: detour::Error| HookError {
            address: target as usize,
            reason: error.to_string(),
        };
        // SAFETY: the caller vouches for target and detour.
        let hook = unsafe { RawDetour::new(target.cast(), detour.cast()) }.map_err(failed)?;
        slot.set(hook.trampoline().cast());
        // SAFETY: the caller vouches that nobody executes the target's first instructions.
        if let Err(error) = unsafe { hook.enable() } {
            slot.set(core::ptr::null());
            return Err(failed(error));
        }
        // Dropping would unpatch; the patch stays for the life of the process.
        mem::forget(hook);
        Ok(())
    }
}
