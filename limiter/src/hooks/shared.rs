//! Hooks of IPC memory, and of exported and imported pools.

use super::Call;
use super::pointers::written;
use crate::memory::Handle;
use core::ffi::{c_uint, c_void};
use driver::cuda::{CuResult, DevicePtr, HANDLE_TYPE_POSIX_FD, IpcMemHandle, MemoryPool};
use std::os::fd::RawFd;

macros::hooks! {
    /// CUDA driver API, Memory Management / Stream Ordered Memory Allocator: memory that another process
    /// has exported is charged to that process, as long as it lives.
    library Cuda;
    changes memory;

    fn cuIpcOpenMemHandle | cuIpcOpenMemHandle_v2 (pointer: *mut DevicePtr, handle: IpcMemHandle, flags: c_uint) -> CuResult = open;
    fn cuIpcCloseMemHandle(pointer: DevicePtr) -> CuResult = close;
    fn cuMemPoolImportFromShareableHandle(pool: *mut MemoryPool, handle: *mut c_void, kind: c_uint, flags: u64) -> CuResult = import_pool;
    /// Exported memory stays charged while another process or a descriptor refers to it.
    fn cuMemPoolExportToShareableHandle(handle: *mut c_void, pool: MemoryPool, kind: c_uint, flags: u64) -> CuResult = export_pool;
}

/// The descriptor in a shareable handle, if `kind` is `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) fn descriptor(kind: c_uint, number: usize) -> Option<RawFd> {
    (kind == HANDLE_TYPE_POSIX_FD).then(|| RawFd::try_from(number).ok()).flatten()
}

fn open(
    call: Call<signature::cuIpcOpenMemHandle>,
    pointer: *mut DevicePtr,
    handle: IpcMemHandle,
    flags: c_uint,
) -> CuResult {
    let device = call.process.current_memory().limited();
    let physical = call.process.memory.physical();
    let mark = device.and_then(|_| physical.mark_of_ipc(&handle.reserved));
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pointer, handle, flags) };
    match device {
        Some(device) if result.is_ok() => {
            // SAFETY: the call succeeded, so the driver has written there.
            let address = unsafe { written(pointer) };
            physical.opened(device, address, mark);
        }
        _ => physical.not_imported(mark),
    }
    result
}

fn close(call: Call<signature::cuIpcCloseMemHandle>, pointer: DevicePtr) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(pointer) };
    call.process.memory.physical().free_external(Handle::Address(pointer), original)
}

fn export_pool(
    call: Call<signature::cuMemPoolExportToShareableHandle>,
    handle: *mut c_void,
    pool: MemoryPool,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(handle, pool, kind, flags) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there, of this type a descriptor.
        let written = || unsafe { written(handle.cast::<RawFd>()) };
        let made = (kind == HANDLE_TYPE_POSIX_FD).then(written);
        call.process.memory.pools().exported(pool, call.process.memory.physical(), made);
    }
    result
}

fn import_pool(
    call: Call<signature::cuMemPoolImportFromShareableHandle>,
    pool: *mut MemoryPool,
    handle: *mut c_void,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    let memory = &call.process.memory;
    let mark = descriptor(kind, handle as usize).and_then(|it| memory.physical().mark_of(it));
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pool, handle, kind, flags) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there.
        let pool = unsafe { written(pool) };
        memory.pools().made(pool, None);
        if let (Some(device), Some(mark)) = (call.process.current_memory().limited(), mark) {
            memory.physical().pool_imported(device, pool as usize, mark);
        }
    }
    result
}
