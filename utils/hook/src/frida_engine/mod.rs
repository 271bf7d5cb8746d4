//! The second engine: frida-gum. Needs its devkit when linking.
//!
//! Gum alone does not fulfil the contract of [`HookEngine`]:
//!
//! * It undoes all patches when its last reference is dropped. One reference is kept for the life of the process.
//! * Its `replace` leads callers through gum's own code, and lets a function's calls of itself bypass the hook. So only
//!   `replace_fast` is used, whose jump leads to the hook. Functions that it refuses go to the default engine.
//! * It remembers addresses, also those of unloaded libraries. If a new function lies at such an address, gum is first
//!   made to forget the old one ([`Memory`]).
//! * It needs memory that is writable and executable, and aborts the process without it. So such memory is tried first;
//!   if it is refused, the default engine patches everything.
//! * It follows a leading jump and patches the jump's target, which may have other callers; and it takes breakpoints
//!   for instructions. Such functions go to the default engine as well.
//! * It leaves patched pages writable. They are protected again. Three blocks with its trampolines stay writable.
//!
//! Gum is called through [`Interceptor`], so that tests can run all this over a simulated gum.

#[cfg(feature = "frida")]
mod gum;
#[cfg(any(test, feature = "simulated-gum"))]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use crate::code::machine::{Prologue, Unfit, jump};
use crate::code::{follow, overwrite::overwrite, peek};
use crate::{DetourEngine, HookEngine, HookError, Mappings, Target};
use core::ffi::{c_int, c_void};
use core::{fmt, ptr};
#[cfg(feature = "frida")]
pub(crate) use gum::engine;

/// The functions of gum that the engine calls.
pub(crate) trait Interceptor {
    /// Begins a transaction: replacements and reverts take effect at [`Self::end`].
    fn begin(&mut self);

    /// Redirects `function` to `replacement`. Returns the trampoline.
    ///
    /// # Errors
    /// [`Refusal`]; the function is unchanged.
    fn replace_fast(
        &mut self,
        function: *const c_void,
        replacement: *const c_void,
    ) -> Result<*const c_void, Refusal>;

    /// Restores the code of `function` that gum remembers.
    fn revert(&mut self, function: *const c_void);

    /// Ends the transaction.
    fn end(&mut self);
}

/// The reason why gum does not replace a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Gum has replaced a function at this address before.
    Remembered,
    /// The function's code does not allow it.
    Unfit,
}

/// Bytes to save: gum's longest jump has 16 bytes, and the instructions under it may reach further.
const OVERWRITTEN: usize = 32;
const PAGE: usize = 4096;
const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;
const WRITABLE_CODE: c_int = CODE | libc::PROT_WRITE;

/// A function that gum has been told to replace.
#[derive(Debug)]
struct Replaced {
    target: Target,
    before: [u8; OVERWRITTEN],
    memory: Memory,
}

/// Gum's memory of a function's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Gum does not know the address.
    None,
    /// Gum knows another function there. It writes that function's code back before it patches this one, and leaves the
    /// bytes after its jump.
    Stale,
    /// As `Stale`, and gum has refused to patch this function.
    StaleAndUnfit,
}

/// Patches with gum's interceptor, or with the default engine where gum is not suitable.
pub(crate) struct Engine<I: Interceptor> {
    /// `None` if the process may not have the memory that gum needs.
    interceptor: Option<I>,
    other: DetourEngine,
    replaced: Vec<Replaced>,
    /// Whether a transaction is open.
    waits: bool,
    /// Whether the pages of a target were tried.
    tried: bool,
}

impl<I: Interceptor> fmt::Debug for Engine<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this process may have memory that is writable and executable.
fn is_writable_code_allowed() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a page of the kernel's choice, which nobody sees.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), PAGE, WRITABLE_CODE, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return false;
        }
        libc::munmap(page, PAGE);
    }
    true
}

/// Sets the protection of the pages that gum writes for `target`.
///
/// # Safety
/// As for [`HookEngine::prepare`]; the pages must be as executable as before.
unsafe fn protect(target: &Target, protection: c_int) -> bool {
    let first = target.entry as usize / PAGE * PAGE;
    let end = target.entry as usize + target.left.min(OVERWRITTEN);
    // SAFETY: whole pages of the target's mapping.
    unsafe {
        libc::mprotect(first as *mut c_void, end.next_multiple_of(PAGE) - first, protection) == 0
    }
}

impl<I: Interceptor> Engine<I> {
    /// An engine over an interceptor from `obtain`, if the process may have the memory for it.
    pub(crate) fn over(obtain: impl FnOnce() -> I) -> Self {
        let interceptor = is_writable_code_allowed().then(obtain);
        Self {
            interceptor,
            other: DetourEngine::new(),
            replaced: Vec::new(),
            waits: false,
            tried: false,
        }
    }

    /// Has gum replace a function; `None`: left to the default engine.
    unsafe fn replace(&mut self, target: &Target) -> Option<*const c_void> {
        let before = suits(target)?;
        if !self.tried {
            // A system may allow such memory for new mappings, but not for those of files.
            // SAFETY: the caller's; the protection is set back.
            let allowed =
                unsafe { protect(target, WRITABLE_CODE) && protect(target, target.protection) };
            if !allowed {
                self.interceptor = None;
            }
            self.tried = allowed;
        }
        let interceptor = self.interceptor.as_mut()?;
        if !self.waits {
            interceptor.begin();
            self.waits = true;
        }
        let (memory, original) = match interceptor.replace_fast(target.entry, target.detour) {
            Ok(original) => (Memory::None, Some(original)),
            Err(Refusal::Unfit) => return None,
            Err(Refusal::Remembered) => {
                interceptor.revert(target.entry);
                match interceptor.replace_fast(target.entry, target.detour) {
                    Ok(original) => (Memory::Stale, Some(original)),
                    Err(_) => (Memory::StaleAndUnfit, None),
                }
            }
        };
        self.replaced.push(Replaced { target: *target, before, memory });
        original
    }

    /// Ends the transaction, and protects the pages that gum has written.
    unsafe fn end(&mut self) {
        if let Some(interceptor) = self.interceptor.as_mut().filter(|_| self.waits) {
            interceptor.end();
        }
        self.waits = false;
        for replaced in &self.replaced {
            // SAFETY: the caller's.
            unsafe { protect(&replaced.target, replaced.target.protection) };
        }
    }
}

/// The function's first bytes; `None` if gum would not patch the function itself or would misread it.
fn suits(target: &Target) -> Option<[u8; OVERWRITTEN]> {
    let entry = target.entry as usize;
    let mut code = [0; OVERWRITTEN];
    // Gum reads an unknown number of bytes.
    if target.left < 2 * OVERWRITTEN || peek::read(entry, &mut code) < code.len() {
        return None;
    }
    let is_plain = !matches!(Prologue::decode(&code, entry), Err(Unfit::Breakpoint))
        && follow::leads(entry, 0) == follow::Leads::Nowhere;
    is_plain.then_some(code)
}

impl Replaced {
    /// Restores bytes after gum's jump that gum has changed, up to the `next` replaced function.
    unsafe fn mend(&self, next: usize) {
        let mut now = [0; OVERWRITTEN];
        peek::read(self.target.entry as usize, &mut now);
        let length = match now {
            _ if self.memory == Memory::StaleAndUnfit => 0,
            [0xe9, ..] => jump::NEAR,
            [0xff, 0x25, ..] => jump::FAR,
            // The batch will find that it does not lead to the hook.
            _ => return,
        };
        let end = next.saturating_sub(self.target.entry as usize).min(OVERWRITTEN);
        if length < end && now[length..end] != self.before[length..end] {
            let behind = self.target.entry.wrapping_byte_add(length);
            // SAFETY: as much of the target's mapping as was read, which nothing executes yet.
            unsafe { overwrite(behind, &self.before[length..end], self.target.protection) };
        }
    }
}

impl<I: Interceptor> HookEngine for Engine<I> {
    fn name(&self) -> &'static str {
        if self.interceptor.is_some() {
            "frida-gum"
        } else {
            "detour, because this process may have no writable and executable memory"
        }
    }

    unsafe fn prepare(
        &mut self,
        target: &Target,
        mappings: &mut Mappings,
    ) -> Result<*const c_void, HookError> {
        // SAFETY: the caller's.
        unsafe {
            match self.replace(target) {
                Some(original) => Ok(original),
                None => self.other.prepare(target, mappings),
            }
        }
    }

    unsafe fn enable(&mut self) -> Result<(), HookError> {
        // SAFETY: the caller's.
        unsafe {
            self.end();
            let entries = || self.replaced.iter().map(|replaced| replaced.target.entry as usize);
            for replaced in self.replaced.iter().filter(|replaced| replaced.memory != Memory::None)
            {
                let behind = entries().filter(|&entry| entry > replaced.target.entry as usize);
                replaced.mend(behind.min().unwrap_or(usize::MAX));
            }
            self.other.enable()
        }
    }

    unsafe fn undo(&mut self) {
        if let Some(interceptor) = &mut self.interceptor {
            if !self.waits {
                interceptor.begin();
                self.waits = true;
            }
            self.replaced
                .iter()
                .rev()
                .for_each(|replaced| interceptor.revert(replaced.target.entry));
        }
        // SAFETY: the caller's.
        unsafe {
            self.other.undo();
            self.end();
            for Replaced { target, before, .. } in self.replaced.drain(..) {
                // Gum restores the code that it remembers, which may be another function's.
                overwrite(target.entry, &before, target.protection);
            }
        }
    }
}

/// Ends an open transaction, which must not reach the next engine.
impl<I: Interceptor> Drop for Engine<I> {
    fn drop(&mut self) {
        if self.waits {
            // SAFETY: nothing was enabled.
            unsafe { self.undo() };
        }
    }
}
