//! What a call carries: arguments in registers and on the stack, calls of itself.

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
    // lea rax, [rdi + rsi]; add rax, rdx; rcx; r8; r9; [rsp + 8]; ...; [rsp + 48]; ret: the sum of all
    const SUM: &[u8] = &[
        0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xd0, 0x48, 0x01, 0xc8, 0x4c, 0x01, 0xc0, 0x4c, 0x01,
        0xc8, 0x48, 0x03, 0x44, 0x24, 0x08, 0x48, 0x03, 0x44, 0x24, 0x10, 0x48, 0x03, 0x44, 0x24,
        0x18, 0x48, 0x03, 0x44, 0x24, 0x20, 0x48, 0x03, 0x44, 0x24, 0x28, 0x48, 0x03, 0x44, 0x24,
        0x30, 0xc3,
    ];
    let address = map(SUM, 0)?;
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
    // movzx eax, al; cvttsd2si rcx, xmm1; add rax, rcx; add rax, rdi; add rax, [rsp + 8]; ret
    const NUMBERS: &[u8] = &[
        0x0f, 0xb6, 0xc0, 0xf2, 0x48, 0x0f, 0x2c, 0xc9, 0x48, 0x01, 0xc8, 0x48, 0x01, 0xf8, 0x48,
        0x03, 0x44, 0x24, 0x08, 0xc3,
    ];
    type Numbers = unsafe extern "C" fn(u64, ...) -> u64;
    let address = map(NUMBERS, 0)?;
    // mov r11, the place of the slot; add rdi, 100; jmp qword ptr [r11]
    let mut detour = vec![0x49, 0xbb];
    detour.extend((core::ptr::from_ref(&SLOT) as u64).to_le_bytes());
    detour.extend([0x48, 0x83, 0xc7, 100, 0x41, 0xff, 0x23]);
    let detour = map(&detour, 0)?;
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
    // push rbx; mov rbx, rdi; xor eax, eax; test rdi, rdi; je +12; dec rdi; call the entry; add rax, rbx;
    // pop rbx; ret: the sum of all numbers up to the argument
    const SUM: &[u8] = &[
        0x53, 0x48, 0x89, 0xfb, 0x31, 0xc0, 0x48, 0x85, 0xff, 0x74, 0x0b, 0x48, 0xff, 0xcf, 0xe8,
        0xed, 0xff, 0xff, 0xff, 0x48, 0x01, 0xd8, 0x5b, 0xc3,
    ];
    let address = map(SUM, 0)?;
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

/// As where a hook calls the driver, which calls its own exported functions.
unsafe fn called_again(make: Make) -> Result<Outcome, Failure> {
    let address = map(super::PLAIN, 0)?;
    FUNCTION.set(address);
    // SAFETY: a function of the case's own, of the detour's signature, that nothing else calls.
    unsafe {
        let outcome = patch(make, &[(address, once_more as *const c_void, &SLOT)])?;
        let expected = if outcome == Outcome::Patched { 5 + 4 * 100 } else { 8 };
        expect(address, "function", 3, expected)?;
        Ok(outcome)
    }
}
