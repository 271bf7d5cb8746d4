//! Arrays and sparse arrays.

use super::handle::AllocationHandle;
use core::ffi::{c_uint, c_void};

/// `CU_RESOURCE_TYPE_ARRAY`
pub const RESOURCE_ARRAY: c_uint = 0;
/// `CU_RESOURCE_TYPE_MIPMAPPED_ARRAY`
pub const RESOURCE_MIPMAPPED_ARRAY: c_uint = 1;
/// `CUDA_ARRAY3D_CUBEMAP`
pub const ARRAY3D_CUBEMAP: c_uint = 4;
/// `CUDA_ARRAY3D_SPARSE`: memory is mapped by tiles.
pub const ARRAY3D_SPARSE: c_uint = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later, as a whole.
pub const ARRAY3D_DEFERRED_MAPPING: c_uint = 0x80;
/// `CU_MEM_OPERATION_TYPE_MAP`
pub const OPERATION_MAP: c_uint = 1;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`
pub const SUBRESOURCE_MIPTAIL: c_uint = 1;

/// `CUDA_ARRAY_DESCRIPTOR` (`_v2`)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements, 0 for one-dimensional.
    pub height: usize,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` (`_v2`)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3dDescriptor {
    /// Width in elements.
    pub width: usize,
    /// Height in elements, may be 0.
    pub height: usize,
    /// Depth in elements or layers, may be 0.
    pub depth: usize,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*`
    pub flags: c_uint,
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`, of CUDA 3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptorV1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements, 0 for one-dimensional.
    pub height: c_uint,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`, of CUDA 3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3dDescriptorV1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements, may be 0.
    pub height: c_uint,
    /// Depth in elements or layers, may be 0.
    pub depth: c_uint,
    /// `CUarray_format`
    pub format: c_uint,
    /// 1, 2 or 4.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*`
    pub flags: c_uint,
}

impl From<ArrayDescriptor> for Array3dDescriptor {
    fn from(flat: ArrayDescriptor) -> Self {
        let ArrayDescriptor { width, height, format, num_channels } = flat;
        Self { width, height, depth: 0, format, num_channels, flags: 0 }
    }
}

impl From<ArrayDescriptorV1> for Array3dDescriptor {
    fn from(flat: ArrayDescriptorV1) -> Self {
        let ArrayDescriptorV1 { width, height, format, num_channels } = flat;
        let (width, height) = (width as usize, height as usize);
        Self { width, height, depth: 0, format, num_channels, flags: 0 }
    }
}

impl From<Array3dDescriptorV1> for Array3dDescriptor {
    fn from(old: Array3dDescriptorV1) -> Self {
        let Array3dDescriptorV1 { width, height, depth, format, num_channels, flags } = old;
        let (width, height, depth) = (width as usize, height as usize, depth as usize);
        Self { width, height, depth, format, num_channels, flags }
    }
}

/// `CUarrayMapInfo`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayMapInfo {
    /// [`RESOURCE_ARRAY`] or [`RESOURCE_MIPMAPPED_ARRAY`].
    pub resource_type: c_uint,
    /// The array's handle.
    pub resource: *mut c_void,
    /// 0 for a mipmap level, 1 for the mip tail.
    pub subresource_type: c_uint,
    /// Aligns the union to eight bytes.
    pub padding: c_uint,
    /// Level: level, layer, offsets, extents. Mip tail: layer, (padding), offset and size, 64 bits each.
    pub subresource: [c_uint; 8],
    /// 1 maps, 2 unmaps.
    pub mem_operation_type: c_uint,
    /// 0, `CU_MEM_HANDLE_TYPE_GENERIC`.
    pub mem_handle_type: c_uint,
    /// The allocation to map; zero for unmapping.
    pub mem_handle: AllocationHandle,
    /// Offset in the allocation, in bytes.
    pub offset: u64,
    /// The device, as one bit.
    pub device_bit_mask: c_uint,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 2],
}

/// `CUDA_ARRAY_SPARSE_PROPERTIES`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseProperties {
    /// Width, height and depth of a tile in elements.
    pub tile_extent: [c_uint; 3],
    /// First level of the mip tail.
    pub miptail_first_level: c_uint,
    /// Size of the mip tail, in bytes.
    pub miptail_size: u64,
    /// Whether all layers share one mip tail.
    pub flags: c_uint,
    /// Unused.
    pub reserved: [c_uint; 4],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<ArrayDescriptor>(), 24);
        assert_eq!(size_of::<Array3dDescriptor>(), 40);
        assert_eq!(size_of::<ArrayMapInfo>(), 96);
        assert_eq!(size_of::<SparseProperties>(), 48);
    }
}
