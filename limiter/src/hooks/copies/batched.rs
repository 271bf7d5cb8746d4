//! Hooks of batched copies, copies with attributes, prefetches of managed memory, and decompression.

use super::{CopyKind, transfer};
use crate::compute::Work;
use crate::hooks::Call;
use crate::hooks::pointers;
use core::ffi::{c_uint, c_ulonglong};
use driver::copy::{BatchedCopy3d, CopyAttributes, DecompressParams};
use driver::cuda::{CuResult, Device, DevicePtr, LOCATION_DEVICE, MemLocation, Stream};

macros::hooks! {
    /// CUDA driver API, Memory Management: copies and fills.
    library Cuda;

    /// A batch is one piece of work, with the bytes of all its copies.
    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut CopyAttributes, firsts: *mut usize, attribute_count: usize, stream: Stream) -> CuResult = copies;
    /// The form of CUDA 12.8, which returns the index of the failed copy.
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz (to: *mut DevicePtr, from: *mut DevicePtr, sizes: *mut usize, count: usize, attributes: *mut CopyAttributes, firsts: *mut usize, attribute_count: usize, failed: *mut usize, stream: Stream) -> CuResult = copies_12;
    /// A batch is one piece of work, with the bytes of all its copies.
    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz (count: usize, list: *mut BatchedCopy3d, flags: c_ulonglong, stream: Stream) -> CuResult = copies_3d;
    /// The form of CUDA 12.8, which returns the index of the failed copy.
    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz (count: usize, list: *mut BatchedCopy3d, failed: *mut usize, flags: c_ulonglong, stream: Stream) -> CuResult = copies_3d_12;
    /// A single copy with attributes, of CUDA 13.2.
    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz (to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *mut CopyAttributes, stream: Stream) -> CuResult = with_attributes;
    /// A single copy with attributes, of CUDA 13.2.
    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz (copy: *mut BatchedCopy3d, flags: c_ulonglong, stream: Stream) -> CuResult = with_attributes_3d;

    /// CUDA driver API, Unified Addressing: managed memory is moved before it is used.
    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz (at: DevicePtr, bytes: usize, location: MemLocation, flags: c_uint, stream: Stream) -> CuResult = prefetch;
    /// The form of CUDA 8.
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz (at: DevicePtr, bytes: usize, device: Device, stream: Stream) -> CuResult = prefetch_8;
    /// CUDA driver API, Unified Addressing: managed memory is moved before it is used.
    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz (at: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut MemLocation, firsts: *mut usize, location_count: usize, flags: c_ulonglong, stream: Stream) -> CuResult = prefetches(CopyKind::PREFETCH_BATCH);
    /// CUDA driver API, Unified Addressing: managed memory is moved before it is used.
    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz (at: *mut DevicePtr, sizes: *mut usize, count: usize, locations: *mut MemLocation, firsts: *mut usize, location_count: usize, flags: c_ulonglong, stream: Stream) -> CuResult = prefetches(CopyKind::DISCARD_AND_PREFETCH);

    /// Decompression by the device's decompression engine.
    fn cuMemBatchDecompressAsync | cuMemBatchDecompressAsync_ptsz (list: *mut DecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: Stream) -> CuResult = decompress;
}

/// Longer batches count as work of unknown size.
const MOST_PARTS: usize = 1024;

/// The work of a list of `count` parts, whose sizes are added up.
fn sum<T: Copy>(
    kind: CopyKind,
    list: *const T,
    count: usize,
    size: impl Fn(T) -> u64,
) -> Option<Work> {
    // The driver refuses both.
    if list.is_null() || count == 0 {
        return None;
    }
    if count > MOST_PARTS {
        return Some(Work::UNKNOWN);
    }
    // SAFETY: as long as the program says, and the driver is about to read all of it.
    let parts = unsafe { pointers::list(list, count) };
    kind.work(parts.map(size).fold(0, u64::saturating_add))
}

fn sum_of_sizes(kind: CopyKind, sizes: *const usize, count: usize) -> Option<Work> {
    sum(kind, sizes, count, |size| size as u64)
}

/// Adds up elements instead of bytes, because only the array knows its elements' size. That distinguishes work kinds as
/// well.
fn sum_of_extents(list: *const BatchedCopy3d, count: usize) -> Option<Work> {
    sum(CopyKind::BATCH_3D, list, count, |part| {
        let rows = (part.extent.height as u64).saturating_mul(part.extent.depth as u64);
        rows.saturating_mul(part.extent.width as u64)
    })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn copies(
    call: Call<signature::cuMemcpyBatchAsync_v2>,
    to: *mut DevicePtr,
    from: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    stream: Stream,
) -> CuResult {
    transfer(
        || sum_of_sizes(CopyKind::BATCH, sizes, count),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe {
                (call.original)(to, from, sizes, count, attributes, firsts, attribute_count, stream)
            }
        },
    )
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn copies_12(
    call: Call<signature::cuMemcpyBatchAsync>,
    to: *mut DevicePtr,
    from: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: Stream,
) -> CuResult {
    transfer(
        || sum_of_sizes(CopyKind::BATCH, sizes, count),
        stream,
        &call,
        || {
            let (list, number) = (attributes, attribute_count);
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(to, from, sizes, count, list, firsts, number, failed, stream) }
        },
    )
}

fn with_attributes(
    call: Call<signature::cuMemcpyWithAttributesAsync>,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    attributes: *mut CopyAttributes,
    stream: Stream,
) -> CuResult {
    transfer(
        || CopyKind::BATCH.work(bytes as u64),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(to, from, bytes, attributes, stream) }
        },
    )
}

fn with_attributes_3d(
    call: Call<signature::cuMemcpy3DWithAttributesAsync>,
    copy: *mut BatchedCopy3d,
    flags: c_ulonglong,
    stream: Stream,
) -> CuResult {
    transfer(
        || sum_of_extents(copy, 1),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(copy, flags, stream) }
        },
    )
}

fn copies_3d(
    call: Call<signature::cuMemcpy3DBatchAsync_v2>,
    count: usize,
    list: *mut BatchedCopy3d,
    flags: c_ulonglong,
    stream: Stream,
) -> CuResult {
    transfer(
        || sum_of_extents(list, count),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(count, list, flags, stream) }
        },
    )
}

fn copies_3d_12(
    call: Call<signature::cuMemcpy3DBatchAsync>,
    count: usize,
    list: *mut BatchedCopy3d,
    failed: *mut usize,
    flags: c_ulonglong,
    stream: Stream,
) -> CuResult {
    transfer(
        || sum_of_extents(list, count),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(count, list, failed, flags, stream) }
        },
    )
}

/// Prefetches managed memory. A prefetch is only a hint: memory that was placed on the host stays there.
fn ahead<F>(
    to_device: bool,
    at: DevicePtr,
    bytes: usize,
    stream: Stream,
    call: &Call<F>,
    original: impl FnOnce() -> CuResult,
) -> CuResult {
    if to_device && call.process.memory.is_on_host(at) {
        return CuResult::SUCCESS;
    }
    let kind = if to_device { CopyKind::PREFETCH_TO_DEVICE } else { CopyKind::PREFETCH_TO_HOST };
    transfer(|| kind.work(bytes as u64), stream, call, original)
}

fn prefetch(
    call: Call<signature::cuMemPrefetchAsync_v2>,
    at: DevicePtr,
    bytes: usize,
    location: MemLocation,
    flags: c_uint,
    stream: Stream,
) -> CuResult {
    ahead(location.kind == LOCATION_DEVICE, at, bytes, stream, &call, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(at, bytes, location, flags, stream) }
    })
}

fn prefetch_8(
    call: Call<signature::cuMemPrefetchAsync>,
    at: DevicePtr,
    bytes: usize,
    device: Device,
    stream: Stream,
) -> CuResult {
    // -1 means the host.
    ahead(device >= 0, at, bytes, stream, &call, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(at, bytes, device, stream) }
    })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
fn prefetches(
    call: Call<signature::cuMemPrefetchBatchAsync>,
    kind: CopyKind,
    at: *mut DevicePtr,
    sizes: *mut usize,
    count: usize,
    locations: *mut MemLocation,
    firsts: *mut usize,
    location_count: usize,
    flags: c_ulonglong,
    stream: Stream,
) -> CuResult {
    // SAFETY: as many addresses as said, which the driver is about to read.
    let mut ranges = unsafe { pointers::list(at, count) };
    // A prefetch is only a hint: memory that was placed on the host stays there.
    if ranges.any(|at| call.process.memory.is_on_host(at)) {
        return CuResult::SUCCESS;
    }
    transfer(
        || sum_of_sizes(kind, sizes, count),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe {
                (call.original)(at, sizes, count, locations, firsts, location_count, flags, stream)
            }
        },
    )
}

fn decompress(
    call: Call<signature::cuMemBatchDecompressAsync>,
    list: *mut DecompressParams,
    count: usize,
    flags: c_uint,
    failed: *mut usize,
    stream: Stream,
) -> CuResult {
    let work = || sum(CopyKind::DECOMPRESS, list, count, |part| part.from_bytes as u64);
    transfer(work, stream, &call, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(list, count, flags, failed, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_the_sum_of_its_parts() {
        let sizes = [100_usize, 200, 300];
        let sum = |count| sum_of_sizes(CopyKind::BATCH, sizes.as_ptr(), count);
        assert_eq!(sum(3), CopyKind::BATCH.work(600));
        assert_eq!(sum(2), CopyKind::BATCH.work(300));
        assert_eq!(sum(0), None);
        assert_eq!(sum_of_sizes(CopyKind::BATCH, core::ptr::null(), 3), None);
        let huge = [usize::MAX, usize::MAX];
        assert_eq!(sum_of_sizes(CopyKind::BATCH, huge.as_ptr(), 2), CopyKind::BATCH.work(u64::MAX));
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let one = [100_usize];
        let work = sum_of_sizes(CopyKind::BATCH, one.as_ptr(), MOST_PARTS + 1);
        assert_eq!(work, Some(Work::UNKNOWN));
    }
}
