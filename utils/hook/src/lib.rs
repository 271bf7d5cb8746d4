//! Patches functions of loaded libraries in memory. The limiter uses it for the driver and NVML.
//!
//! * [`HookEngine`] redirects functions at their first instructions. There are two engines: [`DetourEngine`], the
//!   default, and frida-gum (feature `frida`).
//! * [`PatchBatch`] has an engine patch many functions, all or none, and verifies the result. [`PatchedEntry`] checks
//!   later whether a patch is still in place.
//! * [`loader`] lists the loaded libraries and their functions, and watches for changes.
//! * `conformance` (feature `conformance`) is a test suite for any engine.

mod canary;
#[cfg(any(test, feature = "checks"))]
pub mod checks;
mod code;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod detour_engine;
mod engine;
#[cfg(all(target_arch = "x86_64", any(feature = "frida", feature = "simulated-gum", test)))]
#[cfg_attr(
    not(feature = "frida"),
    allow(dead_code, reason = "the tests run it over a simulated gum")
)]
mod frida_engine;
pub mod loader;
#[cfg(test)]
mod made_library;
mod patch_batch;
mod patched_entry;
mod refuse;

pub use code::mappings::Mappings;
pub use detour_engine::DetourEngine;
pub use engine::{HookEngine, HookError, Slot, Target};
pub use patch_batch::{Lost, Patch, PatchBatch, Verified};
pub use patched_entry::PatchedEntry;
pub use refuse::refuse;

#[cfg(all(any(feature = "frida", feature = "simulated-gum"), not(target_arch = "x86_64")))]
compile_error!("frida-gum is built in for x86-64 only");
#[cfg(all(feature = "frida", feature = "simulated-gum"))]
compile_error!("a build has frida-gum or a simulated one, not both");

/// A new engine of the kind that this build uses, for one batch.
#[must_use]
pub fn engine() -> Box<dyn HookEngine> {
    #[cfg(feature = "frida")]
    return frida_engine::engine();
    #[cfg(feature = "simulated-gum")]
    return frida_engine::simulated::engine();
    #[cfg(not(any(feature = "frida", feature = "simulated-gum")))]
    Box::new(DetourEngine::new())
}
