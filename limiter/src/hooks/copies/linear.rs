//! Hooks of copies and fills of contiguous bytes, and of fills of rows.

use super::place::are_on_host;
use super::{CopyKind, CopySize, DEFAULT, transfer};
use crate::compute::Work;
use crate::hooks::Call;
use core::ffi::{c_uchar, c_uint, c_ushort, c_void};
use driver::copy::DevicePtrV1;
use driver::cuda::{Array, Context, CuResult, DevicePtr, Stream};

macros::hooks! {
    /// CUDA driver API, Memory Management: copies and fills.
    library Cuda;

    fn cuMemcpy | cuMemcpy_ptds (to: DevicePtr, from: DevicePtr, bytes: usize) -> CuResult = anywhere;
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz (to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) -> CuResult = anywhere_async;
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds (to: DevicePtr, from: *const c_void, bytes: usize) -> CuResult = three(CopyKind::TO_DEVICE);
    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz (to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream) -> CuResult = three_async(CopyKind::TO_DEVICE);
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds (to: *mut c_void, from: DevicePtr, bytes: usize) -> CuResult = three(CopyKind::TO_HOST);
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz (to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream) -> CuResult = three_async(CopyKind::TO_HOST);
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds (to: DevicePtr, from: DevicePtr, bytes: usize) -> CuResult = three(CopyKind::WITHIN);
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz (to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) -> CuResult = three_async(CopyKind::WITHIN);
    /// Passes the gate of the current device only.
    fn cuMemcpyPeer | cuMemcpyPeer_ptds (to: DevicePtr, to_context: Context, from: DevicePtr, from_context: Context, bytes: usize) -> CuResult = five(CopyKind::PEER);
    /// Passes the gate of its stream's device only.
    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz (to: DevicePtr, to_context: Context, from: DevicePtr, from_context: Context, bytes: usize, stream: Stream) -> CuResult = five_async(CopyKind::PEER);

    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds (to: Array, offset: usize, from: DevicePtr, bytes: usize) -> CuResult = four(CopyKind::DEVICE_TO_ARRAY);
    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds (to: DevicePtr, from: Array, offset: usize, bytes: usize) -> CuResult = four(CopyKind::ARRAY_TO_DEVICE);
    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds (to: Array, offset: usize, from: *const c_void, bytes: usize) -> CuResult = four(CopyKind::HOST_TO_ARRAY);
    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz (to: Array, offset: usize, from: *const c_void, bytes: usize, stream: Stream) -> CuResult = four_async(CopyKind::HOST_TO_ARRAY);
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds (to: *mut c_void, from: Array, offset: usize, bytes: usize) -> CuResult = four(CopyKind::ARRAY_TO_HOST);
    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz (to: *mut c_void, from: Array, offset: usize, bytes: usize, stream: Stream) -> CuResult = four_async(CopyKind::ARRAY_TO_HOST);
    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds (to: Array, to_offset: usize, from: Array, from_offset: usize, bytes: usize) -> CuResult = five(CopyKind::ARRAY_TO_ARRAY);

    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds (to: DevicePtr, value: c_uchar, count: usize) -> CuResult = three(CopyKind::FILL_8);
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz (to: DevicePtr, value: c_uchar, count: usize, stream: Stream) -> CuResult = three_async(CopyKind::FILL_8);
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds (to: DevicePtr, value: c_ushort, count: usize) -> CuResult = three(CopyKind::FILL_16);
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz (to: DevicePtr, value: c_ushort, count: usize, stream: Stream) -> CuResult = three_async(CopyKind::FILL_16);
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds (to: DevicePtr, value: c_uint, count: usize) -> CuResult = three(CopyKind::FILL_32);
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz (to: DevicePtr, value: c_uint, count: usize, stream: Stream) -> CuResult = three_async(CopyKind::FILL_32);
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds (to: DevicePtr, pitch: usize, value: c_uchar, width: usize, height: usize) -> CuResult = rows(CopyKind::FILL_ROWS_8);
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz (to: DevicePtr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: Stream) -> CuResult = rows_async(CopyKind::FILL_ROWS_8);
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds (to: DevicePtr, pitch: usize, value: c_ushort, width: usize, height: usize) -> CuResult = rows(CopyKind::FILL_ROWS_16);
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz (to: DevicePtr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: Stream) -> CuResult = rows_async(CopyKind::FILL_ROWS_16);
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds (to: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize) -> CuResult = rows(CopyKind::FILL_ROWS_32);
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz (to: DevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> CuResult = rows_async(CopyKind::FILL_ROWS_32);

    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyHtoD(to: DevicePtrV1, from: *const c_void, bytes: c_uint) -> CuResult = three(CopyKind::TO_DEVICE);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyHtoDAsync(to: DevicePtrV1, from: *const c_void, bytes: c_uint, stream: Stream) -> CuResult = three_async(CopyKind::TO_DEVICE);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyDtoH(to: *mut c_void, from: DevicePtrV1, bytes: c_uint) -> CuResult = three(CopyKind::TO_HOST);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyDtoHAsync(to: *mut c_void, from: DevicePtrV1, bytes: c_uint, stream: Stream) -> CuResult = three_async(CopyKind::TO_HOST);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyDtoD(to: DevicePtrV1, from: DevicePtrV1, bytes: c_uint) -> CuResult = three(CopyKind::WITHIN);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyDtoDAsync(to: DevicePtrV1, from: DevicePtrV1, bytes: c_uint, stream: Stream) -> CuResult = three_async(CopyKind::WITHIN);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyDtoA(to: Array, offset: c_uint, from: DevicePtrV1, bytes: c_uint) -> CuResult = four(CopyKind::DEVICE_TO_ARRAY);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyAtoD(to: DevicePtrV1, from: Array, offset: c_uint, bytes: c_uint) -> CuResult = four(CopyKind::ARRAY_TO_DEVICE);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyHtoA(to: Array, offset: c_uint, from: *const c_void, bytes: c_uint) -> CuResult = four(CopyKind::HOST_TO_ARRAY);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyHtoAAsync(to: Array, offset: c_uint, from: *const c_void, bytes: c_uint, stream: Stream) -> CuResult = four_async(CopyKind::HOST_TO_ARRAY);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyAtoH(to: *mut c_void, from: Array, offset: c_uint, bytes: c_uint) -> CuResult = four(CopyKind::ARRAY_TO_HOST);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyAtoHAsync(to: *mut c_void, from: Array, offset: c_uint, bytes: c_uint, stream: Stream) -> CuResult = four_async(CopyKind::ARRAY_TO_HOST);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemcpyAtoA(to: Array, to_offset: c_uint, from: Array, from_offset: c_uint, bytes: c_uint) -> CuResult = five(CopyKind::ARRAY_TO_ARRAY);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD8(to: DevicePtrV1, value: c_uchar, count: c_uint) -> CuResult = three(CopyKind::FILL_8);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD16(to: DevicePtrV1, value: c_ushort, count: c_uint) -> CuResult = three(CopyKind::FILL_16);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD32(to: DevicePtrV1, value: c_uint, count: c_uint) -> CuResult = three(CopyKind::FILL_32);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD2D8(to: DevicePtrV1, pitch: c_uint, value: c_uchar, width: c_uint, height: c_uint) -> CuResult = rows(CopyKind::FILL_ROWS_8);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD2D16(to: DevicePtrV1, pitch: c_uint, value: c_ushort, width: c_uint, height: c_uint) -> CuResult = rows(CopyKind::FILL_ROWS_16);
    /// The 32-bit forms of CUDA 3.1.
    fn cuMemsetD2D32(to: DevicePtrV1, pitch: c_uint, value: c_uint, width: c_uint, height: c_uint) -> CuResult = rows(CopyKind::FILL_ROWS_32);
}

fn work_anywhere(to: DevicePtr, from: DevicePtr, bytes: usize) -> Option<Work> {
    CopyKind::ANYWHERE.work(bytes.wide()).filter(|_| !are_on_host([from, to]))
}

fn anywhere(
    call: Call<signature::cuMemcpy>,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    transfer(
        || work_anywhere(to, from, bytes),
        DEFAULT,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(to, from, bytes) }
        },
    )
}

fn anywhere_async(
    call: Call<signature::cuMemcpyAsync>,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: Stream,
) -> CuResult {
    transfer(
        || work_anywhere(to, from, bytes),
        stream,
        &call,
        || {
            // SAFETY: the program's own arguments.
            unsafe { (call.original)(to, from, bytes, stream) }
        },
    )
}

/// Generates two handlers for functions whose arguments give the size of the work: one for the default stream, one with
/// a stream argument.
macro_rules! transfers {
    ($($name:ident, $name_async:ident<$($generic:ident),*>($($argument:ident: $type:ty),*) = $size:expr;)*) => {$(
        fn $name<$($generic,)* S: CopySize>(
            call: Call<unsafe extern "C" fn($($type),*) -> CuResult>,
            kind: CopyKind,
            $($argument: $type),*
        ) -> CuResult {
            transfer(|| kind.work($size), DEFAULT, &call, || {
                // SAFETY: the program's own arguments.
                unsafe { (call.original)($($argument),*) }
            })
        }

        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        fn $name_async<$($generic,)* S: CopySize>(
            call: Call<unsafe extern "C" fn($($type,)* Stream) -> CuResult>,
            kind: CopyKind,
            $($argument: $type,)*
            stream: Stream,
        ) -> CuResult {
            transfer(|| kind.async_work($size), stream, &call, || {
                // SAFETY: the program's own arguments.
                unsafe { (call.original)($($argument,)* stream) }
            })
        }
    )*};
}

transfers! {
    three, three_async<A, B>(a: A, b: B, size: S) = size.wide();
    four, four_async<A, B, C>(a: A, b: B, c: C, size: S) = size.wide();
    five, five_async<A, B, C, D>(a: A, b: B, c: C, d: D, size: S) = size.wide();
    rows, rows_async<A, V>(to: A, pitch: S, value: V, width: S, height: S) =
        width.wide().saturating_mul(height.wide());
}
