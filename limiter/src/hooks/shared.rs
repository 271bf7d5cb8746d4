//! Memory of other processes.

use super::Call;
use crate::process::Process;
use core::ffi::{c_uint, c_void};
use driver::cuda::{CuResult, DevicePtr, IpcMemHandle, MemoryPool};

macros::hooks! {
    /// CUDA driver API, Memory Management / Stream Ordered Memory Allocator: what another process has
    /// exported is charged to that process.
    library Cuda;
    changes memory;

    fn cuIpcOpenMemHandle | cuIpcOpenMemHandle_v2 (pointer: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint) -> CuResult = open;
    fn cuIpcCloseMemHandle(pointer: DevicePtr) -> CuResult = close;
    fn cuMemPoolImportFromShareableHandle(pool: *mut MemoryPool, handle: *mut c_void, kind: c_uint, flags: u64) -> CuResult = import_pool;
    fn cuMemPoolImportPointer(pointer: *mut DevicePtr, pool: MemoryPool, data: *mut c_void) -> CuResult = import_pointer;
}

/// Remembers memory that the driver has just opened.
fn opened(process: &'static Process, pointer: *mut DevicePtr) {
    if let Some(device) = process.current_memory().limited() {
        // SAFETY: the call succeeded, so the driver has written there.
        process.memory.imports().opened(device, unsafe { *pointer });
    }
}

fn open(
    call: Call<signature::cuIpcOpenMemHandle>,
    pointer: *mut DevicePtr,
    handle: IpcMemHandle,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pointer, handle, flags) };
    if result.is_ok() {
        opened(call.process, pointer);
    }
    result
}

fn close(call: Call<signature::cuIpcCloseMemHandle>, pointer: DevicePtr) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.imports().close(pointer, || unsafe { (call.original)(pointer) })
}

fn import_pool(
    call: Call<signature::cuMemPoolImportFromShareableHandle>,
    pool: *mut MemoryPool,
    handle: *mut c_void,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pool, handle, kind, flags) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there.
        call.process.memory.pools().made(unsafe { *pool }, None);
    }
    result
}

fn import_pointer(
    call: Call<signature::cuMemPoolImportPointer>,
    pointer: *mut DevicePtr,
    pool: MemoryPool,
    data: *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pointer, pool, data) };
    if result.is_ok() {
        opened(call.process, pointer);
    }
    result
}
