//! Batched copies.

use driver::copy::{
    BatchedCopy3d, CopyAttributes, Extent, OPERAND_ARRAY, OPERAND_POINTER, Operand,
};
use driver::cuda::{self, CuResult, DevicePtr};

use super::shaped::known_order;
use super::{Place, Route, Transfer, put_batch};
use crate::array;
use crate::ffi::{Api, In, Out, api, ensure};
use crate::state::{Inner, driver};

/// The lists passed to `cuMemcpyBatchAsync`.
struct Lists {
    to: In<DevicePtr>,
    from: In<DevicePtr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    firsts: In<usize>,
    attribute_count: usize,
}

impl Lists {
    /// Checks the attributes: every copy needs a set, the first set begins at the first copy, and each further one
    /// begins after the previous one.
    fn check(&self) -> Api {
        driver()?;
        ensure(self.count > 0, CuResult::INVALID_VALUE)?;
        ensure((1..=self.count).contains(&self.attribute_count), CuResult::INVALID_VALUE)?;
        let firsts = self.firsts.list(self.attribute_count)?;
        let in_order = firsts[0] == 0 && firsts.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = firsts.iter().all(|&first| first < self.count);
        ensure(in_order && in_range, CuResult::INVALID_VALUE)?;
        for attributes in self.attributes.list(self.attribute_count)? {
            known_order(attributes.order)?;
        }
        Ok(())
    }

    fn transfer(&self, inner: &Inner, index: usize) -> Api<Transfer> {
        let to = Place::anywhere(inner, self.to.at(index)?);
        let from = Place::anywhere(inner, self.from.at(index)?);
        Ok(Transfer::line(to, from, self.sizes.at(index)? as u64))
    }

    fn put<const P: bool>(&self, stream: cuda::Stream, failed: &mut usize) -> Api {
        self.check()?;
        put_batch::<P>(self.count, |inner, index| self.transfer(inner, index), stream, failed)
    }
}

/// Runs a batch in the form of CUDA 12.8, which returns the index of the failed copy.
fn saying_what_failed(failed: Out<usize>, batch: impl FnOnce(&mut usize) -> Api) -> CuResult {
    api(|| {
        let mut index = usize::MAX;
        let outcome = batch(&mut index);
        if outcome.is_err() {
            failed.set(index);
        }
        outcome
    })
}

pub(crate) extern "C" fn copies<const P: bool>(
    to: In<DevicePtr>,
    from: In<DevicePtr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    firsts: In<usize>,
    attribute_count: usize,
    stream: cuda::Stream,
) -> CuResult {
    let lists = Lists { to, from, sizes, count, attributes, firsts, attribute_count };
    api(|| lists.put::<P>(stream, &mut 0))
}

/// A batch of one copy.
pub(crate) extern "C" fn with_attributes<const P: bool>(
    to: DevicePtr,
    from: DevicePtr,
    size: usize,
    attributes: In<CopyAttributes>,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        driver()?;
        known_order(attributes.at(0)?.order)?;
        let line = |inner: &Inner, _| {
            let (to, from) = (Place::anywhere(inner, to), Place::anywhere(inner, from));
            Ok(Transfer::line(to, from, size as u64))
        };
        put_batch::<P>(1, line, stream, &mut 0)
    })
}

/// A batch of one copy.
pub(crate) extern "C" fn with_attributes_3d<const P: bool>(
    copy: In<BatchedCopy3d>,
    flags: u64,
    stream: cuda::Stream,
) -> CuResult {
    copies_3d::<P>(1, copy, flags, stream)
}

pub(crate) extern "C" fn copies_12<const P: bool>(
    to: In<DevicePtr>,
    from: In<DevicePtr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    firsts: In<usize>,
    attribute_count: usize,
    failed: Out<usize>,
    stream: cuda::Stream,
) -> CuResult {
    let lists = Lists { to, from, sizes, count, attributes, firsts, attribute_count };
    saying_what_failed(failed, |index| lists.put::<P>(stream, index))
}

/// Bytes per element of the array that an operand names, if any.
fn element(inner: &Inner, operand: &Operand) -> Api<Option<u64>> {
    match operand.kind {
        OPERAND_POINTER => Ok(None),
        OPERAND_ARRAY => {
            // SAFETY: `kind` says that the caller filled this member.
            let array = unsafe { operand.body.array };
            Ok(Some(array::shape(inner, array.array as u64)?.element))
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn place(inner: &Inner, operand: &Operand, extent: &Extent, element: u64) -> Api<Place> {
    let product = |one: u64, other: u64| one.checked_mul(other).ok_or(CuResult::INVALID_VALUE);
    if operand.kind == OPERAND_ARRAY {
        // SAFETY: `kind` says that the caller filled this member.
        let operand = unsafe { operand.body.array };
        let shape = array::shape(inner, operand.array as u64)?;
        let sizes = [shape.row / shape.element, shape.rows, shape.layers];
        let extents = [extent.width, extent.height, extent.depth];
        for ((&start, length), size) in operand.offset.iter().zip(extents).zip(sizes) {
            let fits = (start as u64).checked_add(length as u64).is_some_and(|end| end <= size);
            ensure(fits, CuResult::INVALID_VALUE)?;
        }
        let [x, y, z] = operand.offset.map(|offset| offset as u64);
        let (pitch, layer) = (shape.row, shape.row * shape.rows);
        let address = shape.base + z * layer + y * pitch + x * shape.element;
        return Ok(Place { address, pitch, layer, device: true });
    }
    // SAFETY: `kind` says that the caller filled this member.
    let operand = unsafe { operand.body.pointer };
    let own = |given: usize, extent: usize| match given {
        0 => Ok(extent as u64),
        given if given >= extent => Ok(given as u64),
        _ => Err(CuResult::INVALID_VALUE),
    };
    let pitch = product(own(operand.row, extent.width)?, element)?;
    let layer = product(own(operand.height, extent.height)?, pitch)?;
    Ok(Place { pitch, layer, ..Place::anywhere(inner, operand.address) })
}

fn transfer(inner: &Inner, copy: &BatchedCopy3d) -> Api<Transfer> {
    let Extent { width, height, depth } = copy.extent;
    ensure(width > 0 && height > 0 && depth > 0, CuResult::INVALID_VALUE)?;
    known_order(copy.order)?;
    let element = match (element(inner, &copy.from)?, element(inner, &copy.to)?) {
        (None, None) => 1,
        (Some(one), None) | (None, Some(one)) => one,
        (Some(one), Some(other)) => {
            ensure(one == other, CuResult::INVALID_VALUE)?;
            one
        }
    };
    Ok(Transfer::Copy {
        to: place(inner, &copy.to, &copy.extent, element)?,
        from: place(inner, &copy.from, &copy.extent, element)?,
        width: (width as u64).checked_mul(element).ok_or(CuResult::INVALID_VALUE)?,
        rows: height as u64,
        layers: depth as u64,
        route: Route::Bus,
    })
}

fn put_3d<const P: bool>(
    count: usize,
    list: In<BatchedCopy3d>,
    flags: u64,
    stream: cuda::Stream,
    failed: &mut usize,
) -> Api {
    driver()?;
    ensure(count > 0 && flags == 0, CuResult::INVALID_VALUE)?;
    put_batch::<P>(count, |inner, index| transfer(inner, &list.at(index)?), stream, failed)
}

pub(crate) extern "C" fn copies_3d<const P: bool>(
    count: usize,
    list: In<BatchedCopy3d>,
    flags: u64,
    stream: cuda::Stream,
) -> CuResult {
    api(|| put_3d::<P>(count, list, flags, stream, &mut 0))
}

pub(crate) extern "C" fn copies_3d_12<const P: bool>(
    count: usize,
    list: In<BatchedCopy3d>,
    failed: Out<usize>,
    flags: u64,
    stream: cuda::Stream,
) -> CuResult {
    saying_what_failed(failed, |index| put_3d::<P>(count, list, flags, stream, index))
}
