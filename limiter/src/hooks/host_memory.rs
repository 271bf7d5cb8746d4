//! Hooks that keep overcommitted memory on the host, and record IPC handles.

use super::Call;
use super::pointers::written;
use crate::memory::overcommit::{
    ADVICE_NO_PREFERRED_LOCATION, ADVICE_PREFERRED_LOCATION, ADVICE_READ_MOSTLY,
};
use crate::process::Process;
use crate::report;
use core::ffi::{c_uint, c_void};
use driver::cuda::{CuResult, Device, DevicePtr, MemLocation};

macros::hooks! {
    /// CUDA driver API, Unified Addressing / Memory Management: overcommitted memory stays on the host and
    /// is not shared.
    library Cuda;

    fn cuMemAdvise(at: DevicePtr, bytes: usize, advice: c_uint, device: Device) -> CuResult = advise;
    fn cuMemAdvise_v2(at: DevicePtr, bytes: usize, advice: c_uint, location: MemLocation) -> CuResult = advise_v2;
    /// Shared memory stays charged while another process has it open.
    fn cuIpcGetMemHandle(handle: *mut c_void, at: DevicePtr) -> CuResult = export;
}

/// Whether advice would bring overcommitted memory to the device. Advice is only a hint, so it is then dropped.
fn stays(process: &Process, at: DevicePtr, advice: c_uint) -> bool {
    let moves = matches!(
        advice,
        ADVICE_READ_MOSTLY | ADVICE_PREFERRED_LOCATION | ADVICE_NO_PREFERRED_LOCATION
    );
    moves && process.memory.is_on_host(at)
}

fn advise(
    call: Call<signature::cuMemAdvise>,
    at: DevicePtr,
    bytes: usize,
    advice: c_uint,
    device: Device,
) -> CuResult {
    if stays(call.process, at, advice) {
        return CuResult::SUCCESS;
    }
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(at, bytes, advice, device) }
}

fn advise_v2(
    call: Call<signature::cuMemAdvise_v2>,
    at: DevicePtr,
    bytes: usize,
    advice: c_uint,
    location: MemLocation,
) -> CuResult {
    if stays(call.process, at, advice) {
        return CuResult::SUCCESS;
    }
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(at, bytes, advice, location) }
}

fn export(
    call: Call<signature::cuIpcGetMemHandle>,
    handle: *mut c_void,
    at: DevicePtr,
) -> CuResult {
    if call.process.memory.is_on_host(at) {
        report::once(format_args!(
            "memory that was placed on the host cannot be shared with other processes; such calls fail"
        ));
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(handle, at) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there, bytes of any alignment.
        call.process.memory.ipc_exported(at, &unsafe { written(handle.cast::<[u8; 64]>()) });
    }
    result
}
