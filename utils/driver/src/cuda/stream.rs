//! Streams, events and captures.

use super::handle::{DevicePtr, Stream};
use super::result::CuResult;
use core::ffi::{c_uint, c_void};

/// `CU_STREAM_NON_BLOCKING`: no implicit synchronization with the legacy default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_LEGACY`: the legacy default stream, regardless of compile options. A null stream means this one, except
/// in `_ptsz` functions, where it means [`STREAM_PER_THREAD`].
pub const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`
pub const STREAM_PER_THREAD: usize = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: wait until the word has reached the value, in cyclic order.
pub const STREAM_WAIT_VALUE_GEQ: c_uint = 0;
/// `CU_STREAM_WAIT_VALUE_AND`: wait until the word has one of the value's bits.
pub const STREAM_WAIT_VALUE_AND: c_uint = 2;
/// `CU_STREAM_MEM_OP_WAIT_VALUE_32`
const WAIT_VALUE_32: c_uint = 1;
/// `CU_STREAM_MEM_OP_WRITE_VALUE_32`
const WRITE_VALUE_32: c_uint = 2;
/// `CU_EVENT_DEFAULT`
pub const EVENT_DEFAULT: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`
pub const CAPTURE_STATUS_NONE: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`
pub const CAPTURE_MODE_GLOBAL: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
pub const CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const CAPTURE_MODE_RELAXED: c_uint = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
pub const PROC_ADDRESS_PER_THREAD_STREAM: u64 = 2;
/// `CUhostFn`
pub type HostFunction = extern "C" fn(*mut c_void);
/// `CUstreamCallback`
pub type StreamCallback = extern "C" fn(Stream, CuResult, *mut c_void);

/// `CUstreamBatchMemOpParams`: a union whose members, except the barrier, have this shape.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamOperation {
    /// `CUstreamBatchMemOpType`
    pub operation: c_uint,
    /// The barrier's flags.
    pub barrier: c_uint,
    /// Address of the word.
    pub address: DevicePtr,
    /// The value; for 32 bits the lower half.
    pub value: u64,
    /// `CUstreamWaitValue_flags`, or `CUstreamWriteValue_flags`.
    pub flags: c_uint,
    reserved: c_uint,
    alias: DevicePtr,
    pad: u64,
}

impl StreamOperation {
    const fn new(operation: c_uint, address: DevicePtr, value: u32, flags: c_uint) -> Self {
        let value = value as u64;
        Self { operation, barrier: 0, address, value, flags, reserved: 0, alias: 0, pad: 0 }
    }

    /// Makes the stream wait for a word, as `flags` say.
    #[must_use]
    pub const fn wait(address: DevicePtr, value: u32, flags: c_uint) -> Self {
        Self::new(WAIT_VALUE_32, address, value, flags)
    }

    /// Makes the stream write a word.
    #[must_use]
    pub const fn write(address: DevicePtr, value: u32) -> Self {
        Self::new(WRITE_VALUE_32, address, value, 0)
    }
}

// `cuuint64_t pad[6]`
const _: () = assert!(size_of::<StreamOperation>() == 48);
