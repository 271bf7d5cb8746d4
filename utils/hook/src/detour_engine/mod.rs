//! The default engine: the `detour` crate, pure Rust.

#[cfg(target_arch = "x86_64")]
mod batch;
#[cfg(target_arch = "x86_64")]
mod code_memory;
#[cfg(target_arch = "x86_64")]
pub(crate) mod in_file;
#[cfg(target_arch = "x86_64")]
pub(crate) mod prologue;

use crate::{HookEngine, HookError, Slot};
#[cfg(target_arch = "x86_64")]
use batch::Batch;
use core::ffi::c_void;
use core::mem;
use detour::RawDetour;
#[cfg(target_arch = "x86_64")]
use prologue::Unfit;

#[cfg(target_arch = "x86_64")]
const BREAKPOINT: &str =
    "a breakpoint is in its first instructions, and its file does not tell what it stands for";

/// Patches with a five-byte jump. If the detour is out of its reach, the jump leads to a relay near
/// the target. A call costs 1 ns more.
#[derive(Debug)]
pub struct DetourEngine {
    /// Patches most functions itself.
    #[cfg(target_arch = "x86_64")]
    batch: Option<Batch>,
}

impl DetourEngine {
    /// Reads the list of mappings. Functions and detours that are mapped later cost more to patch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            batch: Batch::begin(),
        }
    }
}

impl Default for DetourEngine {
    fn default() -> Self {
        Self::new()
    }
}

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
        #[cfg(target_arch = "x86_64")]
        if let Some(batch) = &mut self.batch {
            // SAFETY: the caller's.
            match unsafe { batch.install(target, detour, slot) } {
                Ok(()) => return Ok(()),
                // The crate would take the breakpoint for an instruction of the function.
                Err(Unfit::Breakpoint) => {
                    return Err(HookError {
                        address: target as usize,
                        reason: BREAKPOINT.to_owned(),
                    });
                }
                Err(Unfit::Shape) => {}
            }
        }
        let failed = |error: detour::Error| HookError {
            address: target as usize,
            reason: error.to_string(),
        };
        // SAFETY: the caller vouches for target and detour.
        let hook = unsafe { RawDetour::new(target.cast(), detour.cast()) }.map_err(failed)?;
        slot.set(hook.trampoline().cast());
        // SAFETY: the caller vouches that no thread executes the target's first instructions.
        if let Err(error) = unsafe { hook.enable() } {
            slot.set(core::ptr::null());
            return Err(failed(error));
        }
        // Dropping it would remove the patch, which stays for the life of the process.
        mem::forget(hook);
        Ok(())
    }
}
