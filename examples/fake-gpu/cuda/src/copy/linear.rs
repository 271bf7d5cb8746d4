//! Copies of contiguous bytes.

use core::ffi::{c_uint, c_void};

use driver::copy::DevicePtrV1;
use driver::cuda::{self, CuResult, DevicePtr};

use super::{DEFAULT, Place, Transfer, put};
use crate::array;
use crate::ffi::{Api, api, ensure};
use crate::state::Inner;

fn copy<const P: bool>(
    to: Place,
    from: Place,
    bytes: usize,
    stream: cuda::Stream,
    wait: bool,
) -> CuResult {
    api(|| put::<P>(|_| Ok(Transfer::line(to, from, bytes as u64)), stream, wait))
}

fn copy_anywhere<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
    wait: bool,
) -> CuResult {
    let describe = |inner: &Inner| {
        let (to, from) = (Place::anywhere(inner, to), Place::anywhere(inner, from));
        Ok(Transfer::line(to, from, bytes as u64))
    };
    api(|| put::<P>(describe, stream, wait))
}

pub(crate) extern "C" fn any<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    copy_anywhere::<P>(to, from, bytes, DEFAULT, true)
}

pub(crate) extern "C" fn any_async<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    copy_anywhere::<P>(to, from, bytes, stream, false)
}

pub(crate) extern "C" fn to_device<const P: bool>(
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
) -> CuResult {
    copy::<P>(Place::device(to), Place::host(from as u64), bytes, DEFAULT, true)
}

pub(crate) extern "C" fn to_device_async<const P: bool>(
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    copy::<P>(Place::device(to), Place::host(from as u64), bytes, stream, false)
}

pub(crate) extern "C" fn to_host<const P: bool>(
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    copy::<P>(Place::host(to as u64), Place::device(from), bytes, DEFAULT, true)
}

pub(crate) extern "C" fn to_host_async<const P: bool>(
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    copy::<P>(Place::host(to as u64), Place::device(from), bytes, stream, false)
}

/// A copy within a device is asynchronous ("API synchronization behavior").
pub(crate) extern "C" fn within<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    copy::<P>(Place::device(to), Place::device(from), bytes, DEFAULT, false)
}

pub(crate) extern "C" fn within_async<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    copy::<P>(Place::device(to), Place::device(from), bytes, stream, false)
}

fn between<const P: bool>(
    to: (DevicePtr, cuda::Context),
    from: (DevicePtr, cuda::Context),
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    let describe = |inner: &Inner| {
        for context in [to.1, from.1] {
            super::shaped::known_context(inner, context)?;
        }
        Ok(Transfer::line(Place::device(to.0), Place::device(from.0), bytes as u64))
    };
    api(|| put::<P>(describe, stream, false))
}

pub(crate) extern "C" fn peer<const P: bool>(
    to: DevicePtr,
    to_context: cuda::Context,
    from: DevicePtr,
    from_context: cuda::Context,
    bytes: usize,
) -> CuResult {
    between::<P>((to, to_context), (from, from_context), bytes, DEFAULT)
}

pub(crate) extern "C" fn peer_async<const P: bool>(
    to: DevicePtr,
    to_context: cuda::Context,
    from: DevicePtr,
    from_context: cuda::Context,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    between::<P>((to, to_context), (from, from_context), bytes, stream)
}

/// A position in a one-dimensional array, `offset` bytes from its start.
fn in_array(inner: &Inner, array: cuda::Array, offset: usize, bytes: usize) -> Api<Place> {
    let shape = array::shape(inner, array as u64)?;
    let (offset, bytes) = (offset as u64, bytes as u64);
    ensure(shape.rows == 1 && shape.layers == 1, CuResult::INVALID_VALUE)?;
    let whole = offset.is_multiple_of(shape.element) && bytes.is_multiple_of(shape.element);
    ensure(whole, CuResult::INVALID_VALUE)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= shape.row);
    ensure(fits, CuResult::INVALID_VALUE)?;
    Ok(Place::device(shape.base + offset))
}

fn to_array<const P: bool>(
    to: (cuda::Array, usize),
    from: Place,
    bytes: usize,
    stream: cuda::Stream,
    wait: bool,
) -> CuResult {
    let describe =
        |inner: &Inner| Ok(Transfer::line(in_array(inner, to.0, to.1, bytes)?, from, bytes as u64));
    api(|| put::<P>(describe, stream, wait))
}

fn from_array<const P: bool>(
    to: Place,
    from: (cuda::Array, usize),
    bytes: usize,
    stream: cuda::Stream,
    wait: bool,
) -> CuResult {
    let describe = |inner: &Inner| {
        Ok(Transfer::line(to, in_array(inner, from.0, from.1, bytes)?, bytes as u64))
    };
    api(|| put::<P>(describe, stream, wait))
}

pub(crate) extern "C" fn device_to_array<const P: bool>(
    to: cuda::Array,
    offset: usize,
    from: DevicePtr,
    bytes: usize,
) -> CuResult {
    to_array::<P>((to, offset), Place::device(from), bytes, DEFAULT, false)
}

pub(crate) extern "C" fn array_to_device<const P: bool>(
    to: DevicePtr,
    from: cuda::Array,
    offset: usize,
    bytes: usize,
) -> CuResult {
    from_array::<P>(Place::device(to), (from, offset), bytes, DEFAULT, false)
}

pub(crate) extern "C" fn host_to_array<const P: bool>(
    to: cuda::Array,
    offset: usize,
    from: *const c_void,
    bytes: usize,
) -> CuResult {
    to_array::<P>((to, offset), Place::host(from as u64), bytes, DEFAULT, true)
}

pub(crate) extern "C" fn host_to_array_async<const P: bool>(
    to: cuda::Array,
    offset: usize,
    from: *const c_void,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    to_array::<P>((to, offset), Place::host(from as u64), bytes, stream, false)
}

pub(crate) extern "C" fn array_to_host<const P: bool>(
    to: *mut c_void,
    from: cuda::Array,
    offset: usize,
    bytes: usize,
) -> CuResult {
    from_array::<P>(Place::host(to as u64), (from, offset), bytes, DEFAULT, true)
}

pub(crate) extern "C" fn array_to_host_async<const P: bool>(
    to: *mut c_void,
    from: cuda::Array,
    offset: usize,
    bytes: usize,
    stream: cuda::Stream,
) -> CuResult {
    from_array::<P>(Place::host(to as u64), (from, offset), bytes, stream, false)
}

pub(crate) extern "C" fn array_to_array<const P: bool>(
    to: cuda::Array,
    to_offset: usize,
    from: cuda::Array,
    from_offset: usize,
    bytes: usize,
) -> CuResult {
    let describe = |inner: &Inner| {
        let to = in_array(inner, to, to_offset, bytes)?;
        Ok(Transfer::line(to, in_array(inner, from, from_offset, bytes)?, bytes as u64))
    };
    api(|| put::<P>(describe, DEFAULT, false))
}

// The forms of CUDA 2, with 32-bit addresses and sizes.

pub(crate) extern "C" fn to_device_v1(
    to: DevicePtrV1,
    from: *const c_void,
    bytes: c_uint,
) -> CuResult {
    to_device::<false>(u64::from(to), from, bytes as usize)
}

pub(crate) extern "C" fn to_device_async_v1(
    to: DevicePtrV1,
    from: *const c_void,
    bytes: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    to_device_async::<false>(u64::from(to), from, bytes as usize, stream)
}

pub(crate) extern "C" fn to_host_v1(to: *mut c_void, from: DevicePtrV1, bytes: c_uint) -> CuResult {
    to_host::<false>(to, u64::from(from), bytes as usize)
}

pub(crate) extern "C" fn to_host_async_v1(
    to: *mut c_void,
    from: DevicePtrV1,
    bytes: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    to_host_async::<false>(to, u64::from(from), bytes as usize, stream)
}

pub(crate) extern "C" fn within_v1(to: DevicePtrV1, from: DevicePtrV1, bytes: c_uint) -> CuResult {
    within::<false>(u64::from(to), u64::from(from), bytes as usize)
}

pub(crate) extern "C" fn within_async_v1(
    to: DevicePtrV1,
    from: DevicePtrV1,
    bytes: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    within_async::<false>(u64::from(to), u64::from(from), bytes as usize, stream)
}

pub(crate) extern "C" fn device_to_array_v1(
    to: cuda::Array,
    offset: c_uint,
    from: DevicePtrV1,
    bytes: c_uint,
) -> CuResult {
    device_to_array::<false>(to, offset as usize, u64::from(from), bytes as usize)
}

pub(crate) extern "C" fn array_to_device_v1(
    to: DevicePtrV1,
    from: cuda::Array,
    offset: c_uint,
    bytes: c_uint,
) -> CuResult {
    array_to_device::<false>(u64::from(to), from, offset as usize, bytes as usize)
}

pub(crate) extern "C" fn host_to_array_v1(
    to: cuda::Array,
    offset: c_uint,
    from: *const c_void,
    bytes: c_uint,
) -> CuResult {
    host_to_array::<false>(to, offset as usize, from, bytes as usize)
}

pub(crate) extern "C" fn host_to_array_async_v1(
    to: cuda::Array,
    offset: c_uint,
    from: *const c_void,
    bytes: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    host_to_array_async::<false>(to, offset as usize, from, bytes as usize, stream)
}

pub(crate) extern "C" fn array_to_host_v1(
    to: *mut c_void,
    from: cuda::Array,
    offset: c_uint,
    bytes: c_uint,
) -> CuResult {
    array_to_host::<false>(to, from, offset as usize, bytes as usize)
}

pub(crate) extern "C" fn array_to_host_async_v1(
    to: *mut c_void,
    from: cuda::Array,
    offset: c_uint,
    bytes: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    array_to_host_async::<false>(to, from, offset as usize, bytes as usize, stream)
}

pub(crate) extern "C" fn array_to_array_v1(
    to: cuda::Array,
    to_offset: c_uint,
    from: cuda::Array,
    from_offset: c_uint,
    bytes: c_uint,
) -> CuResult {
    let (to_offset, from_offset) = (to_offset as usize, from_offset as usize);
    array_to_array::<false>(to, to_offset, from, from_offset, bytes as usize)
}
