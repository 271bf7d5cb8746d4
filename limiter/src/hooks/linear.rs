//! Hooks of linear, pitched and managed memory.

use super::Call;
use super::pointers::written;
use crate::driver_calls;
use crate::memory::{self, Handle, overcommit};
use crate::process::Process;
use crate::verdict::Verdict;
use core::ffi::c_uint;
use driver::cuda::{CuResult, DevicePtr};
use session::layout::MemoryKind;

macros::hooks! {
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

/// Rows of a pitched allocation begin at multiples of this many bytes on current devices.
const PITCH: u64 = 512;

/// Charges an allocation on the current device, to be freed by the address that the driver writes to `pointer`.
fn charged<P: Copy + Into<u64>>(
    process: &'static Process,
    kind: MemoryKind,
    bytes: u64,
    pointer: *mut P,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    match process.current_memory() {
        Verdict::Limited(device) => {
            // SAFETY: read after success only, when the driver has written there.
            let handle = || Handle::Address(unsafe { written(pointer) }.into());
            process.memory.allocate(device, kind, memory::linear_bytes(bytes), original, handle)
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

/// Like [`charged`], for memory that `on_host` can place on the host if the session is overcommitted. `valid`: whether
/// the driver would accept the arguments.
fn anywhere(
    process: &'static Process,
    valid: bool,
    bytes: u64,
    pointer: *mut DevicePtr,
    original: impl FnOnce() -> CuResult,
    on_host: impl FnOnce() -> CuResult,
) -> CuResult {
    match process.current_memory() {
        Verdict::Limited(device) => {
            // SAFETY: read after success only, when the driver or `on_host` has written there.
            let address = || unsafe { written(pointer) };
            let bytes = memory::linear_bytes(bytes);
            if valid && !pointer.is_null() {
                process.memory.allocate_anywhere(device, bytes, original, on_host, address)
            } else {
                // The driver decides; whatever it accepts is charged.
                let handle = || Handle::Address(address());
                process.memory.allocate(device, MemoryKind::Data, bytes, original, handle)
            }
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

/// Allocates managed memory on the host and writes its address for the program.
///
/// # Safety
/// `pointer` is the program's, not null.
pub(super) unsafe fn place(bytes: u64, pointer: *mut DevicePtr) -> CuResult {
    let Ok(bytes) = usize::try_from(bytes) else { return CuResult::OUT_OF_MEMORY };
    match overcommit::place(bytes) {
        Ok(address) => {
            // SAFETY: as promised by the caller.
            unsafe { pointer.write_unaligned(address) };
            CuResult::SUCCESS
        }
        Err(other) => other,
    }
}

fn alloc(call: Call<signature::cuMemAlloc_v2>, pointer: *mut DevicePtr, bytes: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(pointer, bytes) };
    // SAFETY: called where the pointer is not null.
    let on_host = || unsafe { place(bytes as u64, pointer) };
    anywhere(call.process, bytes > 0, bytes as u64, pointer, original, on_host)
}

fn alloc_32(call: Call<signature::cuMemAlloc>, pointer: *mut c_uint, bytes: c_uint) -> CuResult {
    // SAFETY: the program's own arguments.
    charged(call.process, MemoryKind::Data, bytes.into(), pointer, || unsafe {
        (call.original)(pointer, bytes)
    })
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
    let bytes = pitched(width as u64, height as u64);
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(pointer, pitch, width, height, element) };
    let on_host = || {
        // SAFETY: called where neither is null.
        unsafe {
            let result = place(bytes, pointer);
            if result.is_ok() {
                *pitch = width.next_multiple_of(PITCH as usize);
            }
            result
        }
    };
    let valid = matches!(element, 4 | 8 | 16) && bytes > 0 && !pitch.is_null();
    anywhere(call.process, valid, bytes, pointer, original, on_host)
}

fn pitch_32(
    call: Call<signature::cuMemAllocPitch>,
    pointer: *mut c_uint,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CuResult {
    charged(call.process, MemoryKind::Data, pitched(width.into(), height.into()), pointer, || {
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
    let original = || unsafe { (call.original)(pointer, bytes, flags) };
    let on_host = || {
        let result = original();
        if !result.is_ok() {
            return result;
        }
        // SAFETY: the call succeeded, so the driver has written there.
        let address = unsafe { written(pointer) };
        let result = overcommit::keep_on_host(address, bytes);
        if !result.is_ok() {
            let _ = driver_calls::mem_free(address);
        }
        result
    };
    anywhere(call.process, bytes > 0, bytes as u64, pointer, original, on_host)
}

fn free(call: Call<signature::cuMemFree_v2>, pointer: DevicePtr) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.free(Handle::Address(pointer), || unsafe { (call.original)(pointer) })
}

fn free_32(call: Call<signature::cuMemFree>, pointer: c_uint) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .free(Handle::Address(pointer.into()), || unsafe { (call.original)(pointer) })
}
