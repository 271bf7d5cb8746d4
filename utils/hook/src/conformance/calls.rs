//! Cases about arguments in registers and on the stack, and about recursion.

use super::functions::{NUMBERS, PLAIN, SUM_OF_TWELVE, SUM_UP_TO, adds_hundred_first};
use super::{Case, Failure, Function, Make, Outcome, SLOT, and_hundred, expect, map, patch};
use core::ffi::c_void;

pub(super) const CASES: &[Case] = &[
    Case::other("twelve arguments", twelve_arguments),
    Case::other("any number of arguments", varargs),
    Case::other("a function that calls itself", recursion),
    Case::other("a detour that calls the function again", called_again),
];

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
unsafe fn twelve_arguments(make: Make) -> Result<Outcome, Failure> {
    let address = map(SUM_OF_TWELVE, 0)?;
    // SAFETY: one signature, and nothing else calls it.
    let (outcome, function) = unsafe {
        let outcome = patch(make, &[(address, before_twelve as *const c_void, &SLOT)])?;
        (outcome, core::mem::transmute::<*const c_void, Twelve>(address))
    };
    let added = if outcome == Outcome::Patched { 1_000_000_000_000 } else { 0 };
    // Each argument is a digit of the sum.
    let digit = |place: u32| u64::from(place % 9 + 1) * 10_u64.pow(place);
    let argument: [u64; 12] = core::array::from_fn(|place| digit(place as u32));
    let [a, b, c, d, e, f, g, h, i, j, k, l] = argument;
    let result = function(a, b, c, d, e, f, g, h, i, j, k, l);
    let expected = argument.iter().sum::<u64>() + added;
    if result == expected {
        return Ok(outcome);
    }
    Err(Failure::WrongResult { through: "function", argument: 12, result, expected })
}

/// A caller says in `al` how many of the arguments are in vector registers.
unsafe fn varargs(make: Make) -> Result<Outcome, Failure> {
    type Numbers = unsafe extern "C" fn(u64, ...) -> u64;
    let address = map(NUMBERS, 0)?;
    let detour = map(&adds_hundred_first(&raw const SLOT), 0)?;
    // SAFETY: the detour is code for this signature: it changes an argument and a register that calls do not keep.
    let (outcome, result) = unsafe {
        let outcome = patch(make, &[(address, detour, &SLOT)])?;
        let function: Numbers = core::mem::transmute(address);
        // Five integers fill the registers; the sixth is on the stack.
        (outcome, function(1, 2_u64, 1.5, 3_u64, 40.5, 4_u64, 5_u64, 6_u64, 700_u64))
    };
    let added = if outcome == Outcome::Patched { 100 } else { 0 };
    let expected = 2 + 40 + 1 + 700 + added;
    if result == expected {
        return Ok(outcome);
    }
    Err(Failure::WrongResult { through: "function", argument: 1, result, expected })
}

unsafe fn recursion(make: Make) -> Result<Outcome, Failure> {
    let address = map(SUM_UP_TO, 0)?;
    // SAFETY: a function of the case's own, of the detour's signature, that nothing else calls.
    unsafe {
        expect(address, "function as it was", 4, 10)?;
        let outcome = patch(make, &[(address, and_hundred as *const c_void, &SLOT)])?;
        // Each of the five calls goes through the detour.
        let added = if outcome == Outcome::Patched { 500 } else { 0 };
        expect(address, "function", 4, 10 + added)?;
        Ok(outcome)
    }
}

/// The address of the function in [`called_again`].
static FUNCTION: crate::Slot = crate::Slot::new();

extern "C" fn once_more(argument: u64) -> u64 {
    let next = if argument == 0 { SLOT.get() } else { FUNCTION.get() };
    // SAFETY: the function or its trampoline, of this signature.
    let next: Function = unsafe { core::mem::transmute(next) };
    next(argument.saturating_sub(1)) + 100
}

/// A hook that calls a driver which calls its own exported functions.
unsafe fn called_again(make: Make) -> Result<Outcome, Failure> {
    let address = map(PLAIN, 0)?;
    FUNCTION.set(address);
    // SAFETY: a function of the case's own, of the detour's signature, that nothing else calls.
    unsafe {
        let outcome = patch(make, &[(address, once_more as *const c_void, &SLOT)])?;
        let expected = if outcome == Outcome::Patched { 5 + 4 * 100 } else { 8 };
        expect(address, "function", 3, expected)?;
        Ok(outcome)
    }
}
