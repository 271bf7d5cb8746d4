//! Hooks of memory imported from graphics interfaces (`cuImportExternalMemory`).

use super::Call;
use super::pointers::{read, written};
use crate::memory::{self, Handle};
use crate::verdict::Verdict;
use core::ffi::c_void;
use driver::cuda::{
    CuResult, DevicePtr, EXTERNAL_DMABUF_FD, EXTERNAL_NVSCIBUF, ExternalMemory,
    ExternalMemoryHandleDesc, MipmappedArray,
};

macros::hooks! {
    /// CUDA driver API, External Resource Interoperability: imported memory is charged to the current
    /// device until its object and everything mapped from it are gone.
    library Cuda;
    changes memory;

    fn cuImportExternalMemory(external: *mut ExternalMemory, descriptor: *const ExternalMemoryHandleDesc) -> CuResult = import;
    fn cuExternalMemoryGetMappedBuffer(pointer: *mut DevicePtr, external: ExternalMemory, descriptor: *const c_void) -> CuResult = map_buffer;
    fn cuExternalMemoryGetMappedMipmappedArray(array: *mut MipmappedArray, external: ExternalMemory, descriptor: *const c_void) -> CuResult = map_array;
    fn cuDestroyExternalMemory(external: ExternalMemory) -> CuResult = destroy;
}

fn import(
    call: Call<signature::cuImportExternalMemory>,
    external: *mut ExternalMemory,
    descriptor: *const ExternalMemoryHandleDesc,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(external, descriptor) };
    // SAFETY: null, or what the driver is about to read.
    let Some(descriptor) = (unsafe { read(descriptor) }) else { return original() };
    // Host memory, which devices without memory of their own use.
    if matches!(descriptor.kind, EXTERNAL_NVSCIBUF | EXTERNAL_DMABUF_FD) {
        return original();
    }
    match call.process.current_memory() {
        Verdict::Limited(device) => {
            let bytes = memory::linear_bytes(descriptor.size);
            // SAFETY: read after success only, when the driver has written there.
            let handle = || Handle::External(unsafe { written(external) } as usize);
            call.process.memory.import_external(device, bytes, original, handle)
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn map_buffer(
    call: Call<signature::cuExternalMemoryGetMappedBuffer>,
    pointer: *mut DevicePtr,
    external: ExternalMemory,
    descriptor: *const c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(pointer, external, descriptor) };
    // SAFETY: read after success only, when the driver has written there.
    let mapped = || Handle::Address(unsafe { written(pointer) });
    call.process.memory.physical().map_external(
        Handle::External(external as usize),
        original,
        mapped,
    )
}

fn map_array(
    call: Call<signature::cuExternalMemoryGetMappedMipmappedArray>,
    array: *mut MipmappedArray,
    external: ExternalMemory,
    descriptor: *const c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(array, external, descriptor) };
    // SAFETY: read after success only, when the driver has written there.
    let mapped = || Handle::MipmappedArray(unsafe { written(array) } as usize);
    call.process.memory.physical().map_external(
        Handle::External(external as usize),
        original,
        mapped,
    )
}

fn destroy(call: Call<signature::cuDestroyExternalMemory>, external: ExternalMemory) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .free(Handle::External(external as usize), || unsafe { (call.original)(external) })
}
