//! Where a function's first instructions lead.

use super::peek;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

/// A jump, a relay, and what an engine may put between them.
const MOST_JUMPS: usize = 4;
/// The longest of x86-64.
const LONGEST_INSTRUCTION: usize = 15;

/// Where a call goes before it does anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// The function's own code runs: nothing jumps.
    Nowhere,
    /// Jumps lead here.
    To(usize),
}

/// Follows the jumps at `entry` until they reach `wanted`, or end elsewhere.
pub(crate) fn leads(entry: usize, wanted: usize) -> Leads {
    let mut at = entry;
    for _ in 0..MOST_JUMPS {
        match jump(at) {
            Some(to) if to == wanted => return Leads::To(wanted),
            Some(to) => at = to,
            None => break,
        }
    }
    if at == entry { Leads::Nowhere } else { Leads::To(at) }
}

/// Where the code at `address` jumps to, if it does nothing else.
fn jump(address: usize) -> Option<usize> {
    let mut code = [0; 2 * LONGEST_INSTRUCTION];
    let length = peek::read(address, &mut code);
    target(&code[..length], address, |at| {
        let mut target = [0; size_of::<usize>()];
        (peek::read(at, &mut target) == target.len()).then(|| usize::from_le_bytes(target))
    })
}

/// The same of `code`; `word` reads what an indirect jump refers to.
fn target(code: &[u8], address: usize, word: impl Fn(usize) -> Option<usize>) -> Option<usize> {
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

/// Any bytes are a jump or none.
#[cfg(any(test, feature = "checks"))]
pub(crate) fn check(code: &[u8], address: usize) {
    let _ = target(code, address, |_| None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::jump;

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
        // push rbp; jmp near: something is done before. jmp rax. je. call. int3. ret. Cut off.
        assert_eq!(of(&[0x55, 0xe9, 0, 0, 0, 0]), None);
        assert_eq!(of(&[0xff, 0xe0]), None);
        assert_eq!(of(&[0x74, 2]), None);
        assert_eq!(of(&[0xe8, 0, 0, 0, 0]), None);
        assert_eq!([of(&[0xcc]), of(&[0xc3]), of(&[0xe9, 0]), of(&[])], [None; 4]);
    }

    #[test]
    fn jumps_that_lead_into_nothing_or_in_a_circle_end() {
        // jmp to itself
        let code = [0xeb_u8, 0xfe, 0xcc, 0xcc];
        let at = code.as_ptr() as usize;
        assert_eq!(leads(at, 1), Leads::Nowhere);
        assert_eq!(leads(0x10, 1), Leads::Nowhere);
        assert_eq!(leads(usize::MAX - 1, 1), Leads::Nowhere);
    }
}
