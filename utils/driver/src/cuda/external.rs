//! External memory: imported from other APIs.

use super::array::Array3dDescriptor;
use core::ffi::{c_int, c_uint};

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`
pub const EXTERNAL_MEMORY_OPAQUE_FD: c_uint = 1;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF`
pub const EXTERNAL_NVSCIBUF: c_uint = 8;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD`
pub const EXTERNAL_DMABUF_FD: c_uint = 9;

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryHandleDesc {
    /// `CUexternalMemoryHandleType`
    pub kind: c_uint,
    /// Aligns the union to eight bytes.
    pub padding: c_uint,
    /// The file descriptor, for [`EXTERNAL_MEMORY_OPAQUE_FD`].
    pub fd: c_int,
    /// The rest of the union.
    pub rest: [c_int; 3],
    /// Size in bytes.
    pub size: u64,
    /// 1 for a dedicated resource.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryBufferDesc {
    /// Offset in the memory object, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExternalMemoryMipmapDesc {
    /// Offset in the memory object, in bytes.
    pub offset: u64,
    /// The first level.
    pub array: Array3dDescriptor,
    /// Levels.
    pub num_levels: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<ExternalMemoryHandleDesc>(), 104);
        assert_eq!(size_of::<ExternalMemoryBufferDesc>(), 88);
        assert_eq!(size_of::<ExternalMemoryMipmapDesc>(), 120);
    }
}
