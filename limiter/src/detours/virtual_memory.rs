//! Physical memory of the virtual memory API.

use super::Call;
use crate::memory::{self, Handle};
use crate::runtime::{self, Verdict};
use utils::driver::cuda::{AllocationHandle, AllocationProp, CuResult, LOCATION_DEVICE};
use utils::page::layout::Kind;

macros::detours! {
    /// CUDA driver API, Virtual Memory Management: memory is taken by `cuMemCreate`, on the device
    /// that the properties name, and not by mapping it.
    library Cuda;

    fn cuMemCreate(handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64) -> CuResult = create;
    fn cuMemRelease(handle: AllocationHandle) -> CuResult = release;
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
            let key = || Handle::Physical(unsafe { *handle });
            memory::allocate(device, Kind::Data, bytes as u64, original, key)
        }
        Verdict::Limited(_) | Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn release(call: Call<signature::cuMemRelease>, handle: AllocationHandle) -> CuResult {
    // SAFETY: the program's own arguments.
    memory::free(Handle::Physical(handle), || unsafe { (call.original)(handle) })
}
