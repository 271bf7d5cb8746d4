//! x86-64.

pub(crate) mod jump;
mod prologue;
mod target;

pub(crate) use jump::{NEAR as JUMP, near};
pub(crate) use prologue::Prologue;
pub(crate) use target::{LONGEST_JUMP, target};

/// A near jump, or a RIP-relative operand, reaches 2 GiB, minus a margin for the instructions themselves.
pub(crate) const REACH: usize = 0x7ff0_0000;
/// The only page size.
pub(crate) const PAGE: usize = 4096;
/// int3
pub(crate) const BREAKPOINT: [u8; 1] = [0xcc];
/// mov rax, rdi; add rax, 5; ret; int3 ...
pub(crate) const ADDS_FIVE: [u8; 16] =
    [0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];

/// mov eax, answer; ret
pub(crate) fn refusal(answer: u32) -> [u8; 6] {
    let number = answer.to_le_bytes();
    [0xb8, number[0], number[1], number[2], number[3], 0xc3]
}

/// Nothing to do: caches are coherent.
pub(crate) fn publish(_at: *const u8, _length: usize) {}
