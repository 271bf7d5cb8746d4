//! Patches functions of loaded libraries in memory.
//!
//! * [`HookEngine`] redirects functions' first instructions. There are two: [`DetourEngine`], the
//!   default, and `FridaEngine` (feature `frida`).
//! * [`PatchBatch`] has an engine patch many functions, all or none, and verifies what it did. [`PatchedEntry`]
//!   looks later whether a patch is still there.
//! * [`loader`] lists the loaded libraries and their functions, and watches for changes.
//! * `conformance` (feature `conformance`) is a suite that runs over any engine: what an engine
//!   must get right.

#[cfg(target_arch = "x86_64")]
mod canary;
#[cfg(any(test, feature = "checks"))]
pub mod checks;
mod code;
#[cfg(all(target_arch = "x86_64", any(test, feature = "conformance")))]
pub mod conformance;
mod detour_engine;
mod engine;
#[cfg(feature = "frida")]
mod frida_engine;
pub mod loader;
mod patch_batch;
mod patched_entry;
mod refuse;

pub use code::mappings::Mappings;
pub use detour_engine::DetourEngine;
pub use engine::{HookEngine, HookError, Slot, Target};
#[cfg(feature = "frida")]
pub use frida_engine::FridaEngine;
pub use patch_batch::{Lost, Patch, PatchBatch, Verified};
pub use patched_entry::PatchedEntry;
pub use refuse::refuse;

/// A new engine of the kind that this build uses, for the functions that are patched next.
#[must_use]
pub fn engine() -> Box<dyn HookEngine> {
    #[cfg(feature = "frida")]
    return Box::new(FridaEngine::new());
    #[cfg(not(feature = "frida"))]
    Box::new(DetourEngine::new())
}
