//! The contract of hook engines, as cases that run over any engine.
//!
//! Each case patches functions in a [`PatchBatch`], as programs do, and calls them when the engine is gone. An engine
//! may refuse a function with an error, but must then leave it unchanged. It must never report a function as patched
//! while callers miss the detour or the trampoline differs from the original. Callers must notice nothing before a
//! function is enabled, and code must not be writable afterwards.
//!
//! ```no_run
//! for case in hook::conformance::cases() {
//!     // SAFETY: nothing else in this process patches code meanwhile.
//!     let outcome = unsafe { case.run(hook::engine) };
//!     println!("{}: {outcome:?}", case.name());
//! }
//! ```

mod calls;
mod company;
mod denied;
mod functions;
mod place;

use crate::code::machine::{self, PAGE};
use crate::{HookEngine, Mappings, PatchBatch, Slot};
use core::ffi::c_void;
use core::ptr;
use std::sync::{Mutex, PoisonError};

/// Creates the engine under test.
pub type Make = fn() -> Box<dyn HookEngine>;

/// A correct result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The function is patched: callers reach the detour, and the trampoline runs the original.
    Patched,
    /// The engine refused, for this reason, and changed nothing.
    Refused(String),
}

/// A violation of the contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A function gave a wrong result.
    #[error("wrong result of the {through} for {argument}: {result}; expected {expected}")]
    WrongResult {
        /// The called function.
        through: &'static str,
        /// The argument.
        argument: u64,
        /// The result.
        result: u64,
        /// The right result.
        expected: u64,
    },
    /// The engine reported success for a function that it has to refuse.
    #[error("reported as patched, although it cannot be patched")]
    NotRefused,
    /// The engine refused, but changed the function or the slot.
    #[error("refused ({0}), but changed")]
    NotLeftAlone(String),
    /// The function was changed before it was enabled.
    #[error("changed before it was enabled")]
    TooEarly,
    /// The batch found the function unpatched, although the engine reported success.
    #[error("reported as patched, but is not: {0}")]
    Lost(String),
    /// Undoing did not restore a function.
    #[error("not restored when undone")]
    NotUndone,
    /// Code is writable that was not writable before.
    #[error("the code at {0:#x} is writable afterwards")]
    Writable(usize),
    /// The case's child process ended unexpectedly.
    #[error("the child process ended with {0}")]
    Ended(String),
    /// The case could not be set up: no memory at this address, no file, or no process.
    #[error("cannot set up the case: nothing available at {0:#x}")]
    NotMade(usize),
}

/// One case of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    check: Check,
    must_refuse: bool,
}

#[derive(Clone, Copy, Debug)]
enum Check {
    /// A function of one argument: its code, and its results for 0 and 7.
    Code(&'static [u8], [u64; 2]),
    /// Any other.
    Other(unsafe fn(Make) -> Result<Outcome, Failure>),
}

impl Case {
    const fn code(name: &'static str, code: &'static [u8], results: [u64; 2]) -> Self {
        Self { name, check: Check::Code(code, results), must_refuse: false }
    }

    const fn other(name: &'static str, check: unsafe fn(Make) -> Result<Outcome, Failure>) -> Self {
        Self { name, check: Check::Other(check), must_refuse: false }
    }

    const fn refused(
        name: &'static str,
        check: unsafe fn(Make) -> Result<Outcome, Failure>,
    ) -> Self {
        Self { name, check: Check::Other(check), must_refuse: true }
    }

    /// The case's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether a refusal is the only correct outcome.
    #[must_use]
    pub const fn must_refuse(&self) -> bool {
        self.must_refuse
    }

    /// The code of a function of one argument, and its results for 0 and 7.
    #[cfg(test)]
    pub(crate) const fn function(&self) -> Option<(&'static [u8], [u64; 2])> {
        match self.check {
            Check::Code(code, results) => Some((code, results)),
            Check::Other(_) => None,
        }
    }

    /// Runs the case with engines from `make`.
    ///
    /// # Safety
    /// No other thread may patch code meanwhile.
    ///
    /// # Errors
    /// The engine's violation of the contract.
    pub unsafe fn run(&self, make: Make) -> Result<Outcome, Failure> {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        SLOT.set(ptr::null());
        SECOND.set(ptr::null());
        // SAFETY: the caller's; each function is the case's own.
        let outcome = unsafe {
            match self.check {
                Check::Code(code, results) => function(make, map(code, 0)?, results),
                Check::Other(check) => check(make),
            }
        }?;
        if self.must_refuse && outcome == Outcome::Patched {
            return Err(Failure::NotRefused);
        }
        Ok(outcome)
    }
}

/// All cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [functions::CASES, calls::CASES, place::CASES, company::CASES, denied::CASES]
        .into_iter()
        .flatten()
}

/// Slots are static, because a detour has to find its trampoline. So only one case runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SLOT: Slot = Slot::new();
static SECOND: Slot = Slot::new();

type Function = extern "C" fn(u64) -> u64;

const PLAIN_RESULTS: [u64; 2] = [5, 12];

extern "C" fn and_hundred(argument: u64) -> u64 {
    // SAFETY: the trampoline of a function of this signature.
    let original: Function = unsafe { core::mem::transmute(SLOT.get()) };
    original(argument) + 100
}

extern "C" fn and_thousand(argument: u64) -> u64 {
    // SAFETY: as above.
    let original: Function = unsafe { core::mem::transmute(SECOND.get()) };
    original(argument) + 1000
}

/// Maps `code` into pages of its own, near `hint` if those are free.
fn map(code: &[u8], hint: usize) -> Result<*const c_void, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let length = code.len().next_multiple_of(PAGE);
    // SAFETY: anonymous memory of the case's own; nothing is replaced.
    unsafe {
        let start = libc::mmap(hint as *mut c_void, length, writable, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(Failure::NotMade(hint));
        }
        ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), code.len());
        machine::publish(start.cast(), code.len());
        if libc::mprotect(start, length, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return Err(Failure::NotMade(hint));
        }
        Ok(start)
    }
}

/// # Safety
/// `function` must be code of this signature.
unsafe fn expect(
    function: *const c_void,
    through: &'static str,
    argument: u64,
    expected: u64,
) -> Result<(), Failure> {
    // SAFETY: the caller's.
    let function: Function = unsafe { core::mem::transmute(function) };
    let result = function(argument);
    if result == expected {
        Ok(())
    } else {
        Err(Failure::WrongResult { through, argument, result, expected })
    }
}

/// The present first bytes of code.
///
/// # Safety
/// At least that many bytes must be mapped there.
unsafe fn first_bytes(code: *const c_void) -> [u8; 16] {
    // SAFETY: the caller's.
    unsafe { ptr::read_volatile(code.cast()) }
}

/// Fails if code that is being executed is writable.
fn check_rights(code: *const c_void) -> Result<(), Failure> {
    let rights = Mappings::now().and_then(|mut mappings| mappings.at(code as usize));
    match rights {
        Some((rights, _)) if rights & libc::PROT_WRITE == 0 => Ok(()),
        _ => Err(Failure::Writable(code as usize)),
    }
}

/// Patches functions in one batch: all or none.
///
/// # Safety
/// The case's own functions, with at least 16 mapped bytes and their detours' signatures; nothing executes their first
/// instructions.
unsafe fn patch(
    make: Make,
    functions: &[(*const c_void, *const c_void, &Slot)],
) -> Result<Outcome, Failure> {
    let mut batch = PatchBatch::begin(make);
    for &(entry, detour, slot) in functions {
        let prepared = slot.get();
        // SAFETY: the caller's.
        let (before, outcome, after) = unsafe {
            let before = first_bytes(entry);
            let outcome = batch.prepare(entry, detour, slot);
            (before, outcome, first_bytes(entry))
        };
        if let Err(error) = outcome {
            return if before == after && slot.get() == prepared {
                Ok(Outcome::Refused(error.reason))
            } else {
                Err(Failure::NotLeftAlone(error.reason))
            };
        }
        if before != after || !slot.is_set() {
            return Err(Failure::TooEarly);
        }
    }
    if let Some(lost) = batch.enable().lost.into_iter().next() {
        return Err(Failure::Lost(lost.error.reason));
    }
    functions.iter().try_for_each(|&(entry, ..)| check_rights(entry))?;
    Ok(Outcome::Patched)
}

/// Patches a function of one argument, whose results for 0 and 7 are known, and calls it.
///
/// # Safety
/// As for [`patch`].
unsafe fn function(
    make: Make,
    address: *const c_void,
    results: [u64; 2],
) -> Result<Outcome, Failure> {
    // SAFETY: the caller's.
    unsafe {
        let outcome = patch(make, &[(address, and_hundred as *const c_void, &SLOT)])?;
        let added = if outcome == Outcome::Patched { 100 } else { 0 };
        for (argument, result) in [0, 7].into_iter().zip(results) {
            expect(address, "function", argument, result + added)?;
            if outcome == Outcome::Patched {
                expect(SLOT.get(), "way back", argument, result)?;
            }
        }
        Ok(outcome)
    }
}
