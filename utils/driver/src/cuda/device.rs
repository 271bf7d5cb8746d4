//! Devices, and the device resources of green contexts.

use super::handle::Device;
use core::ffi::c_uint;

/// `CU_DEV_RESOURCE_TYPE_SM`
pub const DEV_RESOURCE_SM: c_uint = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`
pub const GREEN_DEFAULT_STREAM: c_uint = 1;
/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`: whether an MPS server shares contexts of the device.
pub const DEVICE_MPS_ENABLED: c_uint = 133;
/// The driver's marker for an ordinal that names no device (`CU_DEVICE_INVALID`).
pub const DEVICE_INVALID: Device = -2;

/// `CUuuid`
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uuid {
    /// The 16 bytes that NVML prints after `GPU-`.
    pub bytes: [u8; 16],
}

/// `CUdevSmResource`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevSmResource {
    /// Multiprocessors.
    pub sm_count: c_uint,
    /// Smallest number of multiprocessors in a partition.
    pub min_sm_partition_size: c_uint,
    /// Partitions have a multiple of this number of multiprocessors.
    pub sm_coscheduled_alignment: c_uint,
}

/// `CUdevResource`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevResource {
    /// `CUdevResourceType`
    pub kind: c_uint,
    /// Internal to the driver.
    pub padding: [u8; 92],
    /// For [`DEV_RESOURCE_SM`].
    pub sm: DevSmResource,
    /// The rest of the union.
    pub rest: [u8; 36],
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<DevResource>(), 144);
    }
}
