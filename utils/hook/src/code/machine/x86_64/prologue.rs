//! A function's first instructions: those that a jump overwrites, and their equivalent elsewhere.

use super::jump::{self, NEAR};
use crate::code::machine::Unfit;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock, Mnemonic, OpKind,
};

/// The instructions at a function's entry that a jump overwrites.
#[derive(Debug)]
pub(crate) struct Prologue {
    instructions: Vec<Instruction>,
    /// The address of the instruction after them; `None` if they return or jump away.
    rest: Option<u64>,
}

impl Prologue {
    /// Decodes `code`, the beginning of the function at `entry`. Fails if no copy elsewhere would do the same: the
    /// function is too short, or refers to the overwritten bytes.
    pub(crate) fn decode(code: &[u8], entry: usize) -> Result<Self, Unfit> {
        let entry = entry as u64;
        let mut decoder = Decoder::with_ip(64, code, entry, DecoderOptions::NONE);
        let mut instructions = Vec::new();
        let mut left = false;
        while decoder.position() < NEAR {
            let instruction = decoder.can_decode().then(|| decoder.decode()).ok_or(Unfit::Shape)?;
            if instruction.is_invalid() {
                return Err(Unfit::Shape);
            }
            if left {
                // After the function's end, only padding may be overwritten.
                if !matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
                    return Err(Unfit::Shape);
                }
                continue;
            }
            if instruction.mnemonic() == Mnemonic::Int3 {
                return Err(Unfit::Breakpoint);
            }
            left = matches!(
                instruction.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Exception
            );
            instructions.push(instruction);
        }
        let overwritten = entry..decoder.ip();
        let refers = |instruction: &Instruction| {
            let to = match instruction.op0_kind() {
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                    instruction.near_branch_target()
                }
                _ if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
                _ => return false,
            };
            overwritten.contains(&to)
        };
        if instructions.iter().any(refers) {
            return Err(Unfit::Shape);
        }
        Ok(Self { instructions, rest: (!left).then_some(decoder.ip()) })
    }

    /// Offset of the jump from the entry, in bytes.
    pub(crate) fn offset(&self) -> usize {
        0
    }

    /// Code to which a jump at `from` has to lead, if it cannot reach `detour` itself.
    pub(crate) fn relay(&self, from: usize, detour: usize) -> Option<Vec<u8>> {
        jump::near(from, detour).is_none().then(|| jump::far(detour).to_vec())
    }

    /// Equivalent code for the address `to`, which continues with the rest of the function. `None` if an instruction
    /// cannot work from there.
    pub(crate) fn relocate(&self, to: usize) -> Option<Vec<u8>> {
        let mut instructions = self.instructions.clone();
        if let Some(rest) = self.rest {
            instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, rest).ok()?);
        }
        let block = InstructionBlock::new(&instructions, to as u64);
        let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?;
        Some(encoded.code_buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::LONGEST;
    use crate::loader;
    use detour::RawDetour;
    use std::collections::BTreeSet;

    const ENTRY: usize = 0x7f00_0000_1000;

    fn taken(code: &[u8]) -> bool {
        Prologue::decode(code, ENTRY).is_ok()
    }

    #[test]
    fn plain_prologues_are_taken() {
        // push rbp; mov rbp, rsp; sub rsp, 16
        assert!(taken(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10]));
        // endbr64; xor eax, eax; ret
        assert!(taken(&[0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xc0, 0xc3]));
        // jmp far away
        assert!(taken(&[0xe9, 0, 0, 1, 0]));
        // mov rax, [rip + 0x100]
        assert!(taken(&[0x48, 0x8b, 0x05, 0, 1, 0, 0]));
    }

    #[test]
    fn short_functions_need_padding_behind_them() {
        // xor eax, eax; ret; int3; int3
        assert!(taken(&[0x31, 0xc0, 0xc3, 0xcc, 0xcc]));
        // ret; nop dword ptr [rax]; nop
        assert!(taken(&[0xc3, 0x0f, 0x1f, 0x00, 0x90]));
        // xor eax, eax; ret; push rbp: the next function
        assert!(!taken(&[0x31, 0xc0, 0xc3, 0x55, 0x48, 0x89, 0xe5]));
        // ud2; push rbp: the next function
        assert!(!taken(&[0x0f, 0x0b, 0x55, 0x48, 0x89, 0xe5]));
        // jmp rax; int3; push rbp
        assert!(!taken(&[0xff, 0xe0, 0xcc, 0x55, 0x48, 0x89, 0xe5]));
    }

    #[test]
    fn what_refers_to_itself_is_not_taken() {
        // test edi, edi; je to the nop; nop
        assert!(!taken(&[0x85, 0xff, 0x74, 0x00, 0x90, 0x90]));
        // jmp to itself
        assert!(!taken(&[0xeb, 0xfe, 0xcc, 0xcc, 0xcc]));
        // mov eax, [rip - 6]: its own first bytes
        assert!(!taken(&[0x8b, 0x05, 0xfa, 0xff, 0xff, 0xff]));
        // nop; loop to the entry; nop; nop
        assert!(!taken(&[0x90, 0xe2, 0xfd, 0x90, 0x90]));
    }

    #[test]
    fn a_breakpoint_is_no_instruction_of_the_function() {
        // int3 in the place of push rbp; mov rbp, rsp; sub rsp, 16
        let code = [0xcc, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10];
        assert_eq!(Prologue::decode(&code, ENTRY).unwrap_err(), Unfit::Breakpoint);
        // push rbp; mov rbp, rsp; int3
        let code = [0x55, 0x48, 0x89, 0xe5, 0xcc, 0x83, 0xec, 0x10];
        assert_eq!(Prologue::decode(&code, ENTRY).unwrap_err(), Unfit::Breakpoint);
    }

    #[test]
    fn what_is_cut_off_or_no_code_is_not_taken() {
        assert!(!taken(&[]));
        assert!(!taken(&[0x55, 0x48, 0x89, 0xe5]));
        assert!(!taken(&[0x55, 0x48, 0x89, 0xe5, 0x48]));
        // push es does not exist in 64-bit code
        assert!(!taken(&[0x06, 0x90, 0x90, 0x90, 0x90]));
    }

    #[test]
    fn operands_out_of_reach_are_not_relocated() {
        // mov rax, [rip + 0x100]; ret
        let prologue = Prologue::decode(&[0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3], ENTRY).unwrap();
        assert!(prologue.relocate(ENTRY + 0x10_0000).is_some());
        assert!(prologue.relocate(ENTRY + (1 << 32)).is_none());
    }

    proptest::proptest! {
        /// Any code, at any address, is either refused or relocated.
        #[test]
        fn any_code_is_moved_or_refused(
            code in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..LONGEST),
            address: usize,
        ) {
            crate::checks::code(&code, ENTRY);
            crate::checks::code(&code, address);
        }
    }

    /// The `detour` crate decodes and relocates the same instructions on its own.
    #[test]
    fn the_c_library_is_relocated_as_the_crate_does_it() {
        let mut functions = BTreeSet::new();
        // SAFETY: a library that stays loaded; other tests of this crate load libraries, which does
        // not move it.
        unsafe {
            loader::libraries(&mut |library| {
                if library.soname().as_deref() == Some("libc.so.6") {
                    library.functions(&mut |function| {
                        functions.insert(function.address as usize);
                    });
                }
            });
        }
        let (mut same, mut left) = (0, 0);
        for &entry in functions.iter().step_by(5) {
            // SAFETY: code of the C library; its read-only data is mapped after it.
            let code = unsafe { core::slice::from_raw_parts(entry as *const u8, LONGEST) };
            let detour = the_c_library_is_relocated_as_the_crate_does_it as *const ();
            // SAFETY: never enabled.
            let theirs = unsafe { RawDetour::new(entry as *const (), detour) };
            let Ok(ours) = Prologue::decode(code, entry) else {
                left += 1;
                continue;
            };
            let theirs = theirs.unwrap_or_else(|error| panic!("{entry:#x}: {error}, but taken"));
            let place = theirs.trampoline() as usize;
            let ours = ours.relocate(place).unwrap();
            // SAFETY: the crate's copy has the same length, or differs in its first bytes.
            let theirs = unsafe { core::slice::from_raw_parts(place as *const u8, ours.len()) };
            assert_eq!(ours, theirs, "{entry:#x}");
            same += 1;
        }
        assert!(same > 200 && left * 20 < same, "{same} relocated, {left} left to the crate");
    }
}
