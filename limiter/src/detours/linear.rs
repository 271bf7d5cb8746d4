//! Linear, pitched and managed memory.

use super::Call;
use crate::memory::{self, Handle};
use crate::runtime::{self, Verdict};
use core::ffi::c_uint;
use utils::driver::cuda::{CuResult, DevicePtr};
use utils::page::layout::Kind;

macros::detours! {
    /// CUDA driver API, Memory Management: linear memory.
    library Cuda;
    changes memory;

    fn cuMemAlloc_v2(pointer: *mut DevicePtr, bytes: usize) -> CuResult = alloc;
    /// The 32-bit form of CUDA 3.1.
    fn cuMemAlloc(pointer: *mut c_uint, bytes: c_uint) -> CuResult = alloc_32;
    fn cuMemAllocPitch_v2(pointer: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint) -> CuResult = pitch;
    /// The 32-bit form of CUDA 3.1.
    fn cuMemAllocPitch(pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) -> CuResult = pitch_32;
    fn cuMemAllocManaged(pointer: *mut DevicePtr, bytes: usize, flags: c_uint) -> CuResult = managed;
    fn cuMemFree_v2(pointer: DevicePtr) -> CuResult = free;
    /// The 32-bit form of CUDA 3.1.
    fn cuMemFree(pointer: c_uint) -> CuResult = free_32;
}

/// Rows of a pitched allocation start at multiples of this many bytes on current devices.
const PITCH: u64 = 512;

/// Charges an allocation on the current device that will be freed by the address that the driver
/// writes to `pointer`.
pub(super) fn charged<P: Copy + Into<u64>>(
    kind: Kind,
    bytes: u64,
    pointer: *mut P,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    match runtime::get().current_device() {
        Verdict::Limited(device) if device.has_memory_limit() => {
            // SAFETY: read after success only, when the driver has written there.
            let handle = || Handle::Address(unsafe { *pointer }.into());
            memory::allocate(device, kind, memory::linear_bytes(bytes), original, handle)
        }
        Verdict::Limited(_) | Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn alloc(call: Call<signature::cuMemAlloc_v2>, pointer: *mut DevicePtr, bytes: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    charged(Kind::Data, bytes as u64, pointer, || unsafe { (call.original)(pointer, bytes) })
}

fn alloc_32(call: Call<signature::cuMemAlloc>, pointer: *mut c_uint, bytes: c_uint) -> CuResult {
    // SAFETY: the program's own arguments.
    charged(Kind::Data, bytes.into(), pointer, || unsafe { (call.original)(pointer, bytes) })
}

fn pitched(width: u64, height: u64) -> u64 {
    width.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX).saturating_mul(height)
}

fn pitch(
    call: Call<signature::cuMemAllocPitch_v2>,
    pointer: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CuResult {
    charged(Kind::Data, pitched(width as u64, height as u64), pointer, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(pointer, pitch, width, height, element) }
    })
}

fn pitch_32(
    call: Call<signature::cuMemAllocPitch>,
    pointer: *mut c_uint,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CuResult {
    charged(Kind::Data, pitched(width.into(), height.into()), pointer, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(pointer, pitch, width, height, element) }
    })
}

fn managed(
    call: Call<signature::cuMemAllocManaged>,
    pointer: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    charged(Kind::Data, bytes as u64, pointer, || unsafe { (call.original)(pointer, bytes, flags) })
}

fn free(call: Call<signature::cuMemFree_v2>, pointer: DevicePtr) -> CuResult {
    // SAFETY: the program's own arguments.
    memory::free(Handle::Address(pointer), || unsafe { (call.original)(pointer) })
}

fn free_32(call: Call<signature::cuMemFree>, pointer: c_uint) -> CuResult {
    // SAFETY: the program's own arguments.
    memory::free(Handle::Address(pointer.into()), || unsafe { (call.original)(pointer) })
}
