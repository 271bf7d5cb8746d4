//! Physical memory of the virtual memory API.

use super::Call;
use crate::memory::physical;
use crate::runtime::{self, Verdict};
use core::ffi::c_void;
use utils::driver::cuda::{AllocationHandle, AllocationProp, CuResult, DevicePtr, LOCATION_DEVICE};

macros::detours! {
    /// CUDA driver API, Virtual Memory Management: memory is taken by `cuMemCreate`, on the device
    /// that the properties name, and given back when neither handle nor mapping is left.
    library Cuda;
    changes memory;

    fn cuMemCreate(handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64) -> CuResult = create;
    fn cuMemRelease(handle: AllocationHandle) -> CuResult = release;
    fn cuMemRetainAllocationHandle(handle: *mut AllocationHandle, address: *mut c_void) -> CuResult = retain;
    fn cuMemMap(address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64) -> CuResult = map;
    fn cuMemUnmap(address: DevicePtr, bytes: usize) -> CuResult = unmap;
}

fn create(
    call: Call<signature::cuMemCreate>,
    handle: *mut AllocationHandle,
    bytes: usize,
    prop: *const AllocationProp,
    flags: u64,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(handle, bytes, prop, flags) };
    if prop.is_null() {
        return original();
    }
    // SAFETY: not null, and the driver is about to read it.
    let location = unsafe { (*prop).location };
    if location.kind != LOCATION_DEVICE {
        return original();
    }
    match runtime::get().device(location.id) {
        Verdict::Limited(device) if device.has_memory_limit() => {
            // SAFETY: read after success only, when the driver has written there.
            physical::create(device, bytes as u64, original, || unsafe { *handle })
        }
        Verdict::Limited(_) | Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn release(call: Call<signature::cuMemRelease>, handle: AllocationHandle) -> CuResult {
    // SAFETY: the program's own arguments.
    physical::release_handle(handle, || unsafe { (call.original)(handle) })
}

fn retain(
    call: Call<signature::cuMemRetainAllocationHandle>,
    handle: *mut AllocationHandle,
    address: *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(handle, address) };
    // SAFETY: read after success only, when the driver has written there.
    physical::retain(address as u64, original, || unsafe { *handle })
}

fn map(
    call: Call<signature::cuMemMap>,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: u64,
) -> CuResult {
    physical::map(address, bytes as u64, handle, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(address, bytes, offset, handle, flags) }
    })
}

fn unmap(call: Call<signature::cuMemUnmap>, address: DevicePtr, bytes: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    physical::unmap(address, bytes as u64, || unsafe { (call.original)(address, bytes) })
}
