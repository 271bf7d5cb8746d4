//! A64 instructions: those that depend on their address, and those that this crate writes.
//!
//! Arm Architecture Reference Manual, "A64 Base Instruction Descriptions".

/// The longest jump in bytes: a hint, the load of an address and the jump.
pub(crate) const LONGEST_JUMP: usize = 16;

pub(super) const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;
/// The register that a call may clobber (x17, IP1).
pub(super) const SCRATCH: u32 = 17;
/// The register with the return address.
pub(super) const LINK: u32 = 30;
/// The zero register in most instructions.
pub(super) const ZERO: u32 = 31;

/// The first instruction in `code`.
pub(super) fn first(code: &[u8]) -> Option<u32> {
    code.first_chunk().map(|&bytes| u32::from_le_bytes(bytes))
}

/// `length` bits of `word`, starting at bit `from`, as a signed number.
fn signed(word: u32, from: u32, length: u32) -> i64 {
    let left = i64::from(word) << (64 - from - length);
    left >> (64 - length)
}

fn away(from: usize, distance: i64) -> usize {
    (from as u64).wrapping_add_signed(distance) as usize
}

/// What an instruction does, if that depends on its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Jumps to an address.
    Branch(usize),
    /// Calls an address.
    Call(usize),
    /// Jumps to an address under a condition; and the same instruction with the target moved to the one after the next.
    Condition(usize, u32),
    /// Puts an address into a register.
    Address(u32, usize),
    /// Loads from an address: the register-relative load through `SCRATCH`, and the address.
    Load(u32, usize),
    /// Never continues with the next instruction.
    End,
    /// A debugger's breakpoint.
    Breakpoint,
    /// Not an instruction.
    Invalid,
    /// Does the same at any address.
    Other,
}

/// Decodes the instruction `word` at the address `at`.
pub(super) fn kind(word: u32, at: usize) -> Kind {
    let register = word & 31;
    if word >> 16 == 0 {
        return Kind::Invalid;
    }
    match word {
        _ if word & 0xfc00_0000 == 0x1400_0000 => Kind::Branch(away(at, 4 * signed(word, 0, 26))),
        _ if word & 0xfc00_0000 == 0x9400_0000 => Kind::Call(away(at, 4 * signed(word, 0, 26))),
        // B.cond and BC.cond, CBZ and CBNZ: 19 bits.
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            let elsewhere = word & !(0x7_ffff << 5) | 2 << 5;
            Kind::Condition(away(at, 4 * signed(word, 5, 19)), elsewhere)
        }
        // TBZ and TBNZ: 14 bits.
        _ if word & 0x7e00_0000 == 0x3600_0000 => {
            let elsewhere = word & !(0x3fff << 5) | 2 << 5;
            Kind::Condition(away(at, 4 * signed(word, 5, 14)), elsewhere)
        }
        // ADR, ADRP
        _ if word & 0x1f00_0000 == 0x1000_0000 => {
            let number = signed(word, 5, 19) << 2 | i64::from(word >> 29 & 3);
            let to =
                if word >> 31 == 0 { away(at, number) } else { away(at & !0xfff, number << 12) };
            Kind::Address(register, to)
        }
        // PC-relative loads; the register-relative form of each.
        _ if word & 0x3b00_0000 == 0x1800_0000 => {
            let load = match (word >> 26 & 1, word >> 30) {
                // W, X, a word with its sign, a prefetch
                (0, 0) => 0xb940_0000,
                (0, 1) => 0xf940_0000,
                (0, 2) => 0xb980_0000,
                (0, _) => 0xf980_0000,
                // S, D, Q
                (_, 0) => 0xbd40_0000,
                (_, 1) => 0xfd40_0000,
                (_, 2) => 0x3dc0_0000,
                _ => return Kind::Invalid,
            };
            Kind::Load(load | SCRATCH << 5 | register, away(at, 4 * signed(word, 5, 19)))
        }
        // BRK
        _ if word & 0xffe0_001f == 0xd420_0000 => Kind::Breakpoint,
        // BR, RET, ERET and their forms with authentication; not BLR.
        _ if word & 0xfe00_0000 == 0xd600_0000 && word >> 21 & 3 != 1 => Kind::End,
        _ => Kind::Other,
    }
}

/// An instruction at which indirect calls may arrive (BTI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LandingPad {
    /// BTI c, BTI jc: nothing else.
    Plain,
    /// PACIASP, PACIBSP: signs the return address as well. The operand is the instruction that removes the signature.
    Signs(u32),
}

pub(super) fn landing_pad(word: u32) -> Option<LandingPad> {
    match word {
        0xd503_245f | 0xd503_24df => Some(LandingPad::Plain),
        0xd503_233f => Some(LandingPad::Signs(0xd503_23bf)),
        0xd503_237f => Some(LandingPad::Signs(0xd503_23ff)),
        _ => None,
    }
}

/// A jump at `from` to `to`; `None` if the distance is too large or not a multiple of 4.
pub(super) fn branch(from: usize, to: usize) -> Option<u32> {
    let distance = (to as i64).checked_sub(from as i64)?;
    let fits = distance % 4 == 0 && (-(1 << 27)..1 << 27).contains(&distance);
    fits.then(|| 0x1400_0000 | (distance / 4) as u32 & 0x3ff_ffff)
}

/// A jump to any address: ldr x17, the address; br x17.
pub(super) fn far(to: usize) -> [u32; 4] {
    let to = to as u64;
    [0x5800_0040 | SCRATCH, 0xd61f_0000 | SCRATCH << 5, to as u32, (to >> 32) as u32]
}

/// Loads a number into a register: movz, then movk for each other part.
pub(super) fn set(register: u32, number: usize) -> [u32; 4] {
    let part = |index: u32| (number as u64 >> (16 * index)) as u32 & 0xffff;
    core::array::from_fn(|index| {
        let index = index as u32;
        let form = if index == 0 { 0xd280_0000 } else { 0xf280_0000 };
        form | index << 21 | part(index) << 5 | register
    })
}

/// The target of the jump in `code` at `address`; `None` if the code does anything else. `word` reads the operand of an
/// indirect jump. Signing the return address and removing the signature again counts as nothing.
pub(crate) fn target(
    code: &[u8],
    address: usize,
    word: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let mut at = address;
    let mut rest = code;
    while let Some(instruction) = first(rest) {
        // Hints: NOP, BTI, PACIASP, AUTIASP.
        if instruction & 0xffff_f01f != NOP {
            return match kind(instruction, at) {
                Kind::Branch(to) => Some(to),
                Kind::Load(load, from) if load & 0xffc0_0000 == 0xf940_0000 => {
                    let register = load & 31;
                    let jump = first(rest.get(4..)?)?;
                    (jump == 0xd61f_0000 | register << 5 && register != ZERO)
                        .then(|| word(from))
                        .flatten()
                }
                _ => None,
            };
        }
        at = at.wrapping_add(4);
        rest = &rest[4..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x7f00_0000_1000;

    #[test]
    fn what_depends_on_its_place_is_known() {
        // b, bl, b.eq, cbz, tbnz, adr, adrp, ldr x, ldr d, prfm: each to 8 behind.
        let behind = AT + 8;
        assert_eq!(kind(0x1400_0002, AT), Kind::Branch(behind));
        assert_eq!(kind(0x97ff_ffff, AT), Kind::Call(AT - 4));
        assert_eq!(kind(0x5400_0040, AT), Kind::Condition(behind, 0x5400_0040));
        assert_eq!(kind(0x54ff_ffe1, AT), Kind::Condition(AT - 4, 0x5400_0041));
        assert_eq!(kind(0xb400_0040, AT), Kind::Condition(behind, 0xb400_0040));
        assert_eq!(kind(0x37f8_0043, AT), Kind::Condition(behind, 0x37f8_0043));
        assert_eq!(kind(0x3707_ffe3, AT), Kind::Condition(AT - 4, 0x3700_0043));
        assert_eq!(kind(0x1000_0043, AT), Kind::Address(3, behind));
        assert_eq!(kind(0x70ff_ffe3, AT), Kind::Address(3, AT - 1));
        assert_eq!(kind(0xb000_0003, AT + 16), Kind::Address(3, AT + 4096));
        assert_eq!(kind(0xf0ff_ffe3, AT + 16), Kind::Address(3, AT - 4096));
        assert_eq!(kind(0x5800_0049, AT), Kind::Load(0xf940_0229, behind));
        assert_eq!(kind(0x5c00_0049, AT), Kind::Load(0xfd40_0229, behind));
        assert_eq!(kind(0xd800_0049, AT), Kind::Load(0xf980_0229, behind));
        assert_eq!(kind(0xdc00_0049, AT), Kind::Invalid);
        assert_eq!(kind(RET, AT), Kind::End);
        assert_eq!(kind(0xd61f_0220, AT), Kind::End);
        // blr x1; add x0, x0, #5; brk #1; udf #1
        assert_eq!(kind(0xd63f_0020, AT), Kind::Other);
        assert_eq!(kind(0x9100_1400, AT), Kind::Other);
        assert_eq!(kind(0xd420_0020, AT), Kind::Breakpoint);
        assert_eq!(kind(1, AT), Kind::Invalid);
    }

    fn of(words: &[u32]) -> Option<usize> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        target(&code, AT, |at| Some(at + 1))
    }

    #[test]
    fn jumps_of_every_form_are_followed_and_nothing_else() {
        assert_eq!(of(&[0x1400_0002]), Some(AT + 8));
        assert_eq!(of(&far(0x1234)), Some(AT + 8 + 1));
        // bti c; nop; autiasp; b
        assert_eq!(of(&[0xd503_245f, NOP, 0xd503_23bf, 0x1400_0002]), Some(AT + 12 + 8));
        // mov x29, sp; b. br x17. b.eq. bl. brk. ret. ldr x16; br x17. Cut off.
        assert_eq!(of(&[0x9100_03fd, 0x1400_0002]), None);
        assert_eq!(of(&[0xd61f_0220]), None);
        assert_eq!(
            [of(&[0x5400_0040]), of(&[0x9400_0002]), of(&[0xd420_0000]), of(&[RET])],
            [None; 4]
        );
        assert_eq!(of(&[0x5800_0050, 0xd61f_0220]), None);
        assert_eq!([of(&[0x5800_0051]), of(&[NOP]), of(&[])], [None; 3]);
    }

    #[test]
    fn a_number_is_put_into_a_register_in_four_parts() {
        // movz x3, #0xcdef; movk x3, #0x89ab, lsl 16; #0x4567, lsl 32; #0x0123, lsl 48
        assert_eq!(
            set(3, 0x0123_4567_89ab_cdef),
            [0xd299_bde3, 0xf2b1_3563, 0xf2c8_ace3, 0xf2e0_2463]
        );
    }
}
