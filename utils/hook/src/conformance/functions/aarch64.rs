//! The suite's functions for aarch64.

use crate::Slot;
use crate::conformance::{Case, PLAIN_RESULTS};
use core::ffi::c_void;

/// The bytes of instructions.
const fn code<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    assert!(BYTES == 4 * WORDS, "four bytes are an instruction");
    let mut code = [0; BYTES];
    let mut at = 0;
    while at < BYTES {
        code[at] = words[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    code
}

/// add x0, x0, #5; nop; nop; ret; and padding. Long enough for every jump that an engine may write.
pub(crate) const PLAIN: &[u8] = &code::<8, 32>([
    0x9100_1400,
    0xd503_201f,
    0xd503_201f,
    0xd65f_03c0,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
    0xd503_201f,
]);
/// add x0, x0, #1; ret
pub(crate) const ONE_MORE: &[u8] = &code::<2, 8>([0x9100_0400, 0xd65f_03c0]);
/// add x0, x0, x1; x2; ...; x7; ldp x1, x2, [sp]; add both; ldp x1, x2, [sp, #16]; add both; ret: the sum of all
pub(crate) const SUM_OF_TWELVE: &[u8] = &code::<14, 56>([
    0x8b01_0000,
    0x8b02_0000,
    0x8b03_0000,
    0x8b04_0000,
    0x8b05_0000,
    0x8b06_0000,
    0x8b07_0000,
    0xa940_0be1,
    0x8b01_0000,
    0x8b02_0000,
    0xa941_0be1,
    0x8b01_0000,
    0x8b02_0000,
    0xd65f_03c0,
]);
/// fcvtzs x9, d1; add x0, x0, x9; add x0, x0, x6; add x0, x0, #2; ret: the second floating-point number plus the
/// seventh integer, plus the 2 that x86-64 adds for the number of vector registers
pub(crate) const NUMBERS: &[u8] =
    &code::<5, 20>([0x9e78_0029, 0x8b09_0000, 0x8b06_0000, 0x9100_0800, 0xd65f_03c0]);
/// stp x29, x30, [sp, #-32]!; str x0, [sp, #16]; cbz x0, +12; sub x0, x0, #1; bl the entry; ldr x1, [sp, #16];
/// add x0, x0, x1; ldp x29, x30, [sp], #32; ret: the sum of all numbers up to the argument
pub(crate) const SUM_UP_TO: &[u8] = &code::<9, 36>([
    0xa9be_7bfd,
    0xf900_0be0,
    0xb400_0060,
    0xd100_0400,
    0x97ff_fffc,
    0xf940_0be1,
    0x8b01_0000,
    0xa8c2_7bfd,
    0xd65f_03c0,
]);
/// stp x29, x30, [sp, #-16]!; mov x29, sp; add x0, x0, #8; ldp x29, x30, [sp], #16; ret
pub(crate) const OTHER: &[u8] =
    &code::<5, 20>([0xa9bf_7bfd, 0x9100_03fd, 0x9100_2000, 0xa8c1_7bfd, 0xd65f_03c0]);
/// mov x9, x0; nop; nop; ldxr x1, [x9]; add x1, x1, #1; stlxr w2, x1, [x9]; cbnz w2, -12; yield; ldr x1, [x9, #8];
/// cbz x1, -8; mov x0, #5; ret
pub(crate) const WAIT: &[u8] = &code::<12, 48>([
    0xaa00_03e9,
    0xd503_201f,
    0xd503_201f,
    0xc85f_7d21,
    0x9100_0421,
    0xc802_fd21,
    0x35ff_ffa2,
    0xd503_203f,
    0xf940_0521,
    0xb4ff_ffc1,
    0xd280_00a0,
    0xd65f_03c0,
]);
/// mov w0, #7; ret
pub(crate) const SEVEN: &[u8] = &code::<2, 8>([0x5280_00e0, 0xd65f_03c0]);
/// brk #0; add x0, x0, #5; ret; nop
pub(crate) const HIDDEN: &[u8] =
    &code::<4, 16>([0xd420_0000, 0x9100_1400, 0xd65f_03c0, 0xd503_201f]);
/// ret; and its results for 0 and 7
pub(crate) const SHORT: (&[u8], [u64; 2]) = (&code::<1, 4>([0xd65f_03c0]), [0, 7]);
/// Bytes of [`PLAIN`] without padding.
pub(crate) const PLAIN_LENGTH: usize = 16;
/// A jump is one instruction and never crosses a page.
pub(crate) const ACROSS: usize = 4;

/// ldr x9, the place of the slot; add x0, x0, #100; ldr x9, [x9]; br x9
pub(crate) fn adds_hundred_first(slot: *const Slot) -> Vec<u8> {
    let mut all = code::<4, 16>([0x5800_0089, 0x9101_9000, 0xf940_0129, 0xd61f_0120]).to_vec();
    all.extend((slot as u64).to_le_bytes());
    all
}

/// ldr x17, the address; br x17
pub(crate) fn leading_jump(to: *const c_void) -> Vec<u8> {
    let mut all = code::<2, 8>([0x5800_0051, 0xd61f_0220]).to_vec();
    all.extend((to as u64).to_le_bytes());
    all
}

/// Functions with each kind of instruction that a jump may overwrite.
pub(crate) const CASES: &[Case] = &[
    Case::code("a plain prologue", PLAIN, PLAIN_RESULTS),
    Case::code(
        "a landing pad",
        // bti c; mov x1, x0; add x0, x1, #2; ret
        &code::<4, 16>([0xd503_245f, 0xaa00_03e1, 0x9100_0820, 0xd65f_03c0]),
        [2, 9],
    ),
    Case::code(
        "a signed return address",
        // paciasp; stp x29, x30, [sp, #-16]!; add x0, x0, #2; ldp x29, x30, [sp], #16; autiasp; ret
        &code::<6, 24>([
            0xd503_233f,
            0xa9bf_7bfd,
            0x9100_0800,
            0xa8c1_7bfd,
            0xd503_23bf,
            0xd65f_03c0,
        ]),
        [2, 9],
    ),
    Case::code(
        "a function of one instruction",
        // ret
        &code::<2, 8>([0xd65f_03c0, 0x0000_0000]),
        [0, 7],
    ),
    Case::code(
        "a load of what stands near the instruction",
        // ldr x0, +8; ret; 9
        &code::<4, 16>([0x5800_0040, 0xd65f_03c0, 0x0000_0009, 0x0000_0000]),
        [9, 9],
    ),
    Case::code(
        "the same into a vector register",
        // ldr d0, +16; fcvtzs x1, d0; add x0, x0, x1; ret; 3.0
        &code::<6, 24>([
            0x5c00_0080,
            0x9e78_0001,
            0x8b01_0000,
            0xd65f_03c0,
            0x0000_0000,
            0x4008_0000,
        ]),
        [3, 10],
    ),
    Case::code(
        "an address relative to the instruction",
        // adr x1, +16; ldr x0, [x1]; ret; nop; 9
        &code::<6, 24>([
            0x1000_0081,
            0xf940_0020,
            0xd65f_03c0,
            0xd503_201f,
            0x0000_0009,
            0x0000_0000,
        ]),
        [9, 9],
    ),
    Case::code(
        "an address relative to the page",
        // adrp x1, 0; and x1, x1, #0xfff; add x0, x0, x1; ret
        &code::<4, 16>([0x9000_0001, 0x9240_2c21, 0x8b01_0000, 0xd65f_03c0]),
        [0, 7],
    ),
    Case::code(
        "the prologue of a driver's function",
        // stp x29, x30, [sp, #-32]!; mov x29, sp; stp x19, x20, [sp, #16]; adr x2, +40; ldr w1, [x2]; w2 = 0x1234_5678;
        // cmp w1, w2; cset x1, eq; add x0, x0, x1; ldp x19, x20, [sp, #16]; ldp x29, x30, [sp], #32; ret; 0x1234_5678
        &code::<14, 56>([
            0xa9be_7bfd,
            0x9100_03fd,
            0xa901_53f3,
            0x1000_0142,
            0xb940_0041,
            0x528a_cf02,
            0x72a2_4682,
            0x6b02_003f,
            0x9a9f_17e1,
            0x8b01_0000,
            0xa941_53f3,
            0xa8c2_7bfd,
            0xd65f_03c0,
            0x1234_5678,
        ]),
        [1, 8],
    ),
    Case::code(
        "a branch in the prologue",
        // cbz x0, +12; mov x0, #1; ret; mov x0, #2; ret
        &code::<5, 20>([0xb400_0060, 0xd280_0020, 0xd65f_03c0, 0xd280_0040, 0xd65f_03c0]),
        [2, 1],
    ),
    Case::code(
        "a branch on a bit",
        // tbnz w0, #1, +12; mov x0, #1; ret; mov x0, #2; ret
        &code::<5, 20>([0x3708_0060, 0xd280_0020, 0xd65f_03c0, 0xd280_0040, 0xd65f_03c0]),
        [1, 2],
    ),
    Case::code(
        "a branch on flags to the next instruction",
        // b.eq +4; add x0, x0, #3; ret
        &code::<3, 12>([0x5400_0020, 0x9100_0c00, 0xd65f_03c0]),
        [3, 10],
    ),
    Case::code(
        "a branch into the prologue",
        // cbnz xzr, to itself; ret
        &code::<2, 8>([0xb500_001f, 0xd65f_03c0]),
        [0, 7],
    ),
    Case::code(
        "a loop back to behind the prologue",
        // subs x1, x0, #0; mov x0, #0; mov x2, #3; add x0, x0, x1; subs x2, x2, #1; b.ne -8; ret
        &code::<7, 28>([
            0xf100_0001,
            0xd280_0000,
            0xd280_0062,
            0x8b01_0000,
            0xf100_0442,
            0x54ff_ffc1,
            0xd65f_03c0,
        ]),
        [0, 21],
    ),
    Case::code(
        "a leading jump",
        // b +16; nop; add x0, x0, #1; ret; str x30, [sp, #-16]!; bl -12; ldr x30, [sp], #16; ret
        &code::<8, 32>([
            0x1400_0004,
            0xd503_201f,
            0x9100_0400,
            0xd65f_03c0,
            0xf81f_0ffe,
            0x97ff_fffd,
            0xf841_07fe,
            0xd65f_03c0,
        ]),
        [1, 8],
    ),
    Case::code(
        "a leading jump by an address",
        // adr x1, +12; br x1; nop; add x0, x0, #4; ret
        &code::<5, 20>([0x1000_0061, 0xd61f_0020, 0xd503_201f, 0x9100_1000, 0xd65f_03c0]),
        [4, 11],
    ),
];
