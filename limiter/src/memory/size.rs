//! How much device memory the driver takes for what was asked.

use utils::driver::cuda::{ARRAY3D_CUBEMAP, Array3dDescriptor};

/// Allocations of this size and more are made of pages of this size.
const LARGE: u64 = 1 << 20;
/// Page size of large allocations.
const PAGE: u64 = 2 << 20;
/// Granularity of small ones, which share pages.
const SMALL: u64 = 512;

/// Bytes of a linear allocation.
pub(crate) fn linear_bytes(asked: u64) -> u64 {
    let grain = if asked >= LARGE { PAGE } else { SMALL };
    asked.checked_next_multiple_of(grain).unwrap_or(u64::MAX)
}

/// Bytes of one element of an array (`CUarray_format`). Formats that this build does not know count
/// as the largest known, 16 bytes, rather than as nothing.
fn format_bytes(format: u32) -> u64 {
    match format {
        // 8 bits: unsigned, signed; normalised.
        0x01 | 0x08 | 0xc0..=0xc5 => 1,
        // 16 bits: unsigned, signed, half; normalised.
        0x02 | 0x09 | 0x10 | 0xc6..=0xcb => 2,
        // 32 bits: unsigned, signed, float.
        0x03 | 0x0a | 0x20 => 4,
        // NV12 and block-compressed formats take less than this.
        _ => 16,
    }
}

/// Bytes of an array; zero heights and depths mean that the dimension is not used.
pub(crate) fn array_bytes(descriptor: &Array3dDescriptor) -> u64 {
    linear_bytes(level_bytes(descriptor, 0))
}

/// Bytes of a mipmapped array: the sum of its levels.
pub(crate) fn mipmapped_bytes(descriptor: &Array3dDescriptor, levels: u32) -> u64 {
    let sum = (0..levels.clamp(1, 64))
        .fold(0_u64, |sum, level| sum.saturating_add(level_bytes(descriptor, level)));
    linear_bytes(sum)
}

fn level_bytes(descriptor: &Array3dDescriptor, level: u32) -> u64 {
    /// `CUDA_ARRAY3D_LAYERED`: the depth counts layers, which do not shrink.
    const LAYERED: u32 = 1;
    let shrink = |extent: usize| (extent as u64).checked_shr(level).unwrap_or(0).max(1);
    let depth = if descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) == 0 {
        shrink(descriptor.depth)
    } else {
        (descriptor.depth as u64).max(1)
    };
    shrink(descriptor.width)
        .saturating_mul(shrink(descriptor.height))
        .saturating_mul(depth)
        .saturating_mul(format_bytes(descriptor.format))
        .saturating_mul(u64::from(descriptor.num_channels.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(width: usize, height: usize, depth: usize, flags: u32) -> Array3dDescriptor {
        Array3dDescriptor { width, height, depth, format: 0x20, num_channels: 1, flags }
    }

    #[test]
    fn small_allocations_share_pages_and_large_ones_do_not() {
        assert_eq!(linear_bytes(0), 0);
        assert_eq!(linear_bytes(1), 512);
        assert_eq!(linear_bytes((1 << 20) - 1), 1 << 20);
        assert_eq!(linear_bytes(1 << 20), 2 << 20);
        assert_eq!(linear_bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn arrays_multiply_what_they_use() {
        assert_eq!(array_bytes(&array(1024, 0, 0, 0)), 4096);
        assert_eq!(array_bytes(&array(1024, 1024, 0, 0)), 4 << 20);
        assert_eq!(array_bytes(&array(1024, 1024, 16, 0)), 64 << 20);
        assert_eq!(array_bytes(&array(usize::MAX, usize::MAX, 2, 0)), u64::MAX);
    }

    #[test]
    fn levels_shrink_and_layers_do_not() {
        assert_eq!(mipmapped_bytes(&array(2048, 1024, 0, 0), 2), (8 + 2) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 1), 2), (32 + 8) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 0), 2), (32 + 4) << 20);
    }
}
