//! What an engine must get right, as cases that run over any engine (x86-64).
//!
//! An engine may refuse a function with an error, but must then leave it unchanged. It must never
//! report a function as patched while callers miss the detour, or while the trampoline does
//! something else than the original did.
//!
//! ```no_run
//! for case in hook::conformance::CASES {
//!     // SAFETY: nothing else in this process patches code meanwhile.
//!     let outcome = unsafe { case.run(hook::engine) };
//!     println!("{}: {outcome:?}", case.name());
//! }
//! ```

use crate::{HookEngine, Slot};
use core::ffi::c_void;
use core::ptr;
use std::sync::{Mutex, PoisonError};

/// Makes the engine under test.
pub type Make = fn() -> Box<dyn HookEngine>;

/// How a case ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The function is patched: callers reach the detour, and the trampoline runs the original.
    Patched,
    /// The engine refused, for this reason, and changed nothing.
    Refused(String),
}

/// How an engine broke the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A patched function gave a wrong result.
    #[error("the {through} gave {result} for {argument}, not {expected}")]
    WrongResult {
        /// Which function was called.
        through: &'static str,
        /// The argument.
        argument: u64,
        /// What came back.
        result: u64,
        /// What should have come back.
        expected: u64,
    },
    /// The engine reported as patched what it had to refuse.
    #[error("what cannot be patched was said to be patched")]
    NotRefused,
    /// The engine refused, but changed the function or the slot.
    #[error("refused ({0}), but not left as it was")]
    NotLeftAlone(String),
    /// No memory could be mapped for the case.
    #[error("no memory for the case at {0:#x}")]
    NoMemory(usize),
}

/// One thing that an engine must get right.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A function of one argument: its code, and its results for 0 and 7.
    Code(&'static [u8], [u64; 2]),
    /// The same, so far from the detour that no near jump reaches it.
    Far(&'static [u8], [u64; 2]),
    /// Any other check.
    Check(unsafe fn(&mut dyn HookEngine) -> Result<Outcome, Failure>),
}

type Function = extern "C" fn(u64) -> u64;

// mov rax, rdi; add rax, 5; ret
const PLAIN: &[u8] = &[0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3];
const PLAIN_RESULTS: [u64; 2] = [5, 12];

/// All cases.
pub const CASES: &[Case] = &[
    Case { name: "a plain prologue", kind: Kind::Code(PLAIN, PLAIN_RESULTS) },
    Case { name: "a target beyond 2 GiB", kind: Kind::Far(PLAIN, PLAIN_RESULTS) },
    Case {
        name: "a prologue with endbr64",
        // endbr64; mov rax, rdi; ret
        kind: Kind::Code(&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8, 0xc3], [0, 7]),
    },
    Case {
        name: "a short function with padding behind it",
        // xor eax, eax; ret; int3 x 3
        kind: Kind::Code(&[0x31, 0xc0, 0xc3, 0xcc, 0xcc, 0xcc], [0, 0]),
    },
    Case {
        name: "an operand relative to the instruction",
        // mov rax, [rip + 1]; ret; 9
        kind: Kind::Code(&[0x48, 0x8b, 0x05, 1, 0, 0, 0, 0xc3, 9, 0, 0, 0, 0, 0, 0, 0], [9, 9]),
    },
    Case {
        name: "a branch in the prologue",
        // test rdi, rdi; je +6; mov eax, 1; ret; mov eax, 2; ret
        kind: Kind::Code(
            &[0x48, 0x85, 0xff, 0x74, 6, 0xb8, 1, 0, 0, 0, 0xc3, 0xb8, 2, 0, 0, 0, 0xc3],
            [2, 1],
        ),
    },
    Case {
        name: "a branch into the prologue",
        // test edi, edi; je +0; mov rax, rdi; ret
        kind: Kind::Code(&[0x85, 0xff, 0x74, 0, 0x48, 0x89, 0xf8, 0xc3], [0, 7]),
    },
    Case {
        name: "a call in the prologue",
        // call +4; inc rax; ret; lea rax, [rdi + 1]; ret
        kind: Kind::Code(
            &[0xe8, 4, 0, 0, 0, 0x48, 0xff, 0xc0, 0xc3, 0x48, 0x8d, 0x47, 1, 0xc3],
            [2, 9],
        ),
    },
    Case {
        name: "a leading jump",
        // jmp +3; int3 x 3; lea rax, [rdi + 1]; ret
        kind: Kind::Code(&[0xeb, 3, 0xcc, 0xcc, 0xcc, 0x48, 0x8d, 0x47, 1, 0xc3], [1, 8]),
    },
    Case {
        name: "a branch that only has a short form",
        // mov cl, 1; jrcxz +6 (never: rcx is set); mov rax, rdi; ret; ...; xor eax, eax; ret
        kind: Kind::Code(
            &[0xb1, 1, 0xe3, 6, 0x48, 0x89, 0xf8, 0xc3, 0xcc, 0xcc, 0x31, 0xc0, 0xc3],
            [0, 7],
        ),
    },
    Case { name: "two detours on one function", kind: Kind::Check(two_detours) },
    Case { name: "twelve arguments", kind: Kind::Check(twelve_arguments) },
    Case { name: "a function that calls itself", kind: Kind::Check(recursion) },
    Case { name: "new code at an address that was patched", kind: Kind::Check(loaded_again) },
    Case { name: "data is refused", kind: Kind::Check(data) },
    Case { name: "a detour that is no code is refused", kind: Kind::Check(detour_is_data) },
];

/// The slots are static, because a detour has to find its trampoline. So one case runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SLOT: Slot = Slot::new();
static SECOND: Slot = Slot::new();

impl Case {
    /// The case's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The code of a function of one argument, and its results for 0 and 7.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> Option<(&'static [u8], [u64; 2])> {
        match self.kind {
            Kind::Code(code, results) => Some((code, results)),
            Kind::Far(..) | Kind::Check(_) => None,
        }
    }

    /// Runs the case over a new engine.
    ///
    /// # Safety
    /// No other thread may patch code meanwhile.
    ///
    /// # Errors
    /// What the engine did wrong.
    pub unsafe fn run(&self, make: Make) -> Result<Outcome, Failure> {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        SLOT.set(ptr::null());
        SECOND.set(ptr::null());
        // SAFETY: the caller's; each function is the case's own.
        unsafe {
            match self.kind {
                Kind::Code(code, results) => patch_code(make().as_mut(), code, 0, results),
                Kind::Far(code, results) => patch_code(make().as_mut(), code, 3 << 41, results),
                Kind::Check(check) => check(make().as_mut()),
            }
        }
    }
}

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

/// Maps `code` into a page of its own, near `hint` if that is free.
fn map(code: &[u8], hint: usize) -> Result<*const c_void, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: anonymous memory of the case's own; nothing is replaced.
    unsafe {
        let start = libc::mmap(hint as *mut c_void, 4096, writable, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(Failure::NoMemory(hint));
        }
        ptr::copy_nonoverlapping(code.as_ptr(), start.cast(), code.len());
        if libc::mprotect(start, 4096, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return Err(Failure::NoMemory(hint));
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

unsafe fn patch_code(
    engine: &mut dyn HookEngine,
    code: &[u8],
    hint: usize,
    results: [u64; 2],
) -> Result<Outcome, Failure> {
    let address = map(code, hint)?;
    // SAFETY: a function of the case's own, of the detour's signature, that nothing else calls.
    unsafe {
        if let Err(error) = engine.install(address, and_hundred as *const c_void, &SLOT) {
            let now = core::slice::from_raw_parts(address.cast::<u8>(), code.len());
            return if now == code && !SLOT.is_set() {
                Ok(Outcome::Refused(error.reason))
            } else {
                Err(Failure::NotLeftAlone(error.reason))
            };
        }
        for (argument, result) in [0, 7].into_iter().zip(results) {
            expect(address, "patched function", argument, result + 100)?;
            expect(SLOT.get(), "way back", argument, result)?;
        }
    }
    Ok(Outcome::Patched)
}

/// Two names in the driver may be one function.
unsafe fn two_detours(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    // SAFETY: as in `patch_code`.
    unsafe {
        if let Err(error) = engine.install(address, and_hundred as *const c_void, &SLOT) {
            return Ok(Outcome::Refused(error.reason));
        }
        if let Err(error) = engine.install(address, and_thousand as *const c_void, &SECOND) {
            // The first detour has to stay in effect.
            expect(address, "patched function", 7, 12 + 100)?;
            return Ok(Outcome::Refused(error.reason));
        }
        expect(address, "function patched twice", 7, 12 + 100 + 1000)?;
    }
    Ok(Outcome::Patched)
}

type Twelve = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

#[allow(clippy::too_many_arguments, reason = "what is tested")]
extern "C" fn before_twelve(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    i: u64,
    j: u64,
    k: u64,
    l: u64,
) -> u64 {
    // SAFETY: the trampoline of a function of this signature.
    let original: Twelve = unsafe { core::mem::transmute(SLOT.get()) };
    original(a, b, c, d, e, f, g, h, i, j, k, l) + 1_000_000_000_000
}

/// Six of the arguments are on the stack.
unsafe fn twelve_arguments(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    // lea rax, [rdi + rsi]; add rax, rdx; rcx; r8; r9; [rsp + 8]; ...; [rsp + 48]; ret: the sum of all
    const SUM: &[u8] = &[
        0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xd0, 0x48, 0x01, 0xc8, 0x4c, 0x01, 0xc0, 0x4c, 0x01,
        0xc8, 0x48, 0x03, 0x44, 0x24, 0x08, 0x48, 0x03, 0x44, 0x24, 0x10, 0x48, 0x03, 0x44, 0x24,
        0x18, 0x48, 0x03, 0x44, 0x24, 0x20, 0x48, 0x03, 0x44, 0x24, 0x28, 0x48, 0x03, 0x44, 0x24,
        0x30, 0xc3,
    ];
    let address = map(SUM, 0)?;
    // SAFETY: one signature, and nothing else calls it.
    let (patched, function) = unsafe {
        let patched = engine.install(address, before_twelve as *const c_void, &SLOT);
        (patched, core::mem::transmute::<*const c_void, Twelve>(address))
    };
    if let Err(error) = patched {
        return Ok(Outcome::Refused(error.reason));
    }
    // Each argument is a digit of the sum.
    let digit = |place: u32| u64::from(place % 9 + 1) * 10_u64.pow(place);
    let argument: [u64; 12] = core::array::from_fn(|place| digit(place as u32));
    let [a, b, c, d, e, f, g, h, i, j, k, l] = argument;
    let result = function(a, b, c, d, e, f, g, h, i, j, k, l);
    let expected = argument.iter().sum::<u64>() + 1_000_000_000_000;
    if result == expected {
        return Ok(Outcome::Patched);
    }
    Err(Failure::WrongResult { through: "patched function", argument: 12, result, expected })
}

unsafe fn recursion(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    // push rbx; mov rbx, rdi; xor eax, eax; test rdi, rdi; je +12; dec rdi; call the entry; add rax, rbx;
    // pop rbx; ret: the sum of all numbers up to the argument
    const SUM: &[u8] = &[
        0x53, 0x48, 0x89, 0xfb, 0x31, 0xc0, 0x48, 0x85, 0xff, 0x74, 0x0b, 0x48, 0xff, 0xcf, 0xe8,
        0xed, 0xff, 0xff, 0xff, 0x48, 0x01, 0xd8, 0x5b, 0xc3,
    ];
    let address = map(SUM, 0)?;
    // SAFETY: as in `patch_code`.
    unsafe {
        expect(address, "function as it was", 4, 10)?;
        if let Err(error) = engine.install(address, and_hundred as *const c_void, &SLOT) {
            return Ok(Outcome::Refused(error.reason));
        }
        // Each of the five calls goes through the detour.
        expect(address, "patched function", 4, 10 + 5 * 100)?;
    }
    Ok(Outcome::Patched)
}

/// A library is unloaded, and another one is loaded at its place.
unsafe fn loaded_again(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 7 << 41)?;
    // SAFETY: as in `patch_code`; the page is the case's own.
    unsafe {
        if let Err(error) = engine.install(address, and_hundred as *const c_void, &SLOT) {
            return Ok(Outcome::Refused(error.reason));
        }
        libc::munmap(address.cast_mut(), 4096);
        if map(PLAIN, address as usize)? != address {
            return Err(Failure::NoMemory(address as usize));
        }
        expect(address, "new function", 7, 12)?;
        if let Err(error) = engine.install(address, and_thousand as *const c_void, &SECOND) {
            return Ok(Outcome::Refused(error.reason));
        }
        expect(address, "new function, patched", 7, 12 + 1000)?;
    }
    Ok(Outcome::Patched)
}

unsafe fn data(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    let data = [0x90_u8; 64];
    // SAFETY: refused before anything is written.
    let result =
        unsafe { engine.install(data.as_ptr().cast(), and_hundred as *const c_void, &SLOT) };
    match result {
        Ok(()) => Err(Failure::NotRefused),
        Err(error) if SLOT.is_set() || data.iter().any(|&byte| byte != 0x90) => {
            Err(Failure::NotLeftAlone(error.reason))
        }
        Err(error) => Ok(Outcome::Refused(error.reason)),
    }
}

unsafe fn detour_is_data(engine: &mut dyn HookEngine) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    let data = [0x90_u8; 64];
    // SAFETY: refused before anything is written.
    unsafe {
        match engine.install(address, data.as_ptr().cast(), &SLOT) {
            Ok(()) => Err(Failure::NotRefused),
            Err(error) => {
                expect(address, "function", 7, 12)?;
                Ok(Outcome::Refused(error.reason))
            }
        }
    }
}
