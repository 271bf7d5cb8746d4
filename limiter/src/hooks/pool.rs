//! Hooks of stream-ordered memory and pools.

use super::Call;
use super::pointers::{read, written};
use crate::driver_calls;
use crate::memory::{self, DeviceMemory, Handle};
use crate::process::Process;
use crate::verdict::Verdict;
use core::ffi::{c_int, c_uint, c_void};
use core::ops::RangeInclusive;
use core::ptr;
use driver::cuda::{
    CAPTURE_STATUS_NONE, CuResult, DevicePtr, LOCATION_DEVICE, MemoryPool, PoolProps,
    STREAM_PER_THREAD, Stream,
};

macros::hooks! {
    /// CUDA driver API, Stream Ordered Memory Allocator: pools are charged by what they reserve.
    library Cuda;
    changes memory;

    fn cuMemAllocAsync | cuMemAllocAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, stream: Stream) -> CuResult = alloc_async;
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz (pointer: *mut DevicePtr, bytes: usize, pool: MemoryPool, stream: Stream) -> CuResult = alloc_from_pool;
    /// Also frees linear memory, in stream order.
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz (pointer: DevicePtr, stream: Stream) -> CuResult = free_async;
    fn cuMemPoolCreate(pool: *mut MemoryPool, props: *const PoolProps) -> CuResult = create;
    fn cuMemPoolDestroy(pool: MemoryPool) -> CuResult = destroy;
    /// A trimmed pool's memory is released at once.
    fn cuMemPoolTrimTo(pool: MemoryPool, keep: usize) -> CuResult = trim_to;
    /// A lower release threshold may give memory back.
    fn cuMemPoolSetAttribute(pool: MemoryPool, attribute: c_uint, value: *mut c_void) -> CuResult = set_attribute;
}

/// `CU_MEMPOOL_ATTR_REUSE_*`: how soon freed memory may be reused.
const REUSE: RangeInclusive<c_uint> = 1..=3;

/// The device of a pool's memory, if it has a ledger.
fn owner(process: &'static Process, pool: MemoryPool) -> Verdict<&'static DeviceMemory> {
    let pools = process.memory.pools();
    if let Some(known) = pools.device_of(pool) {
        return known.map_or(Verdict::Free, Verdict::Limited);
    }
    // Pools that the program creates are registered. Others are the devices' default pools, or imported and charged to
    // their exporter.
    let mut count = 0;
    let _ = driver_calls::device_get_count(&raw mut count);
    for ordinal in 0..count {
        let mut default = ptr::null_mut();
        if driver_calls::device_get_default_mem_pool(&raw mut default, ordinal).is_ok()
            && default == pool
        {
            let device = process.device(ordinal).map(|device| &device.memory);
            if let Verdict::Limited(device) = device {
                pools.known(pool, Some(device));
            }
            return device;
        }
    }
    pools.known(pool, None);
    Verdict::Free
}

/// The current device's pool for stream-ordered allocations.
fn current_pool() -> Option<MemoryPool> {
    let (mut pool, mut ordinal) = (ptr::null_mut(), 0);
    let found = driver_calls::ctx_get_device(&raw mut ordinal).is_ok()
        && driver_calls::device_get_mem_pool(&raw mut pool, ordinal).is_ok();
    (found && !pool.is_null()).then_some(pool)
}

/// Replaces a null stream of a per-thread form by `CU_STREAM_PER_THREAD`.
fn named(stream: Stream, per_thread: bool) -> Stream {
    if stream.is_null() && per_thread { STREAM_PER_THREAD as Stream } else { stream }
}

/// Whether a stream is being captured.
fn captures(stream: Stream, per_thread: bool) -> bool {
    let stream = named(stream, per_thread);
    let mut status = CAPTURE_STATUS_NONE;
    driver_calls::stream_is_capturing(stream, &raw mut status).is_ok()
        && status != CAPTURE_STATUS_NONE
}

/// Charges an allocation from a pool; without a pool, the driver decides.
fn charged(
    process: &'static Process,
    pointer: *mut DevicePtr,
    bytes: usize,
    pool: Option<MemoryPool>,
    stream: Stream,
    per_thread: bool,
    original: impl Fn() -> CuResult,
) -> CuResult {
    let Some(pool) = pool else { return original() };
    match owner(process, pool) {
        // A captured allocation becomes a graph node, which is charged when the graph is launched.
        Verdict::Limited(device) if !pointer.is_null() && !captures(stream, per_thread) => {
            // SAFETY: read after success only, when the driver has written there.
            let address = || unsafe { written(pointer) };
            let result = process.memory.allocate_from_pool(
                device,
                (pool, named(stream, per_thread)),
                memory::linear_bytes(bytes as u64),
                original,
                address,
                || {
                    let _ = driver_calls::mem_free_async(address(), named(stream, per_thread));
                },
            );
            if result != CuResult::OUT_OF_MEMORY || bytes == 0 || !device.ledger.is_overcommitted()
            {
                return result;
            }
            // SAFETY: the driver has accepted the pointer so far, or would have.
            let on_host = || unsafe { super::linear::place(bytes as u64, pointer) };
            let on_host = || driver_calls::undisturbing(on_host);
            process.memory.place_on_host(
                device,
                memory::linear_bytes(bytes as u64),
                on_host,
                address,
            )
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
    charged(call.process, pointer, bytes, current_pool(), stream, call.per_thread, || {
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
    let pool = (!pool.is_null()).then_some(pool);
    charged(call.process, pointer, bytes, pool, stream, call.per_thread, original)
}

fn free_async(
    call: Call<signature::cuMemFreeAsync>,
    pointer: DevicePtr,
    stream: Stream,
) -> CuResult {
    if let Some(result) =
        call.process.memory.free_host_placed(pointer, named(stream, call.per_thread))
    {
        return result;
    }
    // SAFETY: the program's own arguments.
    call.process
        .memory
        .free(Handle::Address(pointer), || unsafe { (call.original)(pointer, stream) })
}

fn create(
    call: Call<signature::cuMemPoolCreate>,
    pool: *mut MemoryPool,
    props: *const PoolProps,
) -> CuResult {
    // SAFETY: null, or what the driver is about to read.
    let location = unsafe { read(props) }.map(|props| props.location);
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(pool, props) };
    if let (true, Some(location)) = (result.is_ok(), location) {
        let device = match location.kind {
            LOCATION_DEVICE => call.process.device(location.id).limited(),
            _ => None,
        };
        // SAFETY: the call succeeded, so the driver has written there.
        call.process
            .memory
            .pools()
            .made(unsafe { written(pool) }, device.map(|device| &device.memory));
    }
    result
}

fn destroy(call: Call<signature::cuMemPoolDestroy>, pool: MemoryPool) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.free(Handle::Pool(pool as usize), || unsafe { (call.original)(pool) })
}

fn trim_to(call: Call<signature::cuMemPoolTrimTo>, pool: MemoryPool, keep: usize) -> CuResult {
    // SAFETY: the program's own arguments.
    call.process.memory.pools().shrink(pool, || unsafe { (call.original)(pool, keep) })
}

fn set_attribute(
    call: Call<signature::cuMemPoolSetAttribute>,
    pool: MemoryPool,
    attribute: c_uint,
    value: *mut c_void,
) -> CuResult {
    // SAFETY: the program's own arguments.
    let result = call
        .process
        .memory
        .pools()
        .shrink(pool, || unsafe { (call.original)(pool, attribute, value) });
    if result.is_ok()
        && REUSE.contains(&attribute)
        // SAFETY: these attributes are numbers of this type, and the driver has just read it.
        && unsafe { read(value.cast::<c_int>()) } == Some(0)
    {
        call.process.memory.pools().waits(pool);
    }
    result
}
