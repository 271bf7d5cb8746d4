//! Checks later whether a function is still patched.

use crate::Patch;
use crate::code::machine::BREAKPOINT;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// A patched function's address, and its first bytes as verified. Lock-free.
#[derive(Debug)]
pub struct PatchedEntry {
    address: AtomicPtr<u8>,
    code: AtomicU64,
    length: AtomicUsize,
}

impl PatchedEntry {
    /// The entry of a function that is not patched.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            address: AtomicPtr::new(ptr::null_mut()),
            code: AtomicU64::new(0),
            length: AtomicUsize::new(0),
        }
    }

    /// Records a patch.
    pub fn record(&self, patch: &Patch) {
        self.forget();
        self.code.store(u64::from_le_bytes(patch.code), Ordering::Relaxed);
        self.length.store(patch.length, Ordering::Relaxed);
        self.address.store(patch.address as *mut u8, Ordering::Release);
    }

    /// Forgets the patch, after the function was unloaded.
    pub fn forget(&self) {
        self.address.store(ptr::null_mut(), Ordering::Release);
    }

    /// The function's address; null if it is not patched.
    #[must_use]
    pub fn address(&self) -> *const c_void {
        self.address.load(Ordering::Acquire).cast()
    }

    /// Whether the patch is in place. True for a function that was not patched.
    ///
    /// # Safety
    /// The function's library must stay loaded during the call.
    #[must_use]
    pub unsafe fn is_intact(&self) -> bool {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            return true;
        }
        let code = self.code.load(Ordering::Relaxed).to_le_bytes();
        let length = self.length.load(Ordering::Relaxed).min(code.len());
        let mut now = [0; size_of::<u64>()];
        for (index, byte) in now[..length].iter_mut().enumerate() {
            // SAFETY: the first bytes of a loaded function, which were read when it was patched.
            *byte = unsafe { ptr::read_volatile(address.add(index)) };
        }
        // A debugger removes its breakpoint while the instruction is executed.
        let first = BREAKPOINT.len().min(length);
        now[first..length] == code[first..length]
            && (now[..first] == code[..first] || now[..first] == BREAKPOINT)
    }
}

impl Default for PatchedEntry {
    fn default() -> Self {
        Self::new()
    }
}
