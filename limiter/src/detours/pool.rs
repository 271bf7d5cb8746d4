//! Stream-ordered memory.

use super::Call;
use crate::memory::{self, Handle, pools};
use crate::own;
use crate::runtime::{self, Verdict};
use core::ptr;
use utils::driver::cuda::{CuResult, DevicePtr, LOCATION_DEVICE, MemoryPool, PoolProps, Stream};

macros::detours! {
    /// CUDA driver API, Stream Ordered Memory Allocator: pools are charged by what they reserve.
    library Cuda;

    fn cuMemAllocAsync | cuMemAllocAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, stream: Stream) -> CuResult = alloc_async;
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream) -> CuResult = alloc_from_pool;
    /// Also frees linear memory, in the order of a stream.
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz (pointer: DevicePtr, stream: Stream) -> CuResult = free_async;
    fn cuMemPoolCreate(pool: *mut MemoryPool, props: *const PoolProps) -> CuResult = create;
    fn cuMemPoolDestroy(pool: MemoryPool) -> CuResult = destroy;
}

/// Charges an allocation from `pool`, or from the current device's own pool if that is null.
fn charged(
    pointer: *mut DevicePtr,
    bytes: usize,
    pool: MemoryPool,
    stream: Stream,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    match runtime::get().current_device() {
        Verdict::Limited(device) if device.has_memory_limit() => {
            let (mut pool, mut ordinal) = (pool, 0);
            if pool.is_null()
                && !(own::ctx_get_device(&raw mut ordinal).is_ok()
                    && own::device_get_mem_pool(&raw mut pool, ordinal).is_ok())
            {
                // The driver has no such pools; it says so better.
                return original();
            }
            pools::allocate(device, pool, memory::linear_bytes(bytes as u64), original, || {
                // SAFETY: the call succeeded, so the driver has written there.
                let _ = own::mem_free_async(unsafe { *pointer }, stream);
            })
        }
        Verdict::Limited(_) | Verdict::Free => original(),
        Verdict::Denied => CuResult::NOT_PERMITTED,
    }
}

fn alloc_async(
    call: Call<signature::cuMemAllocAsync>,
    pointer: *mut DevicePtr,
    bytes: usize,
    stream: Stream,
) -> CuResult {
    charged(pointer, bytes, ptr::null_mut(), stream, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(pointer, bytes, stream) }
    })
}

fn alloc_from_pool(
    call: Call<signature::cuMemAllocFromPoolAsync>,
    pointer: *mut DevicePtr,
    bytes: usize,
    pool: MemoryPool,
    stream: Stream,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(pointer, bytes, pool, stream) };
    if pool.is_null() {
        return original();
    }
    charged(pointer, bytes, pool, stream, original)
}

fn free_async(
    call: Call<signature::cuMemFreeAsync>,
    pointer: DevicePtr,
    stream: Stream,
) -> CuResult {
    // SAFETY: the program's own arguments.
    memory::free(Handle::Address(pointer), || unsafe { (call.original)(pointer, stream) })
}

fn create(
    call: Call<signature::cuMemPoolCreate>,
    pool: *mut MemoryPool,
    props: *const PoolProps,
) -> CuResult {
    // SAFETY: null, or what the driver is about to read.
    let location = unsafe { props.as_ref() }.map(|props| props.location);
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pool, props) };
    if let (true, Some(location)) = (result.is_ok(), location) {
        let device = match location.kind {
            LOCATION_DEVICE => runtime::get().device(location.id),
            _ => Verdict::Free,
        };
        let device = match device {
            Verdict::Limited(device) if device.has_memory_limit() => Some(device),
            _ => None,
        };
        // SAFETY: the call succeeded, so the driver has written there.
        pools::created(unsafe { *pool }, device);
    }
    result
}

fn destroy(call: Call<signature::cuMemPoolDestroy>, pool: MemoryPool) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pool) };
    if result.is_ok() {
        pools::destroyed(pool);
    }
    result
}
