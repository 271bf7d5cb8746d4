//! Memory: attributes, locations, pools, sharing.

use core::ffi::{c_int, c_uint, c_ushort, c_void};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` (`CUmemorytype`)
pub const POINTER_MEMORY_TYPE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED` (a boolean)
pub const POINTER_IS_MANAGED: c_uint = 8;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`
pub const MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub const ALLOCATION_PINNED: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub const HANDLE_TYPE_POSIX_FD: c_uint = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
pub const IPC_LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_MEM_ATTACH_GLOBAL`
pub const ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD` (`cuuint64_t`)
pub const POOL_RELEASE_THRESHOLD: c_uint = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` (`cuuint64_t`)
pub const POOL_RESERVED_CURRENT: c_uint = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT` (`cuuint64_t`)
pub const POOL_USED_CURRENT: c_uint = 7;

/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcMemHandle {
    /// Opaque.
    pub reserved: [u8; 64],
}

/// `CUipcEventHandle`: same size, also opaque.
pub type IpcEventHandle = IpcMemHandle;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemLocation {
    /// `CUmemLocationType`
    pub kind: c_uint,
    /// Device ordinal or NUMA node, by `kind`.
    pub id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// `CUmemAllocationType`
    pub kind: c_uint,
    /// `CUmemAllocationHandleType`
    pub handle_types: c_uint,
    /// Location of the memory.
    pub location: MemLocation,
    /// Unused on Linux.
    pub win32_handle_meta_data: *mut c_void,
    /// `compressionType, gpuDirectRDMACapable, usage (2), reserved (4)`
    pub alloc_flags: [u8; 8],
}

impl AllocationProp {
    /// All fields zero.
    pub const EMPTY: Self = Self {
        kind: 0,
        handle_types: 0,
        location: MemLocation { kind: 0, id: 0 },
        win32_handle_meta_data: core::ptr::null_mut(),
        alloc_flags: [0; 8],
    };
}

/// `CUmemPoolProps`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProps {
    /// `CUmemAllocationType`
    pub kind: c_uint,
    /// `CUmemAllocationHandleType`
    pub handle_types: c_uint,
    /// Location of the pool's memory.
    pub location: MemLocation,
    /// Unused on Linux.
    pub win32_security_attributes: *mut c_void,
    /// Upper bound in bytes; 0: the device's.
    pub max_size: usize,
    /// Bit mask of usages.
    pub usage: c_ushort,
    /// `gpuDirectRDMACapable` and reserved bytes.
    pub reserved: [u8; 54],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// The device or host that gets access.
    pub location: MemLocation,
    /// `CUmemAccess_flags`: 0 none, 1 read, 3 read and write.
    pub flags: c_uint,
}

/// `CUmulticastObjectProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MulticastProp {
    /// Participating devices.
    pub num_devices: c_uint,
    /// Bytes that can be bound on each device.
    pub size: usize,
    /// Bit mask of `CUmemAllocationHandleType`.
    pub handle_types: u64,
    /// Zero.
    pub flags: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(size_of::<PoolProps>(), 88);
        assert_eq!(size_of::<AccessDesc>(), 12);
        assert_eq!(size_of::<IpcMemHandle>(), 64);
        assert_eq!(size_of::<MulticastProp>(), 32);
    }
}
