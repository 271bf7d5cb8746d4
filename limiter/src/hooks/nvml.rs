//! Hooks that report the session's limit as a device's memory in NVML.

use super::Call;
use crate::device::Device;
use crate::driver_calls::nvml;
use crate::memory::ReportedMemory;
use crate::process::Process;
use crate::verdict::Verdict;
use driver::nvml::{Memory, MemoryV2, NvmlDevice, NvmlReturn};

macros::hooks! {
    /// NVML, Device Queries: memory within the session's limit.
    library Nvml;

    fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut Memory) -> NvmlReturn = memory_info;
    fn nvmlDeviceGetMemoryInfo_v2(device: NvmlDevice, memory: *mut MemoryV2) -> NvmlReturn = memory_info_v2;
}

/// The device of an NVML handle, if it has a limit now.
pub(super) fn limited(process: &'static Process, device: NvmlDevice) -> Verdict<&'static Device> {
    match process.nvml() {
        Verdict::Limited(()) => match nvml::uuid_of(device).map(|u| process.device_to_look_at(u)) {
            Some(Verdict::Limited(device)) if !device.ledger.is_limited() => Verdict::Free,
            Some(other) => other,
            None => Verdict::Free,
        },
        Verdict::Free => Verdict::Free,
        Verdict::Denied => Verdict::Denied,
    }
}

/// Answers by `session` if the device has a limit now, otherwise by the driver. A refused call writes nothing.
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

/// Writes the driver's answer into `asked`, rewritten to the session's view. A failed call writes nothing.
fn rewritten<T: Copy>(
    process: &'static Process,
    device: NvmlDevice,
    asked: *mut T,
    original: impl Fn(*mut T) -> NvmlReturn,
    rewrite: impl FnOnce(&'static Device, &mut T),
) -> NvmlReturn {
    if asked.is_null() {
        return original(asked);
    }
    answered(
        process,
        device,
        || original(asked),
        |limited| {
            // SAFETY: not null, and the program's structure.
            let mut found = unsafe { asked.read_unaligned() };
            let result = original(&raw mut found);
            if !result.is_ok() {
                return result;
            }
            rewrite(limited, &mut found);
            if limited.ledger.is_denied() {
                return NvmlReturn::NO_PERMISSION;
            }
            // SAFETY: as above.
            unsafe { asked.write_unaligned(found) };
            result
        },
    )
}

fn memory_info(
    call: Call<signature::nvmlDeviceGetMemoryInfo>,
    device: NvmlDevice,
    memory: *mut Memory,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or a structure of the same form.
    let original = |memory| unsafe { (call.original)(device, memory) };
    rewritten(call.process, device, memory, original, |device, memory| {
        if let Some(ReportedMemory { total, free, used }) =
            call.process.memory.view(&device.memory, memory.free, memory.total)
        {
            *memory = Memory { total, free, used };
        }
    })
}

fn memory_info_v2(
    call: Call<signature::nvmlDeviceGetMemoryInfo_v2>,
    device: NvmlDevice,
    memory: *mut MemoryV2,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or a structure of the same form.
    let original = |memory| unsafe { (call.original)(device, memory) };
    rewritten(call.process, device, memory, original, |device, memory| {
        if let Some(ReportedMemory { total, free, used }) =
            call.process.memory.view(&device.memory, memory.free, memory.total)
        {
            // The session's view has no reserved part.
            *memory = MemoryV2 { total, free, used, reserved: 0, ..*memory };
        }
    })
}
