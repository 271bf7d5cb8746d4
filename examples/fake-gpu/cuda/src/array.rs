//! Arrays and mipmapped arrays. One file for one section of the driver API ("Memory Management", arrays).

use core::ffi::c_uint;

use driver::cuda::{self, ARRAY3D_CUBEMAP, Array3dDescriptor, ArrayDescriptor, CuResult};

use crate::capture;
use crate::context::device_of;
use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::memory;
use crate::state::{Driver, Inner, with, with_context};
use crate::{external, sparse};

/// `CUDA_ARRAY3D_LAYERED`
const LAYERED: c_uint = 1;
/// `CUDA_ARRAY3D_SPARSE`
const SPARSE: c_uint = 0x40;
/// Flags that are simulated: layered, surface, cubemap, gather, colour attachment, sparse.
const FLAGS: c_uint = 0x6F;

/// An array, or a level of a mipmapped one.
pub(crate) struct Array {
    context: u64,
    device: u32,
    descriptor: Array3dDescriptor,
    base: u64,
    size: u64,
    /// Bytes that the device counts; 0 for a mipmap level.
    taken: u64,
    /// The mipmapped array to which a level belongs.
    owner: u64,
}

/// A mipmapped array.
pub(crate) struct Mipmap {
    context: u64,
    device: u32,
    descriptor: Array3dDescriptor,
    levels: Vec<u64>,
    base: u64,
    size: u64,
    taken: u64,
    /// The external memory onto which it is mapped; 0: none.
    external: u64,
}

/// The memory of a mipmapped array.
pub(crate) struct Place {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) taken: u64,
    pub(crate) external: u64,
}

/// An array's dimensions.
pub(crate) struct Measures {
    size: [u64; 3],
    /// Layers of a layered array.
    pub(crate) depth: u64,
    pub(crate) layered: bool,
    pub(crate) sparse: bool,
    /// Bytes of an element.
    pub(crate) element: u64,
    levels: u32,
}

impl Measures {
    fn of(descriptor: &Array3dDescriptor, levels: u32) -> Api<Self> {
        let layered = descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0;
        let depth = descriptor.depth.max(1) as u64;
        Ok(Self {
            size: [
                descriptor.width as u64,
                descriptor.height.max(1) as u64,
                if layered { 1 } else { depth },
            ],
            depth,
            layered,
            sparse: descriptor.flags & SPARSE != 0,
            element: element_bytes(descriptor)?,
            levels,
        })
    }

    pub(crate) fn levels(&self) -> u32 {
        self.levels
    }

    /// Elements per dimension of a level.
    pub(crate) fn level(&self, level: u32) -> [u64; 3] {
        self.size.map(|length| (length >> level).max(1))
    }

    /// Whether the array has three dimensions.
    pub(crate) fn solid(&self) -> bool {
        self.size[2] > 1
    }
}

/// The dimensions of an array that is not a mipmap level.
pub(crate) fn measures(inner: &Inner, key: u64) -> Api<Measures> {
    let found = inner.arrays.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
    ensure(found.owner == 0, CuResult::INVALID_VALUE)?;
    Measures::of(&found.descriptor, 1)
}

pub(crate) fn mipmap_measures(inner: &Inner, key: u64) -> Api<Measures> {
    let found = inner.mipmaps.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
    Measures::of(&found.descriptor, found.levels.len() as u32)
}

/// Bytes of one channel of a `CUarray_format`.
fn channel_bytes(format: c_uint) -> Api<u64> {
    match format {
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn element_bytes(descriptor: &Array3dDescriptor) -> Api<u64> {
    let channels = descriptor.num_channels;
    ensure(matches!(channels, 1 | 2 | 4), CuResult::INVALID_VALUE)?;
    Ok(channel_bytes(descriptor.format)? * u64::from(channels))
}

/// Bytes of one level, and of a separate array of that size.
fn level_size(descriptor: &Array3dDescriptor, level: u32) -> Api<u64> {
    let shrink = |length: usize| (length.max(1) as u64 >> level).max(1);
    let layered = descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { descriptor.depth.max(1) as u64 } else { shrink(descriptor.depth) };
    element_bytes(descriptor)?
        .checked_mul(shrink(descriptor.width))
        .and_then(|bytes| bytes.checked_mul(shrink(descriptor.height)))
        .and_then(|bytes| bytes.checked_mul(depth))
        .ok_or(CuResult::INVALID_VALUE)
}

/// Bytes that the device counts for this many levels. Rows have 64 bytes and come in blocks of 8 to 128 rows; an array
/// of more than 1 MiB has pages of its own. Measured on an H200 with driver 580.
fn taken(descriptor: &Array3dDescriptor, levels: u32) -> Api<u64> {
    let element = element_bytes(descriptor)?;
    let shrink = |length: usize, level: u32| (length.max(1) as u64 >> level).max(1);
    let layered = descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0;
    let mut sum = 0_u64;
    for level in 0..levels {
        let rows = shrink(descriptor.height, level);
        let block = (8..=128).find(|&block: &u64| block.is_power_of_two() && block >= rows);
        let pitch = memory::round_up(shrink(descriptor.width, level) * element, 64);
        let layers =
            if layered { descriptor.depth as u64 } else { shrink(descriptor.depth, level) };
        let bytes = pitch.checked_mul(memory::round_up(rows, block.unwrap_or(128)));
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(layers.max(1)));
        let more = bytes.and_then(|bytes| sum.checked_add(bytes));
        sum = more.ok_or(CuResult::INVALID_VALUE)?;
    }
    Ok(memory::round_up(sum, if sum > 1 << 20 { memory::GRANULE } else { 512 }))
}

fn check(descriptor: &Array3dDescriptor) -> Api {
    ensure(descriptor.width > 0, CuResult::INVALID_VALUE)?;
    ensure(descriptor.flags & !FLAGS == 0, CuResult::NOT_SUPPORTED)?;
    if descriptor.flags & SPARSE != 0 {
        let plain = descriptor.height > 0 && descriptor.flags & ARRAY3D_CUBEMAP == 0;
        ensure(plain, CuResult::INVALID_VALUE)?;
    }
    let layered = descriptor.flags & LAYERED != 0;
    if descriptor.flags & ARRAY3D_CUBEMAP != 0 {
        let square = descriptor.width == descriptor.height;
        let faces = if layered {
            descriptor.depth > 0 && descriptor.depth.is_multiple_of(6)
        } else {
            descriptor.depth == 6
        };
        ensure(square && faces, CuResult::INVALID_VALUE)?;
    } else if !layered {
        // A depth without a height is invalid.
        let shape = descriptor.depth == 0 || descriptor.height > 0;
        ensure(shape, CuResult::INVALID_VALUE)?;
    } else {
        ensure(descriptor.depth > 0, CuResult::INVALID_VALUE)?;
    }
    element_bytes(descriptor).map(|_| ())
}

/// Allocates an array; returns its bytes and those that the device counts, 0 for a sparse array.
fn obtain(
    driver: &Driver,
    inner: &mut Inner,
    device: u32,
    size: u64,
    descriptor: &Array3dDescriptor,
    levels: u32,
) -> Api<(u64, u64)> {
    capture::unsafe_call(inner)?;
    ensure(size <= 1 << 46, CuResult::OUT_OF_MEMORY)?;
    let taken = if descriptor.flags & SPARSE == 0 { taken(descriptor, levels)? } else { 0 };
    memory::take(driver, inner, device, taken)?;
    match memory::map(size, false) {
        Ok(base) => Ok((base, taken)),
        Err(error) => {
            driver.node.give_back(driver.process, device, taken);
            Err(error)
        }
    }
}

fn create_any(array: Out<cuda::Array>, descriptor: Array3dDescriptor) -> Api {
    with_context(|driver, inner, context| {
        array.required()?;
        check(&descriptor)?;
        let (_, device) = device_of(inner, context)?;
        let size = level_size(&descriptor, 0)?;
        let (base, taken) = obtain(driver, inner, device, size, &descriptor, 1)?;
        let key = inner.new_handle();
        let made = Array { context, device, descriptor, base, size, taken, owner: 0 };
        note(inner, &made);
        inner.arrays.insert(key, made);
        array.set(handle(key));
        Ok(())
    })
}

/// Makes an array's bytes accessible to copies, but not to frees.
fn note(inner: &mut Inner, array: &Array) {
    let allocation = memory::Allocation {
        size: array.size,
        taken: 0,
        device: array.device,
        context: 0,
        kind: memory::Kind::Mapped { accessible: true },
        ours: false,
    };
    inner.memory.insert(array.base, allocation);
}

/// Creates an array from any form of its descriptor.
pub(crate) extern "C" fn create<D: Copy + Into<Array3dDescriptor>>(
    array: Out<cuda::Array>,
    descriptor: In<D>,
) -> CuResult {
    api(|| {
        crate::state::driver()?;
        create_any(array, descriptor.get()?.into())
    })
}

fn release(driver: &Driver, inner: &mut Inner, array: Array) {
    inner.memory.remove(&array.base);
    if array.owner == 0 {
        driver.node.give_back(driver.process, array.device, array.taken);
        memory::unmap(array.base, array.size);
    }
}

pub(crate) extern "C" fn destroy(array: cuda::Array) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let key = array as u64;
            let found = inner.arrays.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
            ensure(found.owner == 0, CuResult::INVALID_HANDLE)?;
            capture::unsafe_call(inner)?;
            sparse::forget(driver, inner, key);
            if let Some(found) = inner.arrays.remove(&key) {
                release(driver, inner, found);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn descriptor(
    descriptor: Out<ArrayDescriptor>,
    array: cuda::Array,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            descriptor.required()?;
            let found = inner.arrays.get(&(array as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            let full = &found.descriptor;
            descriptor.set(ArrayDescriptor {
                width: full.width,
                height: full.height,
                format: full.format,
                num_channels: full.num_channels,
            });
            Ok(())
        })
    })
}

pub(crate) extern "C" fn descriptor_3d(
    descriptor: Out<Array3dDescriptor>,
    array: cuda::Array,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            descriptor.required()?;
            let found = inner.arrays.get(&(array as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            descriptor.set(found.descriptor);
            Ok(())
        })
    })
}

/// The sizes of the levels in bytes, and their sum.
pub(crate) fn mipmap_sizes(descriptor: &Array3dDescriptor, levels: c_uint) -> Api<(Vec<u64>, u64)> {
    check(descriptor)?;
    ensure(levels > 0, CuResult::INVALID_VALUE)?;
    let longest = if descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0 {
        descriptor.width.max(descriptor.height)
    } else {
        descriptor.width.max(descriptor.height).max(descriptor.depth)
    };
    let levels = levels.min(1 + longest.ilog2());
    let sizes =
        (0..levels).map(|level| level_size(descriptor, level)).collect::<Api<Vec<u64>>>()?;
    let size = sizes.iter().try_fold(0_u64, |sum, &own| {
        sum.checked_add(memory::round_up(own, 512)).ok_or(CuResult::INVALID_VALUE)
    })?;
    Ok((sizes, size))
}

/// Adds a mipmapped array with its levels.
pub(crate) fn add_mipmap(
    inner: &mut Inner,
    descriptor: &Array3dDescriptor,
    sizes: &[u64],
    place: Place,
) -> u64 {
    let key = inner.new_handle();
    let mut at = place.base;
    let mut handles = Vec::new();
    for (level, &own) in sizes.iter().enumerate() {
        let shrink = |length: usize| if length == 0 { 0 } else { (length >> level).max(1) };
        let layered = descriptor.flags & (LAYERED | ARRAY3D_CUBEMAP) != 0;
        let depth = if layered { descriptor.depth } else { shrink(descriptor.depth) };
        let level = Array {
            context: place.context,
            device: place.device,
            descriptor: Array3dDescriptor {
                width: shrink(descriptor.width),
                height: shrink(descriptor.height),
                depth,
                ..*descriptor
            },
            base: at,
            size: own,
            taken: 0,
            owner: key,
        };
        at += memory::round_up(own, 512);
        note(inner, &level);
        let level_key = inner.new_handle();
        inner.arrays.insert(level_key, level);
        handles.push(level_key);
    }
    let Place { context, device, base, size, taken, external } = place;
    let descriptor = *descriptor;
    let made = Mipmap { context, device, descriptor, levels: handles, base, size, taken, external };
    inner.mipmaps.insert(key, made);
    key
}

pub(crate) extern "C" fn create_mipmap(
    mipmap: Out<cuda::MipmappedArray>,
    descriptor: In<Array3dDescriptor>,
    levels: c_uint,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            mipmap.required()?;
            let descriptor = descriptor.get()?;
            let (sizes, size) = mipmap_sizes(&descriptor, levels)?;
            let (_, device) = device_of(inner, context)?;
            let (base, taken) =
                obtain(driver, inner, device, size, &descriptor, sizes.len() as u32)?;
            let place = Place { context, device, base, size, taken, external: 0 };
            mipmap.set(handle(add_mipmap(inner, &descriptor, &sizes, place)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn mipmap_level(
    array: Out<cuda::Array>,
    mipmap: cuda::MipmappedArray,
    level: c_uint,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            array.required()?;
            let found = inner.mipmaps.get(&(mipmap as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            let &key = found.levels.get(level as usize).ok_or(CuResult::INVALID_VALUE)?;
            array.set(handle(key));
            Ok(())
        })
    })
}

fn release_mipmap(driver: &Driver, inner: &mut Inner, mipmap: Mipmap) {
    for level in mipmap.levels {
        if let Some(found) = inner.arrays.remove(&level) {
            release(driver, inner, found);
        }
    }
    if mipmap.external == 0 {
        driver.node.give_back(driver.process, mipmap.device, mipmap.taken);
        memory::unmap(mipmap.base, mipmap.size);
    } else {
        external::unmap(driver, inner, mipmap.external, mipmap.base, mipmap.size);
    }
}

pub(crate) extern "C" fn destroy_mipmap(mipmap: cuda::MipmappedArray) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let key = mipmap as u64;
            ensure(inner.mipmaps.contains_key(&key), CuResult::INVALID_HANDLE)?;
            capture::unsafe_call(inner)?;
            sparse::forget(driver, inner, key);
            if let Some(found) = inner.mipmaps.remove(&key) {
                release_mipmap(driver, inner, found);
            }
            Ok(())
        })
    })
}

/// The memory layout of an array, for copies.
pub(crate) struct Shape {
    pub(crate) base: u64,
    /// Bytes of an element, and of a row.
    pub(crate) element: u64,
    pub(crate) row: u64,
    /// Rows of a layer, and layers: at least one.
    pub(crate) rows: u64,
    pub(crate) layers: u64,
}

/// The shape of an array.
pub(crate) fn shape(inner: &Inner, array: u64) -> Api<Shape> {
    let found = inner.arrays.get(&array).ok_or(CuResult::INVALID_HANDLE)?;
    let element = element_bytes(&found.descriptor)?;
    Ok(Shape {
        base: found.base,
        element,
        row: found.descriptor.width as u64 * element,
        rows: found.descriptor.height.max(1) as u64,
        layers: found.descriptor.depth.max(1) as u64,
    })
}

/// Frees a context's arrays.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let mipmaps: Vec<u64> =
        inner.mipmaps.iter().filter(|(_, m)| m.context == context).map(|(&k, _)| k).collect();
    for key in mipmaps {
        sparse::forget(driver, inner, key);
        if let Some(found) = inner.mipmaps.remove(&key) {
            release_mipmap(driver, inner, found);
        }
    }
    let arrays: Vec<u64> =
        inner.arrays.iter().filter(|(_, a)| a.context == context).map(|(&k, _)| k).collect();
    for key in arrays {
        sparse::forget(driver, inner, key);
        if let Some(found) = inner.arrays.remove(&key) {
            release(driver, inner, found);
        }
    }
}

/// Moves a green context's arrays to its primary context.
pub(crate) fn hand_over(inner: &mut Inner, from: u64, to: u64) {
    for array in inner.arrays.values_mut().filter(|array| array.context == from) {
        array.context = to;
    }
    for mipmap in inner.mipmaps.values_mut().filter(|mipmap| mipmap.context == from) {
        mipmap.context = to;
    }
}
