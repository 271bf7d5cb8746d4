//! Handles and addresses.

use core::ffi::{c_int, c_void};

/// `CUdevice`: a device ordinal, after `CUDA_VISIBLE_DEVICES`.
pub type Device = c_int;
/// `CUdeviceptr` (64 bits since `_v2`).
pub type DevicePtr = u64;
/// `CUcontext`
pub type Context = *mut c_void;
/// `CUmodule` or `CUlibrary`
pub type Module = *mut c_void;
/// `CUfunction` or `CUkernel`
pub type Function = *mut c_void;
/// `CUstream`; see [`super::STREAM_LEGACY`] and [`super::STREAM_PER_THREAD`] for the special values.
pub type Stream = *mut c_void;
/// `CUevent`
pub type Event = *mut c_void;
/// `CUarray`
pub type Array = *mut c_void;
/// `CUmipmappedArray`
pub type MipmappedArray = *mut c_void;
/// `CUmemoryPool`
pub type MemoryPool = *mut c_void;
/// `CUgraph`
pub type Graph = *mut c_void;
/// `CUgraphNode`
pub type GraphNode = *mut c_void;
/// `CUgraphExec`
pub type GraphExec = *mut c_void;
/// `CUgreenCtx`
pub type GreenContext = *mut c_void;
/// `CUdevResourceDesc`
pub type DevResourceDesc = *mut c_void;
/// `CUexternalMemory`
pub type ExternalMemory = *mut c_void;
/// `CUmemGenericAllocationHandle`
pub type AllocationHandle = u64;
