//! Follows the jumps at a function's entry.

use super::machine::{LONGEST_JUMP, target};
use super::peek;

/// A jump, a relay, and what an engine may put in between.
const MOST_JUMPS: usize = 4;

/// The target of a call before anything else is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// No jump: the function's own code runs.
    Nowhere,
    /// Jumps that end at this address.
    To(usize),
}

/// Follows the jumps at `entry` until they reach `wanted` or end elsewhere.
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

/// The target of the jump at `address`; `None` if the code there does anything else.
fn jump(address: usize) -> Option<usize> {
    let mut code = [0; LONGEST_JUMP];
    let length = peek::read(address, &mut code);
    target(&code[..length], address, |at| {
        let mut target = [0; size_of::<usize>()];
        (peek::read(at, &mut target) == target.len()).then(|| usize::from_le_bytes(target))
    })
}

/// Decodes any bytes without harm.
#[cfg(any(test, feature = "checks"))]
pub(crate) fn check(code: &[u8], address: usize) {
    let _ = target(code, address, |_| None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::near;

    #[test]
    fn jumps_that_lead_into_nothing_or_in_a_circle_end() {
        // A jump to itself.
        let mut code = [0_u64];
        let at = code.as_ptr() as usize;
        let jump = near(at, at).unwrap();
        let mut bytes = [0; 8];
        bytes[..jump.len()].copy_from_slice(&jump);
        code[0] = u64::from_le_bytes(bytes);
        core::hint::black_box(&code);
        assert_eq!(leads(at, 1), Leads::Nowhere);
        assert_eq!(leads(0x10, 1), Leads::Nowhere);
        assert_eq!(leads(usize::MAX - 1, 1), Leads::Nowhere);
    }
}
