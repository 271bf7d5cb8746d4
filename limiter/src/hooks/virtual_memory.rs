//! Hooks of physical memory (`cuMemCreate`): handles, mappings, exports, sparse arrays.

use super::Call;
use super::pointers::{self, read, written};
use super::shared::descriptor;
use crate::driver_calls;
use crate::memory::physical::TileChange;
use crate::memory::tiles::Region;
use crate::verdict::Verdict;
use core::ffi::{c_uint, c_void};
use driver::cuda::{
    AllocationHandle, AllocationProp, ArrayMapInfo, CuResult, DevicePtr, HANDLE_TYPE_POSIX_FD,
    LOCATION_DEVICE, OPERATION_MAP, SUBRESOURCE_MIPTAIL, Stream,
};
use std::os::fd::RawFd;

macros::hooks! {
    /// CUDA driver API, Virtual Memory Management: memory is charged by `cuMemCreate`, on the device
    /// that the properties name, and released when neither handle nor mapping is left.
    library Cuda;
    changes memory;

    fn cuMemCreate(handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64) -> CuResult = create;
    fn cuMemRelease(handle: AllocationHandle) -> CuResult = release;
    fn cuMemRetainAllocationHandle(handle: *mut AllocationHandle, address: *mut c_void) -> CuResult = retain;
    fn cuMemMap(address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64) -> CuResult = map;
    fn cuMemUnmap(address: DevicePtr, bytes: usize) -> CuResult = unmap;
    /// Exported memory stays charged while another process or a descriptor refers to it.
    fn cuMemExportToShareableHandle(shared: *mut c_void, handle: AllocationHandle, kind: c_uint, flags: u64) -> CuResult = export;
    /// Imported memory is charged to its exporter, as long as that process lives.
    fn cuMemImportFromShareableHandle(handle: *mut AllocationHandle, shared: *mut c_void, kind: c_uint) -> CuResult = import;
    /// Tiles of sparse arrays keep memory alive.
    fn cuMemMapArrayAsync | cuMemMapArrayAsync_ptsz (list: *mut ArrayMapInfo, count: c_uint, stream: Stream) -> CuResult = map_tiles;
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
    // SAFETY: null, or what the driver is about to read.
    let location = unsafe { read(prop) }.map(|prop| prop.location);
    let Some(location) = location.filter(|location| location.kind == LOCATION_DEVICE) else {
        return original();
    };
    match call.process.device(location.id) {
        Verdict::Limited(device) => {
            // SAFETY: read after success only, when the driver has written there.
            let handle = || unsafe { written(handle) };
            let memory = &call.process.memory;
            memory.create_physical(&device.memory, bytes as u64, original, handle)
        }
        Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn release(call: Call<signature::cuMemRelease>, handle: AllocationHandle) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.physical().release_handle(handle, || unsafe { (call.original)(handle) })
}

fn retain(
    call: Call<signature::cuMemRetainAllocationHandle>,
    handle: *mut AllocationHandle,
    address: *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(handle, address) };
    // SAFETY: read after success only, when the driver has written there.
    call.process.memory.physical().retain(address as u64, original, || unsafe { written(handle) })
}

fn map(
    call: Call<signature::cuMemMap>,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: u64,
) -> CuResult {
    call.process.memory.physical().map(address, offset as u64, bytes as u64, handle, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(address, bytes, offset, handle, flags) }
    })
}

fn unmap(call: Call<signature::cuMemUnmap>, address: DevicePtr, bytes: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .physical()
        .unmap(address, bytes as u64, || unsafe { (call.original)(address, bytes) })
}

fn export(
    call: Call<signature::cuMemExportToShareableHandle>,
    shared: *mut c_void,
    handle: AllocationHandle,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(shared, handle, kind, flags) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there, of this type a descriptor.
        let written = || unsafe { written(shared.cast::<RawFd>()) };
        let made = (kind == HANDLE_TYPE_POSIX_FD).then(written);
        call.process.memory.physical().exported(handle, made);
    }
    result
}

fn import(
    call: Call<signature::cuMemImportFromShareableHandle>,
    handle: *mut AllocationHandle,
    shared: *mut c_void,
    kind: c_uint,
) -> CuResult {
    let physical = call.process.memory.physical();
    let mark = descriptor(kind, shared as usize).and_then(|it| physical.mark_of(it));
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(handle, shared, kind) };
    if result.is_ok() {
        // SAFETY: the call succeeded, so the driver has written there.
        let handle = unsafe { written(handle) };
        let mut prop = AllocationProp::EMPTY;
        if !driver_calls::allocation_properties(&raw mut prop, handle).is_ok() {
            // A multicast object, which is shared by the same call as memory.
            physical.multicast(handle, mark);
        } else if prop.location.kind == LOCATION_DEVICE
            && let Verdict::Limited(device) = call.process.device(prop.location.id)
        {
            physical.imported(&device.memory, handle, mark);
        }
    }
    result
}

fn map_tiles(
    call: Call<signature::cuMemMapArrayAsync>,
    list: *mut ArrayMapInfo,
    count: c_uint,
    stream: Stream,
) -> CuResult {
    // SAFETY: called after the driver has read as many entries there.
    let changes = || unsafe { pointers::list(list, count as usize) }.map(change).collect();
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .physical()
        .map_tiles(changes, || unsafe { (call.original)(list, count, stream) })
}

fn change(entry: ArrayMapInfo) -> TileChange {
    let wide = u64::from;
    let parts = entry.subresource;
    let region = if entry.subresource_type == SUBRESOURCE_MIPTAIL {
        // Layer, unused, offset and size.
        let [layer, _, offset, offset_high, size, size_high, ..] = parts;
        let offset = wide(offset) | wide(offset_high) << 32;
        let size = wide(size) | wide(size_high) << 32;
        Region {
            plane: (Region::TAIL, layer),
            low: [offset, 0, 0],
            high: [offset.saturating_add(size), 1, 1],
        }
    } else {
        let [level, layer, x, y, z, width, height, depth] = parts;
        let low = [x, y, z].map(wide);
        let extent = [width, height, depth].map(wide);
        Region { plane: (level, layer), low, high: [0, 1, 2].map(|d| low[d] + extent[d]) }
    };
    TileChange {
        array: entry.resource as usize,
        region,
        handle: (entry.mem_operation_type == OPERATION_MAP).then_some(entry.mem_handle),
    }
}
