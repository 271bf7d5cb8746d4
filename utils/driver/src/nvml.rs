//! Types and constants of NVML (`nvml.h`).

use core::ffi::{c_uint, c_void};

/// `nvmlReturn_t`
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct NvmlReturn(pub c_uint);

impl NvmlReturn {
    /// `NVML_SUCCESS`
    pub const SUCCESS: Self = Self(0);
    /// `NVML_ERROR_UNINITIALIZED`
    pub const UNINITIALIZED: Self = Self(1);
    /// `NVML_ERROR_INVALID_ARGUMENT`
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// `NVML_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Self = Self(3);
    /// `NVML_ERROR_NO_PERMISSION`
    pub const NO_PERMISSION: Self = Self(4);
    /// `NVML_ERROR_NOT_FOUND`
    pub const NOT_FOUND: Self = Self(6);
    /// `NVML_ERROR_INSUFFICIENT_SIZE`
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// `NVML_ERROR_UNKNOWN`
    pub const UNKNOWN: Self = Self(999);

    /// Whether the call succeeded.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

/// `nvmlDevice_t`
pub type NvmlDevice = *mut c_void;

/// `nvmlMemory_t`, in bytes. `used` includes memory reserved by the driver.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Physical memory.
    pub total: u64,
    /// Unallocated.
    pub free: u64,
    /// Reserved and allocated.
    pub used: u64,
}

/// `nvmlMemory_v2_t`, in bytes. `used` excludes `reserved`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryV2 {
    /// [`MEMORY_V2_VERSION`], set by the caller.
    pub version: c_uint,
    /// Physical memory.
    pub total: u64,
    /// Held by driver and firmware.
    pub reserved: u64,
    /// Unallocated.
    pub free: u64,
    /// Allocated.
    pub used: u64,
}

/// `nvmlMemory_v2`: `NVML_STRUCT_VERSION(Memory, 2)`.
#[allow(clippy::cast_possible_truncation, reason = "40 bytes")]
pub const MEMORY_V2_VERSION: c_uint = size_of::<MemoryV2>() as c_uint | (2 << 24);

/// `NVML_VALUE_NOT_AVAILABLE`
pub const VALUE_NOT_AVAILABLE: u64 = u64::MAX;

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfoV1 {
    /// Process id in the pid namespace of the driver's host.
    pub pid: c_uint,
    /// Device memory in bytes.
    pub used_gpu_memory: u64,
}

/// `nvmlProcessInfo_v2_t`, also what the `_v3` functions fill.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfoV2 {
    /// Process id in the pid namespace of the driver's host.
    pub pid: c_uint,
    /// Device memory in bytes.
    pub used_gpu_memory: u64,
    /// MIG instance, `0xFFFFFFFF` without MIG.
    pub gpu_instance_id: c_uint,
    /// MIG instance, `0xFFFFFFFF` without MIG.
    pub compute_instance_id: c_uint,
}

/// `nvmlProcessDetail_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessDetail {
    /// Process id in the pid namespace of the driver's host.
    pub pid: c_uint,
    /// Device memory in bytes.
    pub used_gpu_memory: u64,
    /// MIG instance, `0xFFFFFFFF` without MIG.
    pub gpu_instance_id: c_uint,
    /// MIG instance, `0xFFFFFFFF` without MIG.
    pub compute_instance_id: c_uint,
    /// Device memory under confidential computing, in bytes.
    pub used_protected_memory: u64,
}

/// `nvmlProcessDetailList_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessDetailList {
    /// [`PROCESS_DETAIL_LIST_VERSION`], set by the caller.
    pub version: c_uint,
    /// Kind of processes (`nvmlProcessMode_t`): 0 compute, 1 graphics, 2 MPS, 3 all.
    pub mode: c_uint,
    /// In: length of `list`. Out: number of entries.
    pub count: c_uint,
    /// The caller's array.
    pub list: *mut ProcessDetail,
}

/// `nvmlProcessDetailList_v1`
#[allow(clippy::cast_possible_truncation, reason = "24 bytes")]
pub const PROCESS_DETAIL_LIST_VERSION: c_uint =
    size_of::<ProcessDetailList>() as c_uint | (1 << 24);

/// `nvmlProcessUtilizationSample_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUtilizationSample {
    /// Process id in the pid namespace of the driver's host.
    pub pid: c_uint,
    /// Microseconds since 1970.
    pub time: u64,
    /// Time in which kernels ran.
    pub kernels: c_uint,
    /// Time in which memory was read or written.
    pub memory: c_uint,
    /// Video encoder.
    pub encoder: c_uint,
    /// Video decoder.
    pub decoder: c_uint,
}

/// `nvmlProcessUtilizationInfo_v1_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUtilizationInfo {
    /// Microseconds since 1970.
    pub time: u64,
    /// Process id in the pid namespace of the driver's host.
    pub pid: c_uint,
    /// Time in which kernels ran.
    pub kernels: c_uint,
    /// Time in which memory was read or written.
    pub memory: c_uint,
    /// Video encoder.
    pub encoder: c_uint,
    /// Video decoder.
    pub decoder: c_uint,
    /// JPEG decoder.
    pub jpeg: c_uint,
    /// Optical flow.
    pub optical_flow: c_uint,
}

/// `nvmlProcessesUtilizationInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessesUtilizationInfo {
    /// [`PROCESSES_UTILIZATION_VERSION`], set by the caller.
    pub version: c_uint,
    /// In: length of `list`. Out: number of entries.
    pub count: c_uint,
    /// Only samples after this time are returned, in microseconds since 1970.
    pub last_seen: u64,
    /// The caller's array.
    pub list: *mut ProcessUtilizationInfo,
}

/// `nvmlProcessesUtilizationInfo_v1`
#[allow(clippy::cast_possible_truncation, reason = "24 bytes")]
pub const PROCESSES_UTILIZATION_VERSION: c_uint =
    size_of::<ProcessesUtilizationInfo>() as c_uint | (1 << 24);

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler lays out `nvml.h` of CUDA 13.
    #[test]
    fn sizes_are_those_of_the_header() {
        assert_eq!(size_of::<ProcessInfoV1>(), 16);
        assert_eq!(size_of::<ProcessInfoV2>(), 24);
        assert_eq!(size_of::<ProcessDetail>(), 32);
        assert_eq!(PROCESS_DETAIL_LIST_VERSION, 0x0100_0018);
        assert_eq!(size_of::<ProcessUtilizationSample>(), 32);
        assert_eq!(size_of::<ProcessUtilizationInfo>(), 40);
        assert_eq!(PROCESSES_UTILIZATION_VERSION, 0x0100_0018);
    }
}
