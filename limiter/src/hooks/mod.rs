//! The patched functions: declarations, grouped as in the driver's documentation, and their handlers. A handler makes
//! no decisions; it asks [`crate::memory`] or [`crate::compute`], and calls the original.

mod arrays;
pub(crate) mod cancellation;
mod context;
mod copies;
#[cfg(test)]
mod documentation;
mod external;
mod graphs;
mod host_memory;
mod image;
mod info;
mod launch;
mod linear;
mod modules;
mod multicast;
mod nvml;
mod nvml_processes;
mod nvml_tables;
mod pointers;
mod pool;
mod shared;
pub(crate) mod tail_jump;
mod virtual_memory;
mod waits;

use crate::process::Process;
use crate::unpatched;
use core::ffi::c_void;
use core::fmt;
use driver::cuda::CuResult;
use driver::nvml::NvmlReturn;
use hook::{PatchedEntry, Slot};
use std::panic::{self, AssertUnwindSafe};

/// The library of a patched function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// `libcuda.so.1`
    Cuda,
    /// `libnvidia-ml.so.1`
    Nvml,
}

impl Library {
    /// The name that programs link against.
    pub(crate) const fn soname(self) -> &'static str {
        match self {
            Self::Cuda => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
        }
    }
}

/// One patched function: a row of the table that `hooks!` generates.
pub(crate) struct Hook {
    /// The library that exports the function.
    pub(crate) library: Library,
    /// Exported name.
    pub(crate) symbol: &'static str,
    /// Section of the API's documentation, and the reason for the patch.
    #[cfg_attr(not(test), allow(dead_code, reason = "for docs/hooks.md"))]
    pub(crate) doc: &'static str,
    /// The detour.
    pub(crate) entry: *const c_void,
    /// The trampoline's address.
    pub(crate) slot: &'static Slot,
    /// The patched code.
    pub(crate) patch: &'static PatchedEntry,
}

// SAFETY: the entry is the address of a function.
unsafe impl Sync for Hook {}

/// The arguments of a handler besides those of the call.
#[derive(Clone, Copy)]
pub(crate) struct Call<F> {
    /// The driver's own function.
    pub(crate) original: F,
    /// The symbol under which the function was called.
    pub(crate) symbol: &'static str,
    /// Whether a null stream means the calling thread's default stream.
    pub(crate) per_thread: bool,
    /// The limiter's state in this process.
    pub(crate) process: &'static Process,
}

impl<F> fmt::Debug for Call<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol)
    }
}

/// A result type with a value for an internal error of the limiter.
pub(crate) trait Outcome {
    /// The result of an internal error.
    const FAILED: Self;
}

impl Outcome for CuResult {
    const FAILED: Self = Self::UNKNOWN;
}

impl Outcome for NvmlReturn {
    const FAILED: Self = Self::UNKNOWN;
}

/// Runs a handler with cancellation deferred. A panic becomes an error of the call.
#[inline]
pub(crate) fn guard<R: Outcome + Copy>(symbol: &'static str, handler: impl FnOnce() -> R) -> R {
    let before = cancellation::put_off();
    let result = caught(symbol, handler);
    cancellation::allow_again(before);
    result
}

/// A frame of its own, because the caller's frame may be unwound.
#[inline(never)]
fn caught<R: Outcome>(symbol: &'static str, handler: impl FnOnce() -> R) -> R {
    panic::catch_unwind(AssertUnwindSafe(handler)).unwrap_or_else(|_| {
        crate::report::once(format_args!("internal error in {symbol}; the call fails"));
        R::FAILED
    })
}

/// Checks whether the patches of a library are still in place: any code in the process can overwrite them. Notes the
/// first lost one. Takes a few microseconds.
///
/// # Safety
/// The library must stay loaded during the call.
pub(crate) unsafe fn look_at_patches(library: Library) {
    if unpatched::failure().is_some() {
        return;
    }
    let mut hooks = all().filter(|hook| hook.library == library);
    // SAFETY: the caller's.
    if let Some(lost) = hooks.find(|hook| !unsafe { hook.patch.is_intact() }) {
        unpatched::note_undone(format!(
            "{}: another tool or another copy of Sluice overwrote the patch, so calls to it may not reach this copy",
            lost.symbol
        ));
        // From now on every launch has to check, even without a compute share.
        crate::compute::set_gated(None);
    }
}

/// Every function that is patched if the driver exports it.
pub(crate) fn all() -> impl Iterator<Item = &'static Hook> {
    [
        context::TABLE,
        info::TABLE,
        linear::TABLE,
        modules::TABLE,
        host_memory::TABLE,
        pool::TABLE,
        virtual_memory::TABLE,
        arrays::TABLE,
        graphs::TABLE,
        multicast::TABLE,
        shared::TABLE,
        external::TABLE,
        launch::TABLE,
        waits::TABLE,
        copies::linear::TABLE,
        copies::shaped::TABLE,
        copies::batched::TABLE,
        nvml::TABLE,
        nvml_processes::TABLE,
        nvml_tables::TABLE,
    ]
    .into_iter()
    .flatten()
}
