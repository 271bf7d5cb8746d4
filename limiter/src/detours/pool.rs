//! Stream-ordered memory.

use super::Call;
use super::linear::charged;
use crate::memory::{self, Handle};
use utils::driver::cuda::{CuResult, DevicePtr, MemoryPool, Stream};
use utils::page::layout::Kind;

macros::detours! {
    /// CUDA driver API, Stream Ordered Memory Allocator.
    library Cuda;

    fn cuMemAllocAsync | cuMemAllocAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, stream: Stream) -> CuResult = alloc_async;
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream) -> CuResult = alloc_from_pool;
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz (pointer: DevicePtr, stream: Stream) -> CuResult = free_async;
}

fn alloc_async(
    call: Call<signature::cuMemAllocAsync>,
    pointer: *mut DevicePtr,
    bytes: usize,
    stream: Stream,
) -> CuResult {
    charged(Kind::Pool, bytes as u64, pointer, || {
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
    charged(Kind::Pool, bytes as u64, pointer, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(pointer, bytes, pool, stream) }
    })
}

fn free_async(
    call: Call<signature::cuMemFreeAsync>,
    pointer: DevicePtr,
    stream: Stream,
) -> CuResult {
    // SAFETY: the program's own arguments.
    memory::free(Handle::Address(pointer), || unsafe { (call.original)(pointer, stream) })
}
