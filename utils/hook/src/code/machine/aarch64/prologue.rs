//! A function's first instruction: the one that a jump overwrites, and its equivalent elsewhere.
//!
//! A landing pad stays in place, because indirect calls of a library protected by BTI may arrive nowhere else. The
//! instruction after it is overwritten instead.

use super::instruction::{
    Kind, LINK, LandingPad, SCRATCH, ZERO, branch, far, first, kind, landing_pad, set,
};
use super::{JUMP, near};
use crate::code::machine::Unfit;

/// The longest load, of a vector register, in bytes.
const LONGEST_LOAD: usize = 16;

/// The instruction that a jump will overwrite.
#[derive(Debug)]
pub(crate) struct Prologue {
    pad: Option<(u32, LandingPad)>,
    instruction: u32,
    /// The instruction's address.
    at: usize,
}

impl Prologue {
    /// Decodes `code`, the beginning of the function at `entry`. Fails if no copy elsewhere would do the same.
    pub(crate) fn decode(code: &[u8], entry: usize) -> Result<Self, Unfit> {
        if !entry.is_multiple_of(JUMP) {
            return Err(Unfit::Shape);
        }
        let begins = first(code).ok_or(Unfit::Shape)?;
        let pad = landing_pad(begins).map(|pad| (begins, pad));
        let offset = if pad.is_some() { JUMP } else { 0 };
        let instruction = code.get(offset..).and_then(first).ok_or(Unfit::Shape)?;
        let at = entry.checked_add(offset).ok_or(Unfit::Shape)?;
        match kind(instruction, at) {
            Kind::Breakpoint => Err(Unfit::Breakpoint),
            Kind::Invalid => Err(Unfit::Shape),
            // The instruction refers to itself, which will be overwritten.
            Kind::Branch(to) | Kind::Call(to) | Kind::Condition(to, _) if to == at => {
                Err(Unfit::Shape)
            }
            Kind::Load(_, from) if at.wrapping_sub(from) < LONGEST_LOAD => Err(Unfit::Shape),
            _ => Ok(Self { pad, instruction, at }),
        }
    }

    /// Offset of the jump from the entry, in bytes.
    pub(crate) fn offset(&self) -> usize {
        if self.pad.is_some() { JUMP } else { 0 }
    }

    /// Code that a jump at `from` has to lead to, if it cannot lead to `detour` itself: too far, or `detour` would see
    /// a signed return address.
    pub(crate) fn relay(&self, from: usize, detour: usize) -> Option<Vec<u8>> {
        match self.pad {
            Some((_, LandingPad::Signs(takes_away))) => {
                Some(bytes(core::iter::once(takes_away).chain(far(detour))))
            }
            _ => near(from, detour).is_none().then(|| bytes(far(detour))),
        }
    }

    /// Equivalent code for the address `to`, which continues with the rest of the function. `None` if the instruction
    /// cannot work from there.
    pub(crate) fn relocate(&self, to: usize) -> Option<Vec<u8>> {
        let mut code = Code { words: Vec::new(), start: to };
        code.words.extend(self.pad.map(|(pad, _)| pad));
        let rest = self.at.checked_add(JUMP)?;
        match kind(self.instruction, self.at) {
            Kind::Branch(target) => code.go_on(target),
            Kind::Call(target) => {
                // The call returns directly to the function, so nothing of this code has to be left.
                code.words.extend(set(LINK, rest));
                code.go_on(target);
            }
            Kind::Condition(target, elsewhere) => {
                code.words.push(elsewhere);
                // One instruction, as the condition's target assumes: memory for code is within reach of the function.
                code.words.push(branch(code.next(), rest)?);
                code.go_on(target);
            }
            Kind::Address(register, address) => {
                if register != ZERO {
                    code.words.extend(set(register, address));
                }
                code.words.push(branch(code.next(), rest)?);
            }
            Kind::Load(load, from) => {
                code.words.extend(set(SCRATCH, from));
                code.words.push(load);
                code.words.push(branch(code.next(), rest)?);
            }
            Kind::End => code.words.push(self.instruction),
            Kind::Other => {
                code.words.push(self.instruction);
                code.words.push(branch(code.next(), rest)?);
            }
            Kind::Breakpoint | Kind::Invalid => return None,
        }
        Some(bytes(code.words))
    }
}

/// Code under construction.
struct Code {
    words: Vec<u32>,
    start: usize,
}

impl Code {
    fn next(&self) -> usize {
        self.start.wrapping_add(JUMP * self.words.len())
    }

    fn go_on(&mut self, to: usize) {
        match branch(self.next(), to) {
            Some(jump) => self.words.push(jump),
            None => self.words.extend(far(to)),
        }
    }
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::LONGEST;

    const ENTRY: usize = 0x7f00_0000_1000;

    fn decoded(words: &[u32]) -> Result<Prologue, Unfit> {
        Prologue::decode(&bytes(words.iter().copied()), ENTRY)
    }

    /// The equivalent of `words` at `distance` from the entry.
    fn moved(words: &[u32], distance: usize) -> Vec<u32> {
        let code = decoded(words).unwrap().relocate(ENTRY + distance).unwrap();
        code.chunks_exact(4).map(|word| first(word).unwrap()).collect()
    }

    #[test]
    fn one_instruction_is_moved_and_the_rest_goes_on() {
        // stp x29, x30, [sp, #-16]!; b back
        assert_eq!(moved(&[0xa9bf_7bfd], 0x1000), [0xa9bf_7bfd, 0x17ff_fc00]);
        // ret
        assert_eq!(moved(&[0xd65f_03c0], 0x1000), [0xd65f_03c0]);
    }

    #[test]
    fn landing_pads_stay() {
        // bti c; mov x29, sp
        let prologue = decoded(&[0xd503_245f, 0x9100_03fd]).unwrap();
        assert_eq!(prologue.offset(), 4);
        assert_eq!(
            moved(&[0xd503_245f, 0x9100_03fd], 0x1000),
            [0xd503_245f, 0x9100_03fd, 0x17ff_fc00]
        );
        assert_eq!(prologue.relay(ENTRY + 4, ENTRY + 0x100), None);
        // paciasp; mov x29, sp: the hook gets the unsigned return address.
        let prologue = decoded(&[0xd503_233f, 0x9100_03fd]).unwrap();
        let relay = prologue.relay(ENTRY + 4, ENTRY + 0x100).unwrap();
        assert_eq!(first(&relay), Some(0xd503_23bf));
        assert_eq!(relay.len(), 20);
        // A landing pad, and nothing after it.
        assert_eq!(decoded(&[0xd503_233f]).unwrap_err(), Unfit::Shape);
    }

    #[test]
    fn what_depends_on_its_place_does_the_same_from_elsewhere() {
        let back =
            |length: u32| 0x1400_0000 | (0_u32.wrapping_sub(0x400 + length - 2)) & 0x3ff_ffff;
        // b +8
        assert_eq!(moved(&[0x1400_0002], 0x1000), [0x17ff_fc02]);
        // bl +8
        let call = moved(&[0x9400_0002], 0x1000);
        assert_eq!(call[..4], set(LINK, ENTRY + 4));
        assert_eq!(call[4..], [0x17ff_fbfe]);
        // cbz x0, +8: back, or on.
        assert_eq!(moved(&[0xb400_0040], 0x1000), [0xb400_0040, back(2), 0x17ff_fc00]);
        // adrp x3, the next page
        let address = moved(&[0xb000_0003], 0x1000);
        assert_eq!(address[..4], set(3, ENTRY + 0x1000));
        assert_eq!(address[4..], [back(5)]);
        // ldr x9, +8
        let load = moved(&[0x5800_0049], 0x1000);
        assert_eq!(load[..4], set(SCRATCH, ENTRY + 8));
        assert_eq!(load[4..], [0xf940_0229, back(6)]);
        // b to an address out of reach from there.
        let far_away = moved(&[0x15ff_ffff], 0x7fff_0000_usize.wrapping_neg() / 16);
        assert_eq!(far_away, far(ENTRY + (1 << 27) - 4));
    }

    #[test]
    fn what_refers_to_itself_is_no_code_or_is_hidden_is_not_taken() {
        // b .; cbz x0, .; ldr x0, .; udf; nothing
        for words in [&[0x1400_0000][..], &[0xb400_0000], &[0x5800_0000], &[0], &[]] {
            assert_eq!(decoded(words).unwrap_err(), Unfit::Shape, "{words:x?}");
        }
        // brk; and behind a pad
        assert_eq!(decoded(&[0xd420_0000]).unwrap_err(), Unfit::Breakpoint);
        assert_eq!(decoded(&[0xd503_245f, 0xd420_0000]).unwrap_err(), Unfit::Breakpoint);
        assert_eq!(
            Prologue::decode(&0xd65f_03c0_u32.to_le_bytes(), ENTRY + 2).unwrap_err(),
            Unfit::Shape
        );
    }

    #[test]
    fn what_is_out_of_reach_is_not_moved_there() {
        assert!(decoded(&[0xa9bf_7bfd]).unwrap().relocate(ENTRY + (1 << 28)).is_none());
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
}
