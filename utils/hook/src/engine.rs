//! The interface of hook engines: [`Slot`], [`Target`], [`HookEngine`].

use crate::Mappings;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Holds the trampoline of a patched function: the address that runs the original.
///
/// Null until the function is patched. A detour may rely on its slot: a batch fills it before the first caller can
/// arrive.
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
        // The patch is written after the slot, so a thread in the detour sees both.
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the function has been patched.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.get().is_null()
    }

    /// Sets the trampoline's address.
    pub fn set(&self, original: *const c_void) {
        self.0.store(original.cast_mut(), Ordering::Release);
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why a function could not be patched; it is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the function at {address:#x} cannot be patched: {reason}")]
pub struct HookError {
    /// The function's address.
    pub address: usize,
    /// The engine's reason.
    pub reason: String,
}

impl HookError {
    pub(crate) fn new(function: *const c_void, reason: &str) -> Self {
        Self { address: function as usize, reason: reason.to_owned() }
    }
}

/// A function to be patched, and its detour; both are code.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub(crate) entry: *const c_void,
    pub(crate) detour: *const c_void,
    /// Protection of the function's mapping.
    pub(crate) protection: c_int,
    /// Bytes of that mapping from the entry on.
    pub(crate) left: usize,
}

impl Target {
    /// Checks with the mappings that both addresses are code.
    ///
    /// # Errors
    /// [`HookError`] if one of them is not code.
    pub fn look(
        entry: *const c_void,
        detour: *const c_void,
        mappings: &mut Mappings,
    ) -> Result<Self, HookError> {
        const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;
        let mut code = |at| mappings.at(at as usize).filter(|&(rights, _)| rights & CODE == CODE);
        let refused = |reason: &str| HookError::new(entry, reason);
        let (protection, left) =
            code(entry).ok_or_else(|| refused("it is not in executable memory"))?;
        code(detour).ok_or_else(|| refused("its detour is not in executable memory"))?;
        Ok(Self { entry, detour, protection, left })
    }

    /// The function's address.
    #[must_use]
    pub fn entry(&self) -> *const c_void {
        self.entry
    }

    /// The address to which calls are to be redirected.
    #[must_use]
    pub fn detour(&self) -> *const c_void {
        self.detour
    }
}

/// Redirects functions in two steps. One engine serves the functions of one batch and is then dropped; its patches have
/// to outlast it.
///
/// [`crate::PatchBatch`] drives the steps and verifies every result: all functions are prepared, all slots are filled,
/// then all functions are enabled. If that fails, all are undone.
pub trait HookEngine {
    /// The engine's name in logs and reports.
    fn name(&self) -> &'static str;

    /// Makes the trampoline, the address that runs the original, without any effect on callers. Called once per
    /// function. After [`HookEngine::enable`], the function's entry has to lead to its detour through nothing but
    /// jumps.
    ///
    /// # Safety
    /// No thread may execute the function's first instructions until it is enabled or undone. Its detour must
    /// have the same signature and calling convention. No other thread may patch in the same page meanwhile.
    ///
    /// # Errors
    /// [`HookError`] if the function's shape does not allow it; nothing has changed then.
    unsafe fn prepare(
        &mut self,
        function: &Target,
        mappings: &mut Mappings,
    ) -> Result<*const c_void, HookError>;

    /// Redirects every prepared function to its detour, for the rest of the process.
    ///
    /// # Safety
    /// As for [`HookEngine::prepare`], for each function. The trampolines are where the detours look for them.
    ///
    /// # Errors
    /// [`HookError`] for the first failure. Some functions may be redirected then, and the caller has all undone.
    unsafe fn enable(&mut self) -> Result<(), HookError>;

    /// Restores the first instructions of every prepared function. Trampolines stay, because a thread may be in one.
    ///
    /// # Safety
    /// As for [`HookEngine::prepare`], for each function.
    unsafe fn undo(&mut self);
}
