//! Decodes the target of a jump.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

/// Two of the longest instructions: a no-operation and the jump.
pub(crate) const LONGEST_JUMP: usize = 2 * 15;

/// The target of the jump in `code` at `address`; `None` if the code does anything else. `word` reads the operand of an
/// indirect jump.
pub(crate) fn target(
    code: &[u8],
    address: usize,
    word: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, code, address as u64, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        match instruction.flow_control() {
            FlowControl::Next
                if matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64) => {}
            FlowControl::UnconditionalBranch if instruction.op0_kind() == OpKind::NearBranch64 => {
                return usize::try_from(instruction.near_branch_target()).ok();
            }
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                return word(usize::try_from(instruction.ip_rel_memory_address()).ok()?);
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::jump;
    use super::*;

    fn of(code: &[u8]) -> Option<usize> {
        target(code, 0x1000, |at| Some(at + 1))
    }

    #[test]
    fn jumps_of_every_form_are_followed_and_nothing_else() {
        assert_eq!(of(&jump::near(0x1000, 0x2345).unwrap()), Some(0x2345));
        assert_eq!(of(&jump::far(0x1234)), Some(0x1007));
        // jmp short +2; endbr64; nop; jmp near
        assert_eq!(of(&[0xeb, 2]), Some(0x1004));
        assert_eq!(of(&[0xf3, 0x0f, 0x1e, 0xfa, 0x90, 0xe9, 0, 0, 0, 0]), Some(0x100a));
        // push rbp; jmp near: not only a jump. jmp rax. je. call. int3. ret. Cut off.
        assert_eq!(of(&[0x55, 0xe9, 0, 0, 0, 0]), None);
        assert_eq!(of(&[0xff, 0xe0]), None);
        assert_eq!(of(&[0x74, 2]), None);
        assert_eq!(of(&[0xe8, 0, 0, 0, 0]), None);
        assert_eq!([of(&[0xcc]), of(&[0xc3]), of(&[0xe9, 0]), of(&[])], [None; 4]);
    }
}
