//! Hooks of calls that make a stream wait: work queued behind a wait does not keep the device busy.

use super::Call;
use super::tail_jump::Arguments;
use crate::compute;
use core::ffi::{c_uint, c_void};
use driver::cuda::{CuResult, DevicePtr, Event, IpcEventHandle, Stream};

macros::hooks! {
    /// CUDA driver API, Stream Management / Stream Memory Operations / External Resource Interoperability: work queued
    /// behind a wait does not keep the device busy.
    library Cuda;

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz (stream: Stream, event: Event, flags: c_uint) -> CuResult = event jumps if jumps_on;
    /// Event Management: an event may be recorded behind a gate in its stream.
    fn cuEventRecord | cuEventRecord_ptsz (event: Event, stream: Stream) -> CuResult = record jumps if jumps_on_event;
    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz (event: Event, stream: Stream, flags: c_uint) -> CuResult = record_with_flags jumps if jumps_on_event;
    fn cuEventDestroy | cuEventDestroy_v2 (event: Event) -> CuResult = destroy jumps if jumps_on_event;
    /// From then on, an event may depend on another process's work.
    fn cuIpcOpenEventHandle(event: *mut Event, handle: IpcEventHandle) -> CuResult = open_event;
    fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz | cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz (stream: Stream, at: DevicePtr, value: u32, flags: c_uint) -> CuResult = value;
    fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz | cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz (stream: Stream, at: DevicePtr, value: u64, flags: c_uint) -> CuResult = value;
    /// The batch may contain waits.
    fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz | cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz (stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint) -> CuResult = operations;
    fn cuWaitExternalSemaphoresAsync | cuWaitExternalSemaphoresAsync_ptsz (semaphores: *const c_void, parameters: *const c_void, count: c_uint, stream: Stream) -> CuResult = semaphores;
    /// Execution Control / Stream Management: the stream waits for a host function.
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz (stream: Stream, function: *const c_void, data: *mut c_void) -> CuResult = host_function;
    /// Execution Control / Stream Management: the stream waits for a host function.
    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz (stream: Stream, function: *const c_void, data: *mut c_void, mode: c_uint) -> CuResult = callback;
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz (stream: Stream, callback: *const c_void, data: *mut c_void, flags: c_uint) -> CuResult = callback;
}

#[inline]
fn jumps_on(_arguments: &Arguments, _per_thread: bool) -> bool {
    compute::events_are_the_devices_own() && compute::no_stream_has_a_gate()
}

#[inline]
fn jumps_on_event(_arguments: &Arguments, _per_thread: bool) -> bool {
    compute::no_stream_has_a_gate()
}

fn record(call: Call<signature::cuEventRecord>, event: Event, stream: Stream) -> CuResult {
    compute::event_comes_after(event, Some((stream, call.per_thread)));
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(event, stream) }
}

fn record_with_flags(
    call: Call<signature::cuEventRecordWithFlags>,
    event: Event,
    stream: Stream,
    flags: c_uint,
) -> CuResult {
    compute::event_comes_after(event, Some((stream, call.per_thread)));
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(event, stream, flags) }
}

fn destroy(call: Call<signature::cuEventDestroy>, event: Event) -> CuResult {
    compute::event_comes_after(event, None);
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(event) }
}

fn event(
    call: Call<signature::cuStreamWaitEvent>,
    stream: Stream,
    event: Event,
    flags: c_uint,
) -> CuResult {
    compute::wait_for_event(stream, call.per_thread, event, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, event, flags) }
    })
}

fn open_event(
    call: Call<signature::cuIpcOpenEventHandle>,
    event: *mut Event,
    handle: IpcEventHandle,
) -> CuResult {
    compute::comes_from_outside();
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(event, handle) }
}

fn value<T>(
    call: Call<unsafe extern "C" fn(Stream, DevicePtr, T, c_uint) -> CuResult>,
    stream: Stream,
    at: DevicePtr,
    value: T,
    flags: c_uint,
) -> CuResult {
    compute::wait_outside(stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, at, value, flags) }
    })
}

fn operations(
    call: Call<signature::cuStreamBatchMemOp>,
    stream: Stream,
    count: c_uint,
    operations: *mut c_void,
    flags: c_uint,
) -> CuResult {
    compute::wait_outside(stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, count, operations, flags) }
    })
}

fn semaphores(
    call: Call<signature::cuWaitExternalSemaphoresAsync>,
    semaphores: *const c_void,
    parameters: *const c_void,
    count: c_uint,
    stream: Stream,
) -> CuResult {
    compute::wait_outside(stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(semaphores, parameters, count, stream) }
    })
}

fn host_function(
    call: Call<signature::cuLaunchHostFunc>,
    stream: Stream,
    function: *const c_void,
    data: *mut c_void,
) -> CuResult {
    compute::wait_outside(stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, function, data) }
    })
}

fn callback(
    call: Call<signature::cuStreamAddCallback>,
    stream: Stream,
    callback: *const c_void,
    data: *mut c_void,
    flags: c_uint,
) -> CuResult {
    compute::wait_outside(stream, call.per_thread, || {
        // SAFETY: the program's own arguments.
        unsafe { (call.original)(stream, callback, data, flags) }
    })
}
