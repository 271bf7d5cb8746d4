//! Device memory from every family of allocation calls.

use core::ffi::c_uint;

use driver::cuda::{
    self, ALLOCATION_PINNED, ATTACH_GLOBAL, AllocationHandle, AllocationProp, Array3dDescriptor,
    ArrayDescriptor, DevicePtr, LOCATION_DEVICE, MemAllocNodeParams, MemLocation, PoolProps,
};

use super::{Context, DriverError, Stream};

/// `CU_AD_FORMAT_FLOAT`; with four channels an element has 16 bytes.
const FORMAT_FLOAT: c_uint = 0x20;
const CHANNELS: c_uint = 4;
/// Width of every array, in elements.
const ARRAY_WIDTH: usize = 1024;
/// Bytes per row of an array; the smallest chunk for the array calls.
pub(crate) const ARRAY_ROW: usize = ARRAY_WIDTH * 16;
/// Rows per layer of a three-dimensional array.
const LAYER_ROWS: usize = 64;
/// Levels of a mipmapped array, each a quarter of the previous one. The driver pads low levels: a further level would
/// take a page for a few bytes, and a limit would be reached less closely.
const MIPMAP_LEVELS: u32 = 3;
/// Bytes per row of a pitched allocation.
const PITCHED_ROW: usize = 64 * 1024;

/// A family of allocation calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MemoryApi {
    /// cuMemAlloc
    Alloc,
    /// cuMemAllocPitch
    Pitch,
    /// cuMemAllocManaged
    Managed,
    /// cuMemAllocAsync
    Async,
    /// cuMemAllocFromPoolAsync, from a pool of its own
    Pool,
    /// cuMemCreate
    Vmm,
    /// cuArrayCreate
    Array,
    /// cuArray3DCreate
    Array3d,
    /// cuMipmappedArrayCreate
    Mipmap,
    /// cuGraphAddMemAllocNode, one launched graph each
    Graph,
}

/// What to free, and how.
enum Held {
    Linear(DevicePtr),
    Stream(DevicePtr),
    Physical(AllocationHandle),
    Array(cuda::Array),
    Mipmap(cuda::MipmappedArray),
    Graph { graph: cuda::Graph, exec: cuda::GraphExec, address: DevicePtr },
}

/// A granted allocation; freed on drop.
pub(crate) struct Allocation<'a> {
    context: &'a Context,
    held: Held,
    /// Granted bytes, according to the call's result and arguments.
    pub(crate) bytes: u64,
}

/// Allocates by one family of calls.
pub(crate) struct Allocator<'c> {
    context: &'c Context,
    stream: Stream<'c>,
    api: MemoryApi,
    pool: cuda::MemoryPool,
    granularity: usize,
}

impl<'c> Allocator<'c> {
    /// Prepares pool and granularity for the calls.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn new(context: &'c Context, api: MemoryApi) -> Result<Self, DriverError> {
        let stream = Stream::default_of(context);
        let pool = core::ptr::null_mut();
        let mut allocator = Self { context, stream, api, pool, granularity: 1 };
        // SAFETY: property structures live through the calls, results go to live variables.
        unsafe {
            if api == MemoryApi::Pool {
                let props = allocator.pool_props();
                context.table.cuMemPoolCreate(&mut allocator.pool, &props)?;
            }
            if api == MemoryApi::Vmm {
                let (props, minimum) = (allocator.physical_props(), 0);
                context.table.cuMemGetAllocationGranularity(
                    &mut allocator.granularity,
                    &props,
                    minimum,
                )?;
            }
        }
        Ok(allocator)
    }

    /// Allocates about `chunk` bytes, rounded as the family requires; at least [`ARRAY_ROW`] for arrays.
    ///
    /// # Errors
    /// [`DriverError::Call`] if refused.
    pub(crate) fn allocate(&self, chunk: usize) -> Result<Allocation<'_>, DriverError> {
        let table = &self.context.table;
        let mut address: DevicePtr = 0;
        // SAFETY: results go to live variables, descriptors live through the calls; pool and
        // stream belong to the current context.
        let (held, bytes) = unsafe {
            match self.api {
                MemoryApi::Alloc => {
                    table.cuMemAlloc(&mut address, chunk)?;
                    (Held::Linear(address), chunk)
                }
                MemoryApi::Pitch => {
                    let width = chunk.min(PITCHED_ROW);
                    let (height, mut pitch) = (chunk / width.max(1), 0);
                    table.cuMemAllocPitch(&mut address, &mut pitch, width, height, 16)?;
                    (Held::Linear(address), pitch * height)
                }
                MemoryApi::Managed => {
                    table.cuMemAllocManaged(&mut address, chunk, ATTACH_GLOBAL)?;
                    (Held::Linear(address), chunk)
                }
                MemoryApi::Async => {
                    table.cuMemAllocAsync(&mut address, chunk, self.stream.raw)?;
                    (Held::Stream(address), chunk)
                }
                MemoryApi::Pool => {
                    let stream = self.stream.raw;
                    table.cuMemAllocFromPoolAsync(&mut address, chunk, self.pool, stream)?;
                    (Held::Stream(address), chunk)
                }
                MemoryApi::Vmm => {
                    let (bytes, props) =
                        (chunk.next_multiple_of(self.granularity.max(1)), self.physical_props());
                    let mut handle = 0;
                    table.cuMemCreate(&mut handle, bytes, &props, 0)?;
                    (Held::Physical(handle), bytes)
                }
                MemoryApi::Array => self.array(chunk)?,
                MemoryApi::Array3d => self.array_3d(chunk)?,
                MemoryApi::Mipmap => self.mipmap(chunk)?,
                MemoryApi::Graph => return self.graph(chunk),
            }
        };
        Ok(Allocation { context: self.context, held, bytes: bytes as u64 })
    }

    fn array(&self, chunk: usize) -> Result<(Held, usize), DriverError> {
        let height = chunk / ARRAY_ROW;
        let descriptor = ArrayDescriptor {
            width: ARRAY_WIDTH,
            height,
            format: FORMAT_FLOAT,
            num_channels: CHANNELS,
        };
        let mut array = core::ptr::null_mut();
        // SAFETY: the descriptor lives through the call, the result goes to a live variable.
        unsafe { self.context.table.cuArrayCreate(&mut array, &descriptor) }?;
        Ok((Held::Array(array), height * ARRAY_ROW))
    }

    fn array_3d(&self, chunk: usize) -> Result<(Held, usize), DriverError> {
        let rows = chunk / ARRAY_ROW;
        let height = rows.min(LAYER_ROWS);
        let depth = rows / height.max(1);
        let mut array = core::ptr::null_mut();
        // SAFETY: as in `array`.
        unsafe { self.context.table.cuArray3DCreate(&mut array, &solid(height, depth)) }?;
        Ok((Held::Array(array), height * depth * ARRAY_ROW))
    }

    fn mipmap(&self, chunk: usize) -> Result<(Held, usize), DriverError> {
        // All levels together take about four thirds of the first level.
        let height = (chunk / ARRAY_ROW * 3 / 4).max(1);
        let mut array = core::ptr::null_mut();
        // SAFETY: as in `array`.
        unsafe {
            let descriptor = solid(height, 0);
            self.context.table.cuMipmappedArrayCreate(&mut array, &descriptor, MIPMAP_LEVELS)
        }?;
        let rows = |level: u32| (height >> level).max(1);
        let bytes = (0..MIPMAP_LEVELS).map(|level| rows(level) * (ARRAY_ROW >> level)).sum();
        Ok((Held::Mipmap(array), bytes))
    }

    /// A launched graph with one allocation node. The graph is kept, so its memory stays after the launch.
    fn graph(&self, chunk: usize) -> Result<Allocation<'_>, DriverError> {
        let table = &self.context.table;
        let (mut graph, mut exec) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut node = core::ptr::null_mut();
        let mut params = MemAllocNodeParams {
            pool_props: self.pool_props(),
            access_descs: core::ptr::null(),
            access_desc_count: 0,
            bytesize: chunk,
            dptr: 0,
        };
        // SAFETY: results go to live variables. Each step uses what the one before it made; if a
        // later step is refused, everything that was made is destroyed.
        unsafe {
            table.cuGraphCreate(&mut graph, 0)?;
            let none = core::ptr::null();
            let made = table
                .cuGraphAddMemAllocNode(&mut node, graph, none, 0, &mut params)
                .and_then(|()| table.cuGraphInstantiateWithFlags(&mut exec, graph, 0))
                .and_then(|()| table.cuGraphLaunch(exec, self.stream.raw))
                .and_then(|()| self.stream.synchronize());
            if let Err(refusal) = made {
                if !exec.is_null() {
                    let _ = table.cuGraphExecDestroy(exec);
                }
                let _ = table.cuGraphDestroy(graph);
                return Err(refusal);
            }
        }
        let held = Held::Graph { graph, exec, address: params.dptr };
        Ok(Allocation { context: self.context, held, bytes: chunk as u64 })
    }

    fn location(&self) -> MemLocation {
        MemLocation { kind: LOCATION_DEVICE, id: self.context.device }
    }

    fn pool_props(&self) -> PoolProps {
        PoolProps {
            kind: ALLOCATION_PINNED,
            handle_types: 0,
            location: self.location(),
            win32_security_attributes: core::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }

    fn physical_props(&self) -> AllocationProp {
        AllocationProp {
            kind: ALLOCATION_PINNED,
            handle_types: 0,
            location: self.location(),
            win32_handle_meta_data: core::ptr::null_mut(),
            alloc_flags: [0; 8],
        }
    }
}

fn solid(height: usize, depth: usize) -> Array3dDescriptor {
    Array3dDescriptor {
        width: ARRAY_WIDTH,
        height,
        depth,
        format: FORMAT_FLOAT,
        num_channels: CHANNELS,
        flags: 0,
    }
}

impl Drop for Allocator<'_> {
    fn drop(&mut self) {
        if !self.pool.is_null() {
            // SAFETY: created in `new`, destroyed once; allocations borrow from `self`, so they
            // are gone.
            let _ = unsafe { self.context.table.cuMemPoolDestroy(self.pool) };
        }
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        let table = &self.context.table;
        // SAFETY: each was granted by the call that this one undoes, and is freed once.
        let _ = unsafe {
            match self.held {
                Held::Linear(address) => table.cuMemFree(address),
                Held::Stream(address) => table.cuMemFreeAsync(address, core::ptr::null_mut()),
                Held::Physical(handle) => table.cuMemRelease(handle),
                Held::Array(array) => table.cuArrayDestroy(array),
                Held::Mipmap(array) => table.cuMipmappedArrayDestroy(array),
                Held::Graph { graph, exec, address } => table
                    .cuMemFree(address)
                    .and_then(|()| table.cuGraphExecDestroy(exec))
                    .and_then(|()| table.cuGraphDestroy(graph)),
            }
        };
    }
}
