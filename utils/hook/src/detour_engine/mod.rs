//! The default engine: the `detour` crate, in pure Rust, with a faster equivalent for most functions.

pub(crate) mod code_memory;
pub(crate) mod in_file;
mod jumps;

use crate::code::machine::Unfit;
use crate::{HookEngine, HookError, Mappings, Target};
use code_memory::CodeMemory;
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use detour::RawDetour;
use jumps::Jump;

const BREAKPOINT: &str =
    "its first instructions contain a breakpoint, and its file does not show the original ones";
const NOT_WRITTEN: &str = "cannot overwrite its first instructions";

/// Patches with the processor's near jump. If the detour is out of reach, the jump leads to a relay near the target,
/// which costs 1 ns per call.
#[derive(Debug, Default)]
pub struct DetourEngine {
    memory: CodeMemory,
    prepared: Vec<Prepared>,
}

/// A prepared function, by the way in which it is redirected.
#[derive(Debug)]
enum Prepared {
    /// By a jump of this crate.
    Jump(Jump),
    /// By the `detour` crate, if the first instructions cannot simply be copied. Never dropped, which would undo it.
    Crate(*const c_void, ManuallyDrop<RawDetour>),
}

impl DetourEngine {
    /// An engine that has prepared nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl HookEngine for DetourEngine {
    fn name(&self) -> &'static str {
        "detour"
    }

    unsafe fn prepare(
        &mut self,
        function: &Target,
        mappings: &mut Mappings,
    ) -> Result<*const c_void, HookError> {
        // SAFETY: the caller's.
        match unsafe { Jump::prepare(function, &mut self.memory, mappings) } {
            Ok(jump) => {
                let original = jump.original();
                self.prepared.push(Prepared::Jump(jump));
                Ok(original)
            }
            // The crate would take the breakpoint for one of the function's instructions.
            Err(Unfit::Breakpoint) => Err(HookError::new(function.entry, BREAKPOINT)),
            Err(Unfit::Shape) => {
                // SAFETY: the caller vouches for entry and detour.
                let hook = unsafe { RawDetour::new(function.entry.cast(), function.detour.cast()) }
                    .map_err(|error| HookError::new(function.entry, &error.to_string()))?;
                let original = hook.trampoline().cast();
                self.prepared.push(Prepared::Crate(function.entry, ManuallyDrop::new(hook)));
                Ok(original)
            }
        }
    }

    unsafe fn enable(&mut self) -> Result<(), HookError> {
        let jumps = self.prepared.iter().filter_map(|prepared| match prepared {
            Prepared::Jump(jump) => Some(jump),
            Prepared::Crate(..) => None,
        });
        // SAFETY: the caller vouches that no thread executes the functions' first instructions.
        unsafe { Jump::enable(jumps.collect()) }
            .map_err(|entry| HookError::new(entry, NOT_WRITTEN))?;
        for prepared in &self.prepared {
            if let Prepared::Crate(entry, hook) = prepared {
                // SAFETY: as above.
                unsafe { hook.enable() }
                    .map_err(|error| HookError::new(*entry, &error.to_string()))?;
            }
        }
        Ok(())
    }

    unsafe fn undo(&mut self) {
        for prepared in self.prepared.iter().rev() {
            // SAFETY: as above. What cannot be written back is noticed by the batch.
            unsafe {
                match prepared {
                    Prepared::Jump(jump) => jump.undo(),
                    Prepared::Crate(_, hook) => {
                        let _ = hook.disable();
                    }
                }
            }
        }
    }
}
