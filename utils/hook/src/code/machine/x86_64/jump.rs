//! Encodings of jumps.

/// Bytes of a jump within 2 GiB.
pub(crate) const NEAR: usize = 5;
/// Bytes of a jump to any address.
pub(crate) const FAR: usize = 14;

/// A jump at `from` to `to`; `None` if the distance is too large.
pub(crate) fn near(from: usize, to: usize) -> Option<[u8; NEAR]> {
    let distance = (to as i64).checked_sub(from as i64)?.checked_sub(NEAR as i64)?;
    let distance = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, distance[0], distance[1], distance[2], distance[3]])
}

/// A jump to `to` from any address: `jmp qword ptr [rip]`, followed by the address.
pub(crate) fn far(to: usize) -> [u8; FAR] {
    let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    code[6..].copy_from_slice(&(to as u64).to_le_bytes());
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_jump_counts_from_its_own_end_and_knows_its_reach() {
        assert_eq!(near(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(near(0x1000, 0x1000), Some([0xe9, 0xfb, 0xff, 0xff, 0xff]));
        let from = 0x7f00_0000_0000;
        let furthest = i32::MAX as usize + NEAR;
        assert_eq!(near(from, from + furthest), Some([0xe9, 0xff, 0xff, 0xff, 0x7f]));
        assert_eq!(near(from, from + furthest + 1), None);
        assert_eq!(near(from + (1 << 31), from + NEAR), Some([0xe9, 0, 0, 0, 0x80]));
        assert_eq!(near(from + (1 << 31), from + NEAR - 1), None);
        assert_eq!(near(0, usize::MAX / 2), None);
    }

    #[test]
    fn a_far_jump_carries_its_address() {
        assert_eq!(far(0x1122_3344_5566_7788)[..6], [0xff, 0x25, 0, 0, 0, 0]);
        assert_eq!(far(0x1122_3344_5566_7788)[6..], 0x1122_3344_5566_7788_u64.to_le_bytes());
    }
}
