//! Sparse arrays. They take no memory themselves; tiles of physical allocations are mapped into them, and stay on their
//! device after their own handles are released.

use core::ffi::c_uint;

use driver::cuda::{
    self, ArrayMapInfo, CuResult, RESOURCE_ARRAY, RESOURCE_MIPMAPPED_ARRAY, SparseProperties,
};

use crate::array;
use crate::capture;
use crate::context::device_of;
use crate::ffi::{Api, In, Out, api, ensure};
use crate::memory::round_up;
use crate::state::{Driver, Inner, with};
use crate::{stream, vmm};

/// Bytes per tile.
const TILE: u64 = 65_536;
/// `CU_MEM_OPERATION_TYPE_MAP`
const MAP: c_uint = 1;
/// `CU_MEM_OPERATION_TYPE_UNMAP`
const UNMAP: c_uint = 2;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL`
const LEVEL: c_uint = 0;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`
const TAIL: c_uint = 1;

/// A part of an array: kind, level, layer, and its bounds per dimension, in elements; of a mip tail in bytes, in the
/// first dimension.
#[derive(Clone, Copy)]
struct Region {
    kind: c_uint,
    level: u32,
    layer: u32,
    from: [u64; 3],
    to: [u64; 3],
}

impl Region {
    fn of(info: &ArrayMapInfo) -> Api<Self> {
        let raw = info.subresource;
        match info.subresource_type {
            LEVEL => {
                let [level, layer, x, y, z, width, height, depth] = raw;
                let from = [x, y, z].map(u64::from);
                let extent = [width, height, depth].map(u64::from);
                let to = core::array::from_fn(|d| from[d] + extent[d]);
                ensure(extent.iter().all(|&length| length > 0), CuResult::INVALID_VALUE)?;
                Ok(Self { kind: LEVEL, level, layer, from, to })
            }
            TAIL => {
                // `{ unsigned layer; unsigned long long offset, size; }`
                let long = |at: usize| u64::from(raw[at]) | u64::from(raw[at + 1]) << 32;
                let (offset, size) = (long(2), long(4));
                let whole = size > 0 && offset % TILE == 0 && size % TILE == 0;
                ensure(whole, CuResult::INVALID_VALUE)?;
                let to = [offset.checked_add(size).ok_or(CuResult::INVALID_VALUE)?, 1, 1];
                Ok(Self { kind: TAIL, level: 0, layer: raw[0], from: [offset, 0, 0], to })
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn same_part(&self, other: &Self) -> bool {
        (self.kind, self.level, self.layer) == (other.kind, other.level, other.layer)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.same_part(other)
            && (0..3).all(|d| self.from[d] < other.to[d] && other.from[d] < self.to[d])
    }

    /// This region without an overlapping one: up to six boxes.
    fn without(&self, other: &Self) -> Vec<Self> {
        let (mut rest, mut core) = (Vec::new(), *self);
        for d in 0..3 {
            if core.from[d] < other.from[d] {
                let mut part = core;
                part.to[d] = other.from[d];
                core.from[d] = other.from[d];
                rest.push(part);
            }
            if other.to[d] < core.to[d] {
                let mut part = core;
                part.from[d] = other.to[d];
                core.to[d] = other.to[d];
                rest.push(part);
            }
        }
        rest
    }
}

/// A part of an array with mapped memory.
struct Mapped {
    /// The array's handle.
    of: u64,
    region: Region,
    physical: u64,
}

/// All mapped parts.
#[derive(Default)]
pub(crate) struct Sparse {
    mapped: Vec<Mapped>,
}

/// Elements per dimension of a tile, by the element's size in bytes.
fn tile(bytes: u64, solid: bool) -> [u64; 3] {
    match (bytes, solid) {
        (1, false) => [256, 256, 1],
        (2, false) => [256, 128, 1],
        (4, false) => [128, 128, 1],
        (8, false) => [128, 64, 1],
        (_, false) => [64, 64, 1],
        (1, true) => [64, 32, 32],
        (2, true) => [32, 32, 32],
        (4, true) => [32, 32, 16],
        (8, true) => [32, 16, 16],
        (_, true) => [16, 16, 16],
    }
}

/// Unmaps memory from a region of an array. Parts of mappings outside the region stay.
fn clear(driver: &Driver, inner: &mut Inner, of: u64, region: &Region) {
    let mut gone = Vec::new();
    let mut kept = Vec::new();
    for mapped in core::mem::take(&mut inner.sparse.mapped) {
        if mapped.of != of || !mapped.region.overlaps(region) {
            kept.push(mapped);
            continue;
        }
        for rest in mapped.region.without(region) {
            vmm::bind(inner, mapped.physical);
            kept.push(Mapped { region: rest, ..mapped });
        }
        gone.push(mapped.physical);
    }
    inner.sparse.mapped = kept;
    for physical in gone {
        vmm::unbind(driver, inner, physical);
    }
}

/// Unmaps all memory of an array that ends.
pub(crate) fn forget(driver: &Driver, inner: &mut Inner, of: u64) {
    let mut gone = Vec::new();
    inner.sparse.mapped.retain(|mapped| {
        if mapped.of == of {
            gone.push(mapped.physical);
        }
        mapped.of != of
    });
    for physical in gone {
        vmm::unbind(driver, inner, physical);
    }
}

/// Bytes that a region needs, after checking that it is within the array and aligned to tiles.
fn bytes_of(shape: &array::Measures, region: &Region) -> Api<u64> {
    let levels = shape.levels();
    if region.kind == TAIL {
        let layers = if shape.layered { shape.depth } else { 1 };
        ensure(u64::from(region.layer) < layers, CuResult::INVALID_VALUE)?;
        ensure(region.to[0] <= tail(shape).1, CuResult::INVALID_VALUE)?;
        return Ok(region.to[0] - region.from[0]);
    }
    ensure(region.level < levels, CuResult::INVALID_VALUE)?;
    let layers = if shape.layered { shape.depth } else { 1 };
    ensure(u64::from(region.layer) < layers, CuResult::INVALID_VALUE)?;
    let size = shape.level(region.level);
    let tile = tile(shape.element, shape.solid());
    let mut tiles = 1;
    for d in 0..3 {
        // The last tile of a row may extend beyond the array.
        let edge = region.to[d] == size[d] || region.to[d].is_multiple_of(tile[d]);
        let inside = region.to[d] <= round_up(size[d], tile[d]);
        let aligned = region.from[d].is_multiple_of(tile[d]) && edge && inside;
        ensure(aligned, CuResult::INVALID_VALUE)?;
        tiles *= (region.to[d] - region.from[d]).div_ceil(tile[d]);
    }
    Ok(tiles * TILE)
}

/// The first level smaller than a tile, and the bytes from there on.
fn tail(shape: &array::Measures) -> (u32, u64) {
    let tile = tile(shape.element, shape.solid());
    let small = |level: u32| (0..3).any(|d| shape.level(level)[d] < tile[d]);
    let first = (0..shape.levels()).find(|&level| small(level)).unwrap_or(shape.levels());
    let bytes: u64 = (first..shape.levels())
        .map(|level| shape.level(level).iter().product::<u64>() * shape.element)
        .sum();
    (first, round_up(bytes, TILE))
}

fn resource(inner: &Inner, info: &ArrayMapInfo) -> Api<(u64, array::Measures)> {
    let key = info.resource as u64;
    let shape = match info.resource_type {
        RESOURCE_ARRAY => array::measures(inner, key)?,
        RESOURCE_MIPMAPPED_ARRAY => array::mipmap_measures(inner, key)?,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    ensure(shape.sparse, CuResult::INVALID_VALUE)?;
    Ok((key, shape))
}

/// `cuMemMapArrayAsync`; takes effect at the call, which no program can observe.
pub(crate) extern "C" fn map<const P: bool>(
    list: In<ArrayMapInfo>,
    count: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let target = stream::target::<P>(driver, inner, stream)?;
            capture::forbid_on(inner, target)?;
            let (ordinal, on_node) = device_of(inner, target.context)?;
            ensure(count > 0, CuResult::INVALID_VALUE)?;
            for info in list.list(count as usize)? {
                let (of, shape) = resource(inner, &info)?;
                let region = Region::of(&info)?;
                let bytes = bytes_of(&shape, &region)?;
                ensure(info.device_bit_mask == 1 << ordinal, CuResult::INVALID_VALUE)?;
                let unused = info.flags == 0 && info.reserved == [0; 2];
                ensure(unused && info.mem_handle_type == 0, CuResult::INVALID_VALUE)?;
                match info.mem_operation_type {
                    MAP => {
                        let (device, size) = vmm::tile_pool(inner, info.mem_handle)?;
                        let end = info.offset.checked_add(bytes).ok_or(CuResult::INVALID_VALUE)?;
                        let fits = end <= size && info.offset.is_multiple_of(TILE);
                        ensure(fits && device == on_node, CuResult::INVALID_VALUE)?;
                        vmm::bind(inner, info.mem_handle);
                        clear(driver, inner, of, &region);
                        inner.sparse.mapped.push(Mapped { of, region, physical: info.mem_handle });
                    }
                    UNMAP => {
                        ensure(info.mem_handle == 0, CuResult::INVALID_VALUE)?;
                        clear(driver, inner, of, &region);
                    }
                    _ => return Err(CuResult::INVALID_VALUE),
                }
            }
            Ok(())
        })
    })
}

fn properties(shape: Api<array::Measures>, to: Out<SparseProperties>) -> Api {
    to.required()?;
    let shape = shape?;
    ensure(shape.sparse, CuResult::INVALID_VALUE)?;
    let (first, bytes) = tail(&shape);
    to.set(SparseProperties {
        tile_extent: tile(shape.element, shape.solid()).map(|length| length as c_uint),
        miptail_first_level: first,
        miptail_size: bytes,
        flags: 0,
        reserved: [0; 4],
    });
    Ok(())
}

pub(crate) extern "C" fn array_properties(
    to: Out<SparseProperties>,
    array: cuda::Array,
) -> CuResult {
    api(|| with(|_, inner| properties(array::measures(inner, array as u64), to)))
}

pub(crate) extern "C" fn mipmap_properties(
    to: Out<SparseProperties>,
    mipmap: cuda::MipmappedArray,
) -> CuResult {
    api(|| with(|_, inner| properties(array::mipmap_measures(inner, mipmap as u64), to)))
}
