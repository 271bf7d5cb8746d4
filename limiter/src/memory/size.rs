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

/// How the elements of an array lie in memory.
#[derive(Clone, Copy)]
enum Layout {
    /// Bytes of a channel.
    Channels(u64),
    /// Bytes of an element with all its channels.
    Elements(u64),
    /// Bytes of a block of four by four elements.
    Blocks(u64),
    /// Bytes of a sample: one of brightness for each element, and two of colour for each two by two.
    Colour420(u64),
}

/// The layout of a `CUarray_format`. Formats that this build does not know count as 16 bytes an
/// element, which is what the largest known takes, rather than as nothing.
fn layout(format: u32) -> Layout {
    use Layout::{Blocks, Channels, Colour420, Elements};
    match format {
        // Unsigned and signed integers, half, float.
        0x01 | 0x08 => Channels(1),
        0x02 | 0x09 | 0x10 => Channels(2),
        0x03 | 0x0a | 0x20 => Channels(4),
        // Normalised, of 8 and of 16 bits, with one, two and four channels.
        0xc0 | 0xc6 => Elements(1),
        0xc1 | 0xc3 | 0xc7 | 0xc9 => Elements(2),
        0xc2 | 0xc4 | 0xc8 | 0xca => Elements(4),
        0xc5 | 0xcb => Elements(8),
        // 10, 10, 10 and 2 bits.
        0x50 => Elements(4),
        // BC1 and BC4; BC2, BC3, BC5, BC6H and BC7.
        0x91 | 0x92 | 0x97 | 0x98 => Blocks(8),
        0x93..=0x96 | 0x99..=0x9e => Blocks(16),
        // NV12; P010 and P016.
        0xb0 => Colour420(1),
        0x9f | 0xa1 => Colour420(2),
        // 4:2:2 in two planes and packed: NV16, YUY2; P210, P216, Y210, Y216.
        0xa2 | 0xa5 => Elements(2),
        0xa3 | 0xa4 | 0xa6 | 0xa7 => Elements(4),
        // 4:4:4: AYUV, Y410; Y416; three samples of 8 and of more bits.
        0xa8 | 0xa9 => Elements(4),
        0xb1 => Elements(8),
        0xb2 | 0xb4 => Elements(3),
        0xb3 | 0xb5 => Elements(6),
        _ => Elements(16),
    }
}

impl Layout {
    /// Bytes of a layer.
    fn layer(self, width: u64, height: u64, channels: u64) -> u64 {
        let elements = width.saturating_mul(height);
        let parts = |side: u64| width.div_ceil(side).saturating_mul(height.div_ceil(side));
        match self {
            Self::Channels(bytes) => elements.saturating_mul(bytes).saturating_mul(channels),
            Self::Elements(bytes) => elements.saturating_mul(bytes),
            Self::Blocks(bytes) => parts(4).saturating_mul(bytes),
            Self::Colour420(bytes) => {
                elements.saturating_add(parts(2).saturating_mul(2)).saturating_mul(bytes)
            }
        }
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
    layout(descriptor.format)
        .layer(
            shrink(descriptor.width),
            shrink(descriptor.height),
            u64::from(descriptor.num_channels.max(1)),
        )
        .saturating_mul(depth)
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
    fn formats_take_what_they_take() {
        let bytes = |format, num_channels, width, height| {
            let flat = Array3dDescriptor { format, num_channels, ..array(width, height, 0, 0) };
            level_bytes(&flat, 0)
        };
        assert_eq!(bytes(0x20, 4, 100, 100), 160_000);
        assert_eq!(bytes(0x10, 2, 100, 100), 40_000);
        // Four normalised channels of 8 and of 16 bits: the format says how many there are.
        assert_eq!((bytes(0xc2, 4, 100, 100), bytes(0xc5, 4, 100, 100)), (40_000, 80_000));
        assert_eq!((bytes(0xc8, 4, 100, 100), bytes(0xcb, 4, 100, 100)), (40_000, 80_000));
        // Blocks are never cut.
        assert_eq!((bytes(0x91, 4, 16, 16), bytes(0x9d, 4, 16, 16)), (128, 256));
        assert_eq!((bytes(0x91, 4, 1, 1), bytes(0x97, 1, 5, 4)), (8, 16));
        // Brightness and colour.
        assert_eq!(
            (bytes(0xb0, 3, 1920, 1080), bytes(0x9f, 3, 1920, 1080)),
            (3_110_400, 6_220_800)
        );
        assert_eq!(bytes(0xb0, 3, 3, 3), 9 + 8);
        assert_eq!((bytes(0xa2, 3, 10, 10), bytes(0xa5, 2, 10, 10)), (200, 200));
        assert_eq!(bytes(0xdead, 1, 10, 10), 1600);
    }

    #[test]
    fn levels_shrink_and_layers_do_not() {
        assert_eq!(mipmapped_bytes(&array(2048, 1024, 0, 0), 2), (8 + 2) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 1), 2), (32 + 8) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 0), 2), (32 + 4) << 20);
    }
}
