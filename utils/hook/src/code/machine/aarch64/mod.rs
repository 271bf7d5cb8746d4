//! aarch64. Each instruction is a 32-bit word, and the jump that overwrites a function is one instruction, so no thread
//! sees half of it.

mod instruction;
mod prologue;
mod publish;

pub(crate) use instruction::{LONGEST_JUMP, target};
pub(crate) use prologue::Prologue;
pub(crate) use publish::publish;

use instruction::branch;

/// Length of a jump.
pub(crate) const JUMP: usize = 4;
/// A jump reaches 128 MiB, minus a margin for the instructions themselves.
pub(crate) const REACH: usize = 0x7ff_0000;
/// The largest page size of any kernel.
pub(crate) const PAGE: usize = 64 * 1024;
/// brk #0
pub(crate) const BREAKPOINT: [u8; JUMP] = 0xd420_0000_u32.to_le_bytes();
/// add x0, x0, #5; ret; udf ...
pub(crate) const ADDS_FIVE: [u8; 16] =
    [0x00, 0x14, 0x00, 0x91, 0xc0, 0x03, 0x5f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0];

/// A jump at `from` to `to`; `None` if the distance is too large.
pub(crate) fn near(from: usize, to: usize) -> Option<[u8; JUMP]> {
    branch(from, to).map(u32::to_le_bytes)
}

/// movz w0, #low; movk w0, #high, lsl 16; ret
pub(crate) fn refusal(answer: u32) -> [u8; 12] {
    let words =
        [0x5280_0000 | (answer & 0xffff) << 5, 0x72a0_0000 | (answer >> 16) << 5, instruction::RET];
    let mut code = [0; 12];
    for (bytes, word) in code.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_knows_its_reach() {
        let from = 0x7f00_0000_0000;
        assert_eq!(near(from, from), Some([0, 0, 0, 0x14]));
        assert_eq!(near(from, from + 8), Some([2, 0, 0, 0x14]));
        assert_eq!(near(from, from - 4), Some([0xff, 0xff, 0xff, 0x17]));
        let furthest = (1 << 27) - 4;
        assert_eq!(near(from, from + furthest), Some([0xff, 0xff, 0xff, 0x15]));
        assert_eq!(near(from, from + furthest + 4), None);
        assert_eq!(near(from, from - (1 << 27)), Some([0, 0, 0, 0x16]));
        assert_eq!(near(from, from - (1 << 27) - 4), None);
        // No instruction begins there.
        assert_eq!(near(from, from + 2), None);
        assert_eq!(near(0, usize::MAX / 2), None);
    }

    #[test]
    fn a_refusal_returns_its_number() {
        let code = refusal(0x1234_0320);
        assert_eq!(code[..4], 0x5280_6400_u32.to_le_bytes());
        assert_eq!(code[4..8], 0x72a2_4680_u32.to_le_bytes());
        assert_eq!(code[8..], instruction::RET.to_le_bytes());
    }
}
