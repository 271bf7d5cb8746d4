//! Hooks of multicast objects.

use super::Call;
use super::pointers::written;
use crate::memory::physical::BindingSource;
use crate::verdict::Verdict;
use core::ffi::c_void;
use driver::cuda::{AllocationHandle, CuResult, Device, DevicePtr};

macros::hooks! {
    /// CUDA driver API, Multicast Object Management: bound memory stays alive, and charged.
    library Cuda;
    changes memory;

    fn cuMulticastCreate(object: *mut AllocationHandle, prop: *const c_void) -> CuResult = create;
    fn cuMulticastBindMem(object: AllocationHandle, offset: usize, memory: AllocationHandle, memory_offset: usize, bytes: usize, flags: u64) -> CuResult = bind;
    fn cuMulticastBindAddr(object: AllocationHandle, offset: usize, address: DevicePtr, bytes: usize, flags: u64) -> CuResult = bind_address;
    fn cuMulticastBindMem_v2(object: AllocationHandle, device: Device, offset: usize, memory: AllocationHandle, memory_offset: usize, bytes: usize, flags: u64) -> CuResult = bind_for;
    fn cuMulticastBindAddr_v2(object: AllocationHandle, device: Device, offset: usize, address: DevicePtr, bytes: usize, flags: u64) -> CuResult = bind_address_for;
    fn cuMulticastUnbind(object: AllocationHandle, device: Device, offset: usize, bytes: usize) -> CuResult = unbind;
}

fn create(
    call: Call<signature::cuMulticastCreate>,
    object: *mut AllocationHandle,
    prop: *const c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(object, prop) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there.
        call.process.memory.physical().multicast(unsafe { written(object) }, None);
    }
    result
}

fn bind(
    call: Call<signature::cuMulticastBindMem>,
    object: AllocationHandle,
    offset: usize,
    memory: AllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> CuResult {
    call.process.memory.physical().bind(
        object,
        offset as u64,
        &BindingSource::Handle(memory),
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(object, offset, memory, memory_offset, bytes, flags) }
        },
    )
}

fn bind_address(
    call: Call<signature::cuMulticastBindAddr>,
    object: AllocationHandle,
    offset: usize,
    address: DevicePtr,
    bytes: usize,
    flags: u64,
) -> CuResult {
    call.process.memory.physical().bind(
        object,
        offset as u64,
        &BindingSource::Mapped(address, bytes as u64),
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(object, offset, address, bytes, flags) }
        },
    )
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn bind_for(
    call: Call<signature::cuMulticastBindMem_v2>,
    object: AllocationHandle,
    device: Device,
    offset: usize,
    memory: AllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: u64,
) -> CuResult {
    call.process.memory.physical().bind(
        object,
        offset as u64,
        &BindingSource::Handle(memory),
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(object, device, offset, memory, memory_offset, bytes, flags) }
        },
    )
}

fn bind_address_for(
    call: Call<signature::cuMulticastBindAddr_v2>,
    object: AllocationHandle,
    device: Device,
    offset: usize,
    address: DevicePtr,
    bytes: usize,
    flags: u64,
) -> CuResult {
    call.process.memory.physical().bind(
        object,
        offset as u64,
        &BindingSource::Mapped(address, bytes as u64),
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(object, device, offset, address, bytes, flags) }
        },
    )
}

fn unbind(
    call: Call<signature::cuMulticastUnbind>,
    object: AllocationHandle,
    device: Device,
    offset: usize,
    bytes: usize,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(object, device, offset, bytes) };
    match call.process.device(device) {
        Verdict::Limited(device) => {
            let physical = call.process.memory.physical();
            physical.unbind(object, &device.memory, offset as u64, bytes as u64, original)
        }
        Verdict::Free | Verdict::Denied => original(),
    }
}
