//! What NVML reports of a device's memory.

use super::Call;
use super::pointers::written;
use crate::device::Device;
use crate::driver_calls;
use crate::memory::ReportedMemory;
use crate::process::Process;
use crate::verdict::Verdict;
use core::ffi::{CStr, c_char, c_uint};
use driver::nvml::{Memory, MemoryV2, NvmlDevice, NvmlReturn};
use limits::GpuId;

macros::hooks! {
    /// NVML, Device Queries: memory as the session's limit gives it.
    library Nvml;

    fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut Memory) -> NvmlReturn = memory_info;
    fn nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: *mut MemoryV2) -> NvmlReturn = memory_info_v2;
}

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`
const UUID_SIZE: usize = 96;

fn uuid_of(device: NvmlDevice) -> Option<GpuId> {
    let mut text: [c_char; UUID_SIZE] = [0; UUID_SIZE];
    if !driver_calls::nvml_uuid(device, text.as_mut_ptr(), UUID_SIZE as c_uint).is_ok() {
        return None;
    }
    text[UUID_SIZE - 1] = 0;
    // SAFETY: ends with a zero byte.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?.parse().ok()
}

/// A device by NVML's handle, if it has a limit now.
pub(super) fn limited(process: &'static Process, device: NvmlDevice) -> Verdict<&'static Device> {
    match process.nvml() {
        Verdict::Limited(()) => match uuid_of(device) {
            // The node's other devices may be looked at, not used.
            Some(uuid) if !process.may_use(uuid) => Verdict::Free,
            Some(uuid) => match process.device_by_uuid(uuid, None) {
                Verdict::Limited(device) if !device.ledger.is_limited() => Verdict::Free,
                other => other,
            },
            None => Verdict::Free,
        },
        Verdict::Free => Verdict::Free,
        Verdict::Denied => Verdict::Denied,
    }
}

/// Answers for a device by `session` if it has a limit now, otherwise by the driver.
pub(super) fn answered(
    process: &'static Process,
    device: NvmlDevice,
    original: impl FnOnce() -> NvmlReturn,
    session: impl FnOnce(&'static Device) -> NvmlReturn,
) -> NvmlReturn {
    match limited(process, device) {
        Verdict::Limited(device) => session(device),
        Verdict::Free => original(),
        Verdict::Denied => NvmlReturn::NO_PERMISSION,
    }
}

/// Runs the original and rewrites a successful answer to what the session may see.
pub(super) fn rewritten(
    process: &'static Process,
    device: NvmlDevice,
    original: impl FnOnce() -> NvmlReturn,
    rewrite: impl FnOnce(&'static Device) -> NvmlReturn,
) -> NvmlReturn {
    let result = original();
    if result.is_ok() { answered(process, device, || result, rewrite) } else { result }
}

fn memory_info(
    call: Call<signature::nvmlDeviceGetMemoryInfo>,
    device: NvmlDevice,
    memory: *mut Memory,
) -> NvmlReturn {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device, memory) };
    rewritten(call.process, device, original, |device| {
        // SAFETY: the call succeeded, so the driver has filled it.
        let real = unsafe { written(memory) };
        if let Some(ReportedMemory { total, free, used }) =
            call.process.memory.view(&device.memory, real.free, real.total)
        {
            // SAFETY: as above.
            unsafe { memory.write_unaligned(Memory { total, free, used }) };
        }
        NvmlReturn::SUCCESS
    })
}

fn memory_info_v2(
    call: Call<signature::nvmlDeviceGetMemoryInfo_v2>,
    device: NvmlDevice,
    memory: *mut MemoryV2,
) -> NvmlReturn {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device, memory) };
    rewritten(call.process, device, original, |device| {
        // SAFETY: the call succeeded, so the driver has filled it.
        let real = unsafe { written(memory) };
        if let Some(ReportedMemory { total, free, used }) =
            call.process.memory.view(&device.memory, real.free, real.total)
        {
            // A session's view has no reserved part.
            let shown = MemoryV2 { total, free, used, reserved: 0, ..real };
            // SAFETY: as above.
            unsafe { memory.write_unaligned(shown) };
        }
        NvmlReturn::SUCCESS
    })
}
