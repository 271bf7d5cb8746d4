//! The patched functions: declarations, grouped as in the driver's documentation, and handlers.
//!
//! A handler decides nothing itself. It asks [`crate::memory`] or [`crate::compute`], and calls the
//! original.

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

/// Which library a function belongs to.
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

/// A row of the table that `hooks!` makes.
pub(crate) struct Hook {
    /// Where the function lives.
    pub(crate) library: Library,
    /// Its exported name.
    pub(crate) symbol: &'static str,
    /// Why it is patched.
    #[cfg_attr(not(test), allow(dead_code, reason = "for docs/hooks.md"))]
    pub(crate) doc: &'static str,
    /// The detour.
    pub(crate) entry: *const c_void,
    /// Holds the trampoline's address.
    pub(crate) slot: &'static Slot,
    /// What it was patched with.
    pub(crate) patch: &'static PatchedEntry,
}

// SAFETY: the entry is the address of a function.
unsafe impl Sync for Hook {}

/// What a handler gets besides the call's arguments.
#[derive(Clone, Copy)]
pub(crate) struct Call<F> {
    /// The driver's own function.
    pub(crate) original: F,
    /// The name under which it was called.
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

/// A result type with a value for "the limiter itself failed".
pub(crate) trait Outcome {
    /// That value.
    const FAILED: Self;
}

impl Outcome for CuResult {
    const FAILED: Self = Self::UNKNOWN;
}

impl Outcome for NvmlReturn {
    const FAILED: Self = Self::UNKNOWN;
}

/// Runs a handler. The calling thread is not cancelled meanwhile. A panic ends here, as an error of the call.
#[inline]
pub(crate) fn guard<R: Outcome + Copy>(symbol: &'static str, handler: impl FnOnce() -> R) -> R {
    let before = cancellation::put_off();
    let result = caught(symbol, handler);
    cancellation::allow_again(before);
    result
}

/// In a frame of its own, because the caller's frame may be unwound.
#[inline(never)]
fn caught<R: Outcome>(symbol: &'static str, handler: impl FnOnce() -> R) -> R {
    panic::catch_unwind(AssertUnwindSafe(handler)).unwrap_or_else(|_| {
        crate::report::once(format_args!("internal error in {symbol}; the call fails"));
        R::FAILED
    })
}

/// Looks whether the patches of a library are still there: anybody in the process can write over them. The first
/// that is gone is noted. Costs a few microseconds.
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
        // From now on launches must be looked at even if no compute share is set.
        crate::compute::set_gated(None);
    }
}

/// Every function that is patched if it exists.
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
