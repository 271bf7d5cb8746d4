//! How many bytes of device memory the driver takes for an allocation of a requested size.

use driver::cuda::{ARRAY3D_CUBEMAP, Array3dDescriptor};

/// Allocations of at least this many bytes consist of pages of [`PAGE`] bytes.
const LARGE: u64 = 1 << 20;
/// Page size of large allocations, in bytes.
pub(super) const PAGE: u64 = 2 << 20;
/// Granularity of small allocations, which share pages, in bytes.
const SMALL: u64 = 512;

/// Bytes taken by a linear allocation of `asked` bytes.
pub(crate) fn linear_bytes(asked: u64) -> u64 {
    let grain = if asked >= LARGE { PAGE } else { SMALL };
    asked.checked_next_multiple_of(grain).unwrap_or(u64::MAX)
}

/// How the elements of an array are stored.
#[derive(Clone, Copy)]
enum ArrayLayout {
    /// Bytes of a channel.
    Channels(u64),
    /// Bytes of an element with all its channels.
    Elements(u64),
    /// Bytes of a block of four by four elements.
    Blocks(u64),
    /// Bytes of a sample; per element one luma sample, and per 2x2 elements two chroma samples.
    Colour420(u64),
}

/// The layout of a `CUarray_format`. Unknown formats count as 16 bytes per element, the most of all known formats.
fn layout(format: u32) -> ArrayLayout {
    use ArrayLayout::{Blocks, Channels, Colour420, Elements};
    match format {
        // Unsigned and signed integers, half, float.
        0x01 | 0x08 => Channels(1),
        0x02 | 0x09 | 0x10 => Channels(2),
        0x03 | 0x0a | 0x20 => Channels(4),
        // Normalised, 8 and 16 bits, with one, two and four channels.
        0xc0 | 0xc6 => Elements(1),
        0xc1 | 0xc3 | 0xc7 | 0xc9 => Elements(2),
        0xc2 | 0xc4 | 0xc8 | 0xca => Elements(4),
        0xc5 | 0xcb => Elements(8),
        // 10:10:10:2 bits.
        0x50 => Elements(4),
        // BC1 and BC4; BC2, BC3, BC5, BC6H and BC7.
        0x91 | 0x92 | 0x97 | 0x98 => Blocks(8),
        0x93..=0x96 | 0x99..=0x9e => Blocks(16),
        // NV12; P010 and P016.
        0xb0 => Colour420(1),
        0x9f | 0xa1 => Colour420(2),
        // 4:2:2, two planes and packed: NV16, YUY2; P210, P216, Y210, Y216.
        0xa2 | 0xa5 => Elements(2),
        0xa3 | 0xa4 | 0xa6 | 0xa7 => Elements(4),
        // 4:4:4: AYUV, Y410; Y416; three samples of 8 bits and of more bits.
        0xa8 | 0xa9 => Elements(4),
        0xb1 => Elements(8),
        0xb2 | 0xb4 => Elements(3),
        0xb3 | 0xb5 => Elements(6),
        _ => Elements(16),
    }
}

impl ArrayLayout {
    /// Bytes of a layer. The driver stores arrays in blocks of 8 rows by 64 bytes. Up to 16 blocks are stacked, the
    /// smallest power of two that covers all rows.
    fn layer(self, width: u64, height: u64, channels: u64) -> u64 {
        match self {
            Self::Channels(bytes) => {
                plane(width.saturating_mul(bytes).saturating_mul(channels), height)
            }
            Self::Elements(bytes) => plane(width.saturating_mul(bytes), height),
            Self::Blocks(bytes) => {
                plane(width.div_ceil(4).saturating_mul(bytes), height.div_ceil(4))
            }
            Self::Colour420(bytes) => {
                let colour = width.div_ceil(2).saturating_mul(2).saturating_mul(bytes);
                let brightness = plane(width.saturating_mul(bytes), height);
                brightness.saturating_add(plane(colour, height.div_ceil(2)))
            }
        }
    }
}

/// Bytes of `rows` rows of `row` bytes each.
fn plane(row: u64, rows: u64) -> u64 {
    const ROW_BYTES: u64 = 64;
    const ROWS: u64 = 8;
    const HIGHEST: u64 = 16;
    let high = rows.div_ceil(ROWS).checked_next_power_of_two().unwrap_or(HIGHEST).min(HIGHEST);
    let up = |value: u64, grain| value.checked_next_multiple_of(grain).unwrap_or(u64::MAX);
    up(row, ROW_BYTES).saturating_mul(up(rows, ROWS * high))
}

/// Bytes of an array; zero height or depth: the dimension is unused.
pub(crate) fn array_bytes(descriptor: &Array3dDescriptor) -> u64 {
    in_pages(level_bytes(descriptor, 0))
}

/// Bytes of a mipmapped array: the sum of its levels.
pub(crate) fn mipmapped_bytes(descriptor: &Array3dDescriptor, levels: u32) -> u64 {
    let depth = if has_layers(descriptor) { 0 } else { descriptor.depth };
    let longest = descriptor.width.max(descriptor.height).max(depth).max(1);
    let sum = (0..levels.clamp(1, 1 + longest.ilog2()))
        .fold(0_u64, |sum, level| sum.saturating_add(level_bytes(descriptor, level)));
    in_pages(sum)
}

/// Rounds up to whole pages: arrays of more than 1 MiB have pages of their own.
fn in_pages(bytes: u64) -> u64 {
    let grain = if bytes > LARGE { PAGE } else { SMALL };
    bytes.checked_next_multiple_of(grain).unwrap_or(u64::MAX)
}

/// Whether `depth` counts layers, which do not shrink from level to level.
const fn has_layers(descriptor: &Array3dDescriptor) -> bool {
    /// `CUDA_ARRAY3D_LAYERED`
    const LAYERED: u32 = 1;
    descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0
}

fn level_bytes(descriptor: &Array3dDescriptor, level: u32) -> u64 {
    let shrink = |extent: usize| (extent as u64).checked_shr(level).unwrap_or(0).max(1);
    let depth = if has_layers(descriptor) {
        (descriptor.depth as u64).max(1)
    } else {
        shrink(descriptor.depth)
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

    const F32: (u32, u32) = (0x20, 1);
    const KIB: u64 = 1 << 10;

    fn array(width: usize, height: usize, depth: usize, flags: u32) -> Array3dDescriptor {
        let (format, num_channels) = F32;
        Array3dDescriptor { width, height, depth, format, num_channels, flags }
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
        assert_eq!(array_bytes(&array(1024, 1024, 0, 0)), 4 << 20);
        assert_eq!(array_bytes(&array(1024, 1024, 16, 0)), 64 << 20);
        assert_eq!(array_bytes(&array(usize::MAX, usize::MAX, 2, 0)), u64::MAX);
    }

    #[test]
    fn formats_take_what_they_take() {
        // A square that fills its blocks.
        let bytes = |format, num_channels| {
            let flat = Array3dDescriptor { format, num_channels, ..array(128, 128, 0, 0) };
            level_bytes(&flat, 0) / KIB
        };
        assert_eq!((bytes(0x20, 4), bytes(0x10, 2), bytes(0x01, 1)), (256, 64, 16));
        // Four normalised channels of 8 and of 16 bits: the format implies the number of channels.
        assert_eq!(
            (bytes(0xc2, 4), bytes(0xc5, 4), bytes(0xc8, 4), bytes(0xcb, 4)),
            (64, 128, 64, 128)
        );
        // Blocks of 4x4; luma and chroma; 4:2:2.
        assert_eq!((bytes(0x91, 4), bytes(0x9d, 4)), (8, 16));
        assert_eq!((bytes(0xb0, 3), bytes(0x9f, 3), bytes(0xa2, 3)), (24, 48, 32));
        assert_eq!(bytes(0xdead, 1), 256);
        assert_eq!(plane(8, 2), 64 * 8);
    }

    /// Measured on an H200 with driver 580: elements, layers, levels and bytes taken.
    #[test]
    fn arrays_take_what_they_were_seen_to_take() {
        for ((width, height, depth), (format, num_channels), flags, levels, taken) in [
            ((65536, 0, 0), (0x20, 4), 0, 0, 8192),
            ((1024, 1024, 0), (0x01, 1), 0, 0, 1024),
            ((1025, 1025, 0), F32, 0, 0, 6144),
            ((1025, 1025, 0), (0x20, 4), 0, 0, 20480),
            ((1448, 1448, 0), F32, 0, 0, 10240),
            ((8192, 96, 0), (0x01, 1), 0, 0, 1024),
            ((8192, 96, 0), (0x20, 4), 0, 4, 22528),
            ((2048, 1024, 0), F32, 0, 2, 10240),
            ((2048, 1024, 0), F32, 0, 3, 12288),
            ((4096, 748, 0), F32, 0, 3, 16384),
            ((4096, 748, 0), F32, 0, 4, 18432),
            ((4096, 4096, 0), (0x20, 4), 0, 13, 350_208),
            ((128, 128, 128), F32, 0, 2, 10240),
            ((512, 512, 8), F32, 1, 2, 10240),
            ((512, 512, 6), F32, 4, 4, 8192),
            ((512, 512, 6), F32, 4, 8, 10240),
            ((256, 256, 64), (0x10, 2), 0, 8, 20480),
        ] {
            let found =
                Array3dDescriptor { format, num_channels, ..array(width, height, depth, flags) };
            let bytes =
                if levels == 0 { array_bytes(&found) } else { mipmapped_bytes(&found, levels) };
            assert_eq!(bytes, taken * KIB, "{found:?} {levels}");
        }
    }

    #[test]
    fn levels_shrink_and_layers_do_not() {
        assert_eq!(mipmapped_bytes(&array(2048, 1024, 0, 0), 2), (8 + 2) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 1), 2), (32 + 8) << 20);
        assert_eq!(mipmapped_bytes(&array(1024, 1024, 8, 0), 2), (32 + 4) << 20);
        // The number of levels ends with the level of one element.
        assert_eq!(mipmapped_bytes(&array(1, 0, 0, 0), u32::MAX), 512);
    }
}
