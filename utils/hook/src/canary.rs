//! The canary: a test function of this crate that each batch patches like the others, and then calls, to prove that the
//! engine's patches redirect calls.

use crate::code::machine::{self, ADDS_FIVE};
use crate::code::{follow, forced};
use crate::{HookEngine, HookError, Mappings, Slot, Target};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const LENGTH: usize = 4096;
/// The function's addend.
const ADDED: usize = 5;

type Function = extern "C" fn(&Call) -> usize;

/// The argument of the call.
struct Call {
    slot: Slot,
    arrived: AtomicBool,
}

/// A mapped test function. Stays mapped, because an engine may remember its patches.
#[derive(Debug)]
pub(crate) struct Canary(*const c_void);

extern "C" fn hook(call: &Call) -> usize {
    // A trampoline that led back to the entry would recurse for ever.
    let again = call.arrived.swap(true, Ordering::Relaxed);
    let original = call.slot.get();
    if again || original.is_null() {
        return 0;
    }
    // SAFETY: the trampoline of the function, of this signature.
    let original: Function = unsafe { core::mem::transmute(original) };
    original(call)
}

impl Canary {
    /// Maps the function. Must be called before the engine reads the mappings.
    pub(crate) fn map() -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: anonymous memory of the kernel's choice.
        let map = |rights| unsafe { libc::mmap(ptr::null_mut(), LENGTH, rights, flags, -1, 0) };
        let start = map(libc::PROT_READ | libc::PROT_WRITE);
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: a new page of our own that nothing executes yet.
        unsafe {
            ptr::copy_nonoverlapping(ADDS_FIVE.as_ptr(), start.cast(), ADDS_FIVE.len());
            machine::publish(start.cast(), ADDS_FIVE.len());
            if libc::mprotect(start, LENGTH, CODE) == 0 {
                return Some(Self(start));
            }
            // Memory that was writable may not become executable here.
            libc::munmap(start, LENGTH);
        }
        let start = map(CODE);
        // SAFETY: as above.
        let written =
            start != libc::MAP_FAILED && unsafe { forced::write(start as usize, &ADDS_FIVE) };
        written.then_some(Self(start))
    }

    pub(crate) fn address(&self) -> *const c_void {
        self.0
    }

    /// Adds the function's mapping, which then needs no query.
    pub(crate) fn note(&self, mappings: &mut Mappings) {
        let start = self.0 as usize;
        mappings.note(start..start + LENGTH, CODE);
    }

    /// Has the engine prepare the function like the others.
    pub(crate) fn prepare(
        &self,
        engine: &mut dyn HookEngine,
        mappings: &mut Mappings,
    ) -> Result<Prepared, HookError> {
        let function = Target::look(self.0, hook as *const c_void, mappings)?;
        let call = Box::new(Call { slot: Slot::new(), arrived: AtomicBool::new(false) });
        // SAFETY: a function that nothing else calls; the hook has its signature.
        call.slot.set(unsafe { engine.prepare(&function, mappings) }?);
        Ok(Prepared { address: self.0, call })
    }
}

/// The function after the engine has prepared it.
pub(crate) struct Prepared {
    address: *const c_void,
    call: Box<Call>,
}

impl Prepared {
    /// Calls the function: the call has to arrive at the hook, and the trampoline has to lead back.
    ///
    /// # Errors
    /// [`HookError`] with the condition that does not hold.
    pub(crate) fn check(&self) -> Result<(), HookError> {
        let failed = |how: &str| {
            let reason = format!("a test function patched in the same way {how}");
            HookError::new(self.address, &reason)
        };
        let hook = hook as *const () as usize;
        if follow::leads(self.address as usize, hook) != follow::Leads::To(hook) {
            return Err(failed("is not redirected"));
        }
        // SAFETY: the code above, or the hook; both have this signature.
        let function: Function = unsafe { core::mem::transmute(self.address) };
        let expected = ptr::from_ref(&*self.call) as usize + ADDED;
        let result = function(&self.call);
        if !self.call.arrived.load(Ordering::Relaxed) {
            return Err(failed("does not arrive at its detour"));
        }
        if result == expected { Ok(()) } else { Err(failed("does not lead back to what it was")) }
    }
}
