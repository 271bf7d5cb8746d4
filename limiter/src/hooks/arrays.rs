//! Hooks of arrays and mipmapped arrays.

use super::Call;
use super::pointers::{read, written};
use crate::memory::{self, Handle};
use crate::process::Process;
use crate::verdict::Verdict;
use core::ffi::c_uint;
use driver::cuda::{
    ARRAY3D_DEFERRED_MAPPING, ARRAY3D_SPARSE, Array, Array3dDescriptor, Array3dDescriptorV1,
    ArrayDescriptor, ArrayDescriptorV1, CuResult, MipmappedArray,
};
use session::layout::MemoryKind;

macros::hooks! {
    /// CUDA driver API, Memory Management: arrays.
    library Cuda;
    changes memory;

    fn cuArrayCreate_v2(array: *mut Array, descriptor: *const ArrayDescriptor) -> CuResult = create;
    fn cuArray3DCreate_v2(array: *mut Array, descriptor: *const Array3dDescriptor) -> CuResult = create;
    /// The 32-bit forms of CUDA 3.1.
    fn cuArrayCreate(array: *mut Array, descriptor: *const ArrayDescriptorV1) -> CuResult = create;
    /// The 32-bit forms of CUDA 3.1.
    fn cuArray3DCreate(array: *mut Array, descriptor: *const Array3dDescriptorV1) -> CuResult = create;
    fn cuMipmappedArrayCreate(array: *mut MipmappedArray, descriptor: *const Array3dDescriptor, levels: c_uint) -> CuResult = create_mipmapped;
    fn cuArrayDestroy(array: Array) -> CuResult = destroy;
    fn cuMipmappedArrayDestroy(array: MipmappedArray) -> CuResult = destroy_mipmapped;
}

/// Charges an array by its descriptor. A sparse or deferred-mapping array has no memory of its own.
fn charged(
    process: &'static Process,
    descriptor: &Array3dDescriptor,
    bytes: impl FnOnce() -> u64,
    original: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> Handle,
) -> CuResult {
    match process.current_memory() {
        Verdict::Limited(device) => {
            if descriptor.flags & (ARRAY3D_SPARSE | ARRAY3D_DEFERRED_MAPPING) == 0 {
                return process.memory.allocate(
                    device,
                    MemoryKind::Array,
                    bytes(),
                    original,
                    handle,
                );
            }
            let result = original();
            if result.is_ok()
                && let Handle::Array(array) | Handle::MipmappedArray(array) = handle()
            {
                let at_once = descriptor.flags & ARRAY3D_DEFERRED_MAPPING != 0;
                process.memory.physical().sparse_made(device, array, at_once);
            }
            result
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

/// Creates an array from any form of its descriptor.
fn create<D: Copy + Into<Array3dDescriptor>>(
    call: Call<unsafe extern "C" fn(*mut Array, *const D) -> CuResult>,
    array: *mut Array,
    descriptor: *const D,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(array, descriptor) };
    // SAFETY: null, or what the driver is about to read.
    let Some(descriptor) = (unsafe { read(descriptor) }) else { return original() };
    // SAFETY: read after success only, when the driver has written there.
    let handle = || Handle::Array(unsafe { written(array) } as usize);
    let descriptor: Array3dDescriptor = descriptor.into();
    charged(call.process, &descriptor, || memory::array_bytes(&descriptor), original, handle)
}

fn create_mipmapped(
    call: Call<signature::cuMipmappedArrayCreate>,
    array: *mut MipmappedArray,
    descriptor: *const Array3dDescriptor,
    levels: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(array, descriptor, levels) };
    // SAFETY: null, or what the driver is about to read.
    let Some(descriptor) = (unsafe { read(descriptor) }) else { return original() };
    // SAFETY: read after success only, when the driver has written there.
    let handle = || Handle::MipmappedArray(unsafe { written(array) } as usize);
    charged(
        call.process,
        &descriptor,
        || memory::mipmapped_bytes(&descriptor, levels),
        original,
        handle,
    )
}

fn destroy(call: Call<signature::cuArrayDestroy>, array: Array) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.free(Handle::Array(array as usize), || unsafe { (call.original)(array) })
}

fn destroy_mipmapped(
    call: Call<signature::cuMipmappedArrayDestroy>,
    array: MipmappedArray,
) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .free(Handle::MipmappedArray(array as usize), || unsafe { (call.original)(array) })
}
