//! Copies of rows and layers, which a descriptor describes.

use core::ffi::c_uint;

use driver::copy::{
    Copy2d, Copy2dV1, Copy3d, Copy3dV1, MEMORY_ARRAY, MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED,
    Side2d, Side3d,
};
use driver::cuda::{self, CuResult};

use super::{DEFAULT, Place, Route, Transfer, put};
use crate::array;
use crate::ffi::{Api, In, api, ensure};
use crate::state::{Inner, driver};

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH`
const MAX_PITCH: usize = 0x7fff_ffff;

/// Fails unless `context` exists.
pub(super) fn known_context(inner: &Inner, context: cuda::Context) -> Api {
    ensure(inner.contexts.contains_key(&(context as u64)), CuResult::INVALID_CONTEXT)
}

/// `base + z * layer + y * pitch + x`
fn address(base: u64, side: &Side3d, pitch: u64, layer: u64) -> Option<u64> {
    let row = (side.y as u64).checked_mul(pitch)?.checked_add(side.x as u64)?;
    (side.z as u64).checked_mul(layer)?.checked_add(row)?.checked_add(base)
}

/// Whether `extent` from `start` ends within `size`.
fn within(start: usize, extent: usize, size: u64) -> bool {
    (start as u64).checked_add(extent as u64).is_some_and(|end| end <= size)
}

fn place(inner: &Inner, side: &Side3d, copy: &Copy3d) -> Api<Place> {
    ensure(side.lod == 0, CuResult::INVALID_VALUE)?;
    if side.kind == MEMORY_ARRAY {
        let shape = array::shape(inner, side.array as u64)?;
        let whole = |bytes: usize| (bytes as u64).is_multiple_of(shape.element);
        let fits = within(side.x, copy.width, shape.row)
            && within(side.y, copy.height, shape.rows)
            && within(side.z, copy.depth, shape.layers);
        ensure(fits && whole(side.x) && whole(copy.width), CuResult::INVALID_VALUE)?;
        let (pitch, layer) = (shape.row, shape.row * shape.rows);
        let address = address(shape.base, side, pitch, layer).ok_or(CuResult::INVALID_VALUE)?;
        return Ok(Place { address, pitch, layer, device: true });
    }
    // Without a given pitch or height, rows and layers are contiguous.
    let used =
        |start: usize, extent: usize| start.checked_add(extent).ok_or(CuResult::INVALID_VALUE);
    let (row, rows) = (used(side.x, copy.width)?, used(side.y, copy.height)?);
    let pitch = if side.pitch == 0 { row } else { side.pitch };
    ensure((row..=MAX_PITCH).contains(&pitch), CuResult::INVALID_VALUE)?;
    let height = if side.height == 0 { rows } else { side.height };
    ensure(height >= rows && (side.height > 0 || copy.depth < 2), CuResult::INVALID_VALUE)?;
    let pitch = pitch as u64;
    let layer = pitch.checked_mul(height as u64).ok_or(CuResult::INVALID_VALUE)?;
    let base = match side.kind {
        MEMORY_HOST => Place::host(side.host as u64),
        MEMORY_DEVICE => Place::device(side.device),
        MEMORY_UNIFIED => Place::anywhere(inner, side.device),
        _ => return Err(CuResult::INVALID_VALUE),
    };
    ensure(base.address != 0, CuResult::INVALID_VALUE)?;
    let address = address(base.address, side, pitch, layer).ok_or(CuResult::INVALID_VALUE)?;
    Ok(Place { address, pitch, layer, ..base })
}

fn transfer(inner: &Inner, copy: &Copy3d) -> Api<Transfer> {
    Ok(Transfer::Copy {
        to: place(inner, &copy.to, copy)?,
        from: place(inner, &copy.from, copy)?,
        width: copy.width as u64,
        rows: copy.height as u64,
        layers: copy.depth as u64,
        route: Route::Bus,
    })
}

/// A two-dimensional copy as a copy of one layer.
fn layer_of(rows: &Copy2d) -> Copy3d {
    let side = |side: &Side2d| Side3d {
        x: side.x,
        y: side.y,
        z: 0,
        lod: 0,
        kind: side.kind,
        host: side.host,
        device: side.device,
        array: side.array,
        context: core::ptr::null_mut(),
        pitch: side.pitch,
        height: 0,
    };
    Copy3d {
        from: side(&rows.from),
        to: side(&rows.to),
        width: rows.width,
        height: rows.height,
        depth: 1,
    }
}

fn copy<const P: bool>(copy: &Copy3d, stream: cuda::Stream, wait: bool) -> Api {
    for side in [&copy.from, &copy.to] {
        ensure(side.context.is_null(), CuResult::INVALID_VALUE)?;
    }
    put::<P>(|inner| transfer(inner, copy), stream, wait)
}

fn copy_peer<const P: bool>(copy: &Copy3d, stream: cuda::Stream) -> Api {
    let describe = |inner: &Inner| {
        for side in [&copy.from, &copy.to] {
            if side.kind == MEMORY_DEVICE {
                known_context(inner, side.context)?;
            }
        }
        transfer(inner, copy)
    };
    put::<P>(describe, stream, false)
}

/// Reads a descriptor.
fn read<T: Copy>(from: In<T>) -> Api<T> {
    driver()?;
    from.get()
}

pub(crate) extern "C" fn rows<const P: bool>(descriptor: In<Copy2d>) -> CuResult {
    api(|| copy::<P>(&layer_of(&read(descriptor)?), DEFAULT, true))
}

pub(crate) extern "C" fn rows_async<const P: bool>(
    descriptor: In<Copy2d>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| copy::<P>(&layer_of(&read(descriptor)?), stream, false))
}

pub(crate) extern "C" fn rows_v1(descriptor: In<Copy2dV1>) -> CuResult {
    api(|| copy::<false>(&layer_of(&read(descriptor)?.into()), DEFAULT, true))
}

pub(crate) extern "C" fn rows_async_v1(descriptor: In<Copy2dV1>, stream: cuda::Stream) -> CuResult {
    api(|| copy::<false>(&layer_of(&read(descriptor)?.into()), stream, false))
}

pub(crate) extern "C" fn layers<const P: bool>(descriptor: In<Copy3d>) -> CuResult {
    api(|| copy::<P>(&read(descriptor)?, DEFAULT, true))
}

pub(crate) extern "C" fn layers_async<const P: bool>(
    descriptor: In<Copy3d>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| copy::<P>(&read(descriptor)?, stream, false))
}

pub(crate) extern "C" fn layers_v1(descriptor: In<Copy3dV1>) -> CuResult {
    api(|| copy::<false>(&read(descriptor)?.into(), DEFAULT, true))
}

pub(crate) extern "C" fn layers_async_v1(
    descriptor: In<Copy3dV1>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| copy::<false>(&read(descriptor)?.into(), stream, false))
}

pub(crate) extern "C" fn layers_peer<const P: bool>(descriptor: In<Copy3d>) -> CuResult {
    api(|| copy_peer::<P>(&read(descriptor)?, DEFAULT))
}

pub(crate) extern "C" fn layers_peer_async<const P: bool>(
    descriptor: In<Copy3d>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| copy_peer::<P>(&read(descriptor)?, stream))
}

/// Checks a `CUmemcpySrcAccessOrder`: stream, during the call, any.
pub(super) fn known_order(order: c_uint) -> Api {
    ensure((1..=3).contains(&order), CuResult::INVALID_VALUE)
}
