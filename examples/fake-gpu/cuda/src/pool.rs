//! Stream-ordered allocation and memory pools. One file for one section of the driver API ("Stream Ordered Memory
//! Allocator").
//!
//! A pool takes device memory in chunks and keeps it: memory freed into a pool can only be used by that pool. At a
//! synchronisation the pool gives back unused memory above its release threshold. If it has not enough contiguous
//! memory, it takes more from the device, even if much is free in smaller pieces.

use std::collections::BTreeMap;

use core::ffi::{c_int, c_uint, c_void};

use driver::cuda::{
    self, ALLOCATION_PINNED, AccessDesc, CuResult, Device, DevicePtr, HANDLE_TYPE_POSIX_FD,
    LOCATION_DEVICE, MemLocation, POOL_RELEASE_THRESHOLD, POOL_RESERVED_CURRENT, POOL_USED_CURRENT,
    PoolProps,
};
use fake_node::blocks::BlockId;
use fake_node::layout::StreamId;

use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::graph::Work;
use crate::memory::{self, Allocation, GRANULE, Kind, round_up};
use crate::state::{Driver, Inner, with};
use crate::{capture, graph, graph_memory, sharing, stream};

/// Bytes that pools take at a time.
const CHUNK: u64 = 32 << 20;
/// Granularity of an allocation in a pool, in bytes.
const GRAIN: u64 = 512;
/// Allocations begin at multiples of this many bytes, so that each can be mapped on its own.
const PAGE: u64 = 4096;

/// A pool.
pub(crate) struct Pool {
    /// The node's device.
    pub(crate) device: u32,
    /// The `CUmemAllocationHandleType` with which it was created.
    handle_types: c_uint,
    /// The block that represents it in other processes.
    pub(crate) block: Option<BlockId>,
    /// Whether it represents another process's pool, from which nothing can be allocated.
    pub(crate) imported: bool,
    default: bool,
    /// Bytes taken from the device, and their pieces: length by address.
    reserved: u64,
    pieces: BTreeMap<u64, u64>,
    reserved_high: u64,
    /// Bytes allocated.
    used: u64,
    used_high: u64,
    threshold: u64,
    limit: u64,
    /// The three `CU_MEMPOOL_ATTR_REUSE_*` switches.
    reuse: [c_int; 3],
    /// Whether it was destroyed with allocations left, and ends with the last of them.
    destroyed: bool,
    late: Vec<Late>,
}

/// A free that a stream has not reached yet: the address range, and the positions to be reached.
struct Late {
    from: u64,
    to: u64,
    ends: Vec<(StreamId, u64)>,
}

impl Late {
    fn has_passed(&self, driver: &Driver) -> bool {
        let node = driver.node.lock();
        self.ends.iter().all(|(id, end)| node.passed(id.slot, id.generation, *end))
    }
}

impl Pool {
    /// Whether the pool may be shared with other processes.
    pub(crate) fn shareable(&self) -> bool {
        self.handle_types == HANDLE_TYPE_POSIX_FD && !self.imported
    }
}

/// Creates a pool that represents another process's.
pub(crate) fn imported(inner: &mut Inner, device: u32, block: BlockId) -> u64 {
    let key = make(inner, device, false, 0);
    if let Some(pool) = inner.pools.get_mut(&key) {
        pool.imported = true;
        pool.block = Some(block);
    }
    key
}

fn make(inner: &mut Inner, device: u32, default: bool, limit: u64) -> u64 {
    let key = inner.new_handle();
    let pool = Pool {
        device,
        handle_types: 0,
        block: None,
        imported: false,
        default,
        reserved: 0,
        pieces: BTreeMap::new(),
        reserved_high: 0,
        used: 0,
        used_high: 0,
        threshold: 0,
        limit,
        reuse: [1; 3],
        destroyed: false,
        late: Vec::new(),
    };
    inner.pools.insert(key, pool);
    key
}

fn default_pool(inner: &mut Inner, device: u32) -> u64 {
    let found = inner.pools.iter().find(|(_, p)| p.default && p.device == device);
    match found {
        Some((&key, _)) => key,
        None => make(inner, device, true, 0),
    }
}

/// The device's pool for `cuMemAllocAsync`.
fn current_pool(inner: &mut Inner, device: u32) -> u64 {
    match inner.current_pools.get(&u64::from(device)) {
        Some(&key) if inner.pools.contains_key(&key) => key,
        _ => default_pool(inner, device),
    }
}

/// The end address of a pool's allocation.
const fn end_of(base: u64, size: u64) -> u64 {
    base + size.div_ceil(PAGE) * PAGE
}

type Allocations = BTreeMap<u64, Allocation>;

/// The first address in a pool's pieces with this many contiguous free bytes.
fn place(pool: &Pool, memory: &Allocations, bytes: u64) -> Option<u64> {
    pool.pieces.iter().find_map(|(&base, &size)| {
        let mut at = base;
        for (&taken, allocation) in memory.range(base..base + size) {
            if taken - at >= bytes {
                break;
            }
            at = end_of(taken, allocation.size);
        }
        (base + size - at >= bytes).then_some(at)
    })
}

/// Gives back whole chunks without allocations, down to `keep` bytes. Memory whose free a stream may not have reached,
/// and for which no call has waited since, counts as allocated.
fn shrink(driver: &Driver, pool: &mut Pool, memory: &Allocations, keep: u64) {
    for (base, size) in core::mem::take(&mut pool.pieces) {
        let mut kept = None;
        for start in (base..base + size).step_by(CHUNK as usize) {
            let end = (start + CHUNK).min(base + size);
            let last = memory.range(..end).next_back();
            let free = last.is_none_or(|(&at, found)| end_of(at, found.size) <= start)
                && !pool.late.iter().any(|late| late.from < end && late.to > start);
            if free && pool.reserved > keep {
                pool.reserved -= end - start;
                driver.node.give_back(driver.process, pool.device, end - start);
                memory::unmap(start, end - start);
                kept = None;
            } else {
                let first = *kept.get_or_insert(start);
                pool.pieces.insert(first, end - first);
            }
        }
    }
}

/// Whether a pool's allocations outlive their context, as observed on an H200.
pub(crate) fn outlives_contexts(inner: &Inner, key: u64) -> bool {
    inner.pools.get(&key).is_some_and(|pool| !pool.default)
}

/// Shrinks pools to their thresholds at a synchronisation.
pub(crate) fn synchronised(driver: &Driver, inner: &mut Inner) {
    for pool in inner.pools.values_mut() {
        pool.late.retain(|late| !late.has_passed(driver));
        shrink(driver, pool, &inner.memory, pool.threshold);
    }
    drop_empty(driver, inner);
}

/// Gives back all unused memory of a device's pools.
pub(crate) fn trim_all(driver: &Driver, inner: &mut Inner, device: u32) {
    for pool in inner.pools.values_mut().filter(|pool| pool.device == device) {
        shrink(driver, pool, &inner.memory, 0);
    }
}

/// Returns a freed allocation to its pool. Its contents are lost.
pub(crate) fn returned(inner: &mut Inner, key: u64, base: u64, freed: &Allocation) {
    if let Some(pool) = inner.pools.get_mut(&key) {
        pool.used = pool.used.saturating_sub(freed.taken);
        memory::clear(base, end_of(base, freed.size) - base);
    }
}

fn drop_empty(driver: &Driver, inner: &mut Inner) {
    let gone: Vec<u64> = inner
        .pools
        .iter()
        .filter(|(_, pool)| pool.destroyed && pool.used == 0)
        .map(|(&key, _)| key)
        .collect();
    for key in gone {
        if let Some(mut pool) = inner.pools.remove(&key) {
            shrink(driver, &mut pool, &inner.memory, 0);
            if let Some(block) = pool.block {
                sharing::let_go(driver, inner, block);
            }
        }
    }
}

/// Finds a place for an allocation; the pool grows if needed.
fn obtain(driver: &Driver, inner: &mut Inner, key: u64, size: u64) -> Api<(u64, u32)> {
    let pool = inner.pools.get(&key).ok_or(CuResult::INVALID_VALUE)?;
    ensure(!pool.destroyed && !pool.imported, CuResult::INVALID_VALUE)?;
    let (taken, bytes) = (round_up(size, GRAIN), round_up(size, PAGE));
    let (device, limit, needed) = (pool.device, pool.limit, pool.used + taken);
    ensure(limit == 0 || needed <= limit, CuResult::OUT_OF_MEMORY)?;
    let found = match place(pool, &inner.memory, bytes) {
        Some(found) => found,
        None => {
            let mut more = round_up(bytes, CHUNK);
            if driver.node.take(driver.process, device, more).is_err() {
                // No room for a whole chunk. There may be room for the needed bytes once unused memory is given back.
                memory::reclaim(driver, inner, device);
                more = round_up(bytes, GRANULE);
                memory::take(driver, inner, device, more)?;
            }
            let base = match memory::map_aligned(more, CHUNK) {
                Ok(base) => base,
                Err(error) => {
                    driver.node.give_back(driver.process, device, more);
                    return Err(error);
                }
            };
            let pool = inner.pools.get_mut(&key).ok_or(CuResult::INVALID_VALUE)?;
            pool.pieces.insert(base, more);
            pool.reserved += more;
            base
        }
    };
    let pool = inner.pools.get_mut(&key).ok_or(CuResult::INVALID_VALUE)?;
    pool.used = needed;
    pool.reserved_high = pool.reserved_high.max(pool.reserved);
    pool.used_high = pool.used_high.max(pool.used);
    Ok((found, device))
}

fn allocate<const P: bool>(
    size: usize,
    pool: Option<cuda::MemoryPool>,
    stream: cuda::Stream,
) -> Api<u64> {
    with(|driver, inner| {
        let target = stream::target::<P>(driver, inner, stream)?;
        ensure(size > 0, CuResult::INVALID_VALUE)?;
        let (ordinal, device) = crate::context::device_of(inner, target.context)?;
        let key = match pool {
            Some(pool) => pool as u64,
            None => current_pool(inner, device),
        };
        ensure(inner.pools.contains_key(&key), CuResult::INVALID_VALUE)?;
        let mut captured = 0;
        let capturing = capture::add(inner, target, |inner, _| {
            let params = cuda::MemAllocNodeParams {
                pool_props: PoolProps {
                    kind: ALLOCATION_PINNED,
                    handle_types: 0,
                    location: MemLocation { kind: LOCATION_DEVICE, id: ordinal },
                    win32_security_attributes: core::ptr::null_mut(),
                    max_size: 0,
                    usage: 0,
                    reserved: [0; 54],
                },
                access_descs: core::ptr::null(),
                access_desc_count: 0,
                bytesize: size,
                dptr: 0,
            };
            let work = graph_memory::reserve(driver, inner, &params)?;
            if let Work::Alloc(made, _) = work {
                captured = made;
            }
            Ok(work)
        })?;
        if capturing {
            return Ok(captured);
        }
        let size = size as u64;
        ensure(size <= memory::LARGEST, CuResult::OUT_OF_MEMORY)?;
        let (base, device) = obtain(driver, inner, key, size)?;
        let allocation = Allocation {
            size,
            taken: round_up(size, GRAIN),
            device,
            context: target.context,
            kind: Kind::Pool(key),
            ours: false,
        };
        inner.memory.insert(base, allocation);
        Ok(base)
    })
}

pub(crate) extern "C" fn alloc<const P: bool>(
    address: Out<DevicePtr>,
    size: usize,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        crate::state::driver()?;
        address.required()?.set(allocate::<P>(size, None, stream)?);
        Ok(())
    })
}

pub(crate) extern "C" fn alloc_from_pool<const P: bool>(
    address: Out<DevicePtr>,
    size: usize,
    pool: cuda::MemoryPool,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        crate::state::driver()?;
        address.required()?.set(allocate::<P>(size, Some(pool), stream)?);
        Ok(())
    })
}

/// `cuMemFreeAsync`. The memory can be reused at once, in any stream, because no kernel here reads its bytes. The pool
/// can give it back to the device when the stream has reached the free and a waiting call has seen that.
pub(crate) extern "C" fn free<const P: bool>(address: DevicePtr, stream: cuda::Stream) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let target = stream::target::<P>(driver, inner, stream)?;
            if address == 0 {
                return Ok(());
            }
            let kind = inner.memory.get(&address).map(|found| found.kind);
            match kind {
                Some(Kind::Graph { .. }) => {
                    let captured = capture::add(inner, target, |inner, graph| {
                        graph::may_free(inner, graph, address)?;
                        Ok(Work::Free(address))
                    })?;
                    if captured {
                        return Ok(());
                    }
                    graph_memory::free(inner, address)
                }
                Some(Kind::Pool(_) | Kind::Linear | Kind::Imported { ipc: false, .. }) => {
                    if let Some(branch) = capture::enter(inner, target)? {
                        // A graph cannot free memory that it did not allocate.
                        capture::invalidate(inner, branch.capture);
                        return Err(CuResult::INVALID_VALUE);
                    }
                    let found = inner.memory.get(&address);
                    let place = found.map(|found| (found.kind, end_of(address, found.size)));
                    if let Some((Kind::Pool(key), end)) = place {
                        let ends = stream::ends_of(driver, inner, target);
                        let late = Late { from: address, to: end, ends };
                        if let Some(pool) = inner.pools.get_mut(&key)
                            && !late.has_passed(driver)
                        {
                            pool.late.push(late);
                        }
                    }
                    memory::discard(driver, inner, address);
                    Ok(())
                }
                _ => Err(CuResult::INVALID_VALUE),
            }
        })
    })
}

pub(crate) extern "C" fn create(pool: Out<cuda::MemoryPool>, props: In<PoolProps>) -> CuResult {
    api(|| {
        with(|driver, inner| {
            pool.required()?;
            let props = props.get()?;
            ensure(props.kind == ALLOCATION_PINNED, CuResult::INVALID_VALUE)?;
            ensure(props.location.kind == LOCATION_DEVICE, CuResult::NOT_SUPPORTED)?;
            let types = props.handle_types;
            ensure(types & !HANDLE_TYPE_POSIX_FD == 0, CuResult::NOT_SUPPORTED)?;
            let device = driver.device(props.location.id)?;
            let key = make(inner, device, false, props.max_size as u64);
            if let Some(made) = inner.pools.get_mut(&key) {
                made.handle_types = types;
            }
            pool.set(handle(key));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn destroy(pool: cuda::MemoryPool) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let found = inner.pools.get_mut(&(pool as u64)).ok_or(CuResult::INVALID_VALUE)?;
            ensure(!found.default && !found.destroyed, CuResult::INVALID_VALUE)?;
            found.destroyed = true;
            inner.current_pools.retain(|_, current| *current != pool as u64);
            drop_empty(driver, inner);
            Ok(())
        })
    })
}

pub(crate) fn known(inner: &mut Inner, pool: cuda::MemoryPool) -> Api<&mut Pool> {
    match inner.pools.get_mut(&(pool as u64)) {
        Some(found) if !found.destroyed => Ok(found),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

pub(crate) extern "C" fn get_attribute(
    pool: cuda::MemoryPool,
    attribute: c_uint,
    value: Out<c_void>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            value.required()?;
            let pool = known(inner, pool)?;
            match attribute {
                1..=3 => value.cast().set(pool.reuse[attribute as usize - 1]),
                POOL_RELEASE_THRESHOLD => value.cast().set(pool.threshold),
                POOL_RESERVED_CURRENT => value.cast().set(pool.reserved),
                6 => value.cast().set(pool.reserved_high),
                POOL_USED_CURRENT => value.cast().set(pool.used),
                8 => value.cast().set(pool.used_high),
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_attribute(
    pool: cuda::MemoryPool,
    attribute: c_uint,
    value: In<c_void>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let pool = known(inner, pool)?;
            let wide = In::<u64>::from_address(value.address());
            let narrow = In::<c_int>::from_address(value.address());
            match attribute {
                1..=3 => pool.reuse[attribute as usize - 1] = narrow.get()?,
                POOL_RELEASE_THRESHOLD => pool.threshold = wide.get()?,
                6 | 8 => {
                    ensure(wide.get()? == 0, CuResult::INVALID_VALUE)?;
                    if attribute == 6 {
                        pool.reserved_high = pool.reserved;
                    } else {
                        pool.used_high = pool.used;
                    }
                }
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn trim_to(pool: cuda::MemoryPool, keep: usize) -> CuResult {
    api(|| {
        with(|driver, inner| {
            known(inner, pool)?;
            if let Some(pool) = inner.pools.get_mut(&(pool as u64)) {
                shrink(driver, pool, &inner.memory, keep as u64);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_access(
    pool: cuda::MemoryPool,
    access: In<AccessDesc>,
    count: usize,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let on = known(inner, pool)?.device;
            for access in access.list(count)? {
                ensure(access.location.kind == LOCATION_DEVICE, CuResult::INVALID_VALUE)?;
                let device = driver.device(access.location.id)?;
                ensure(device != on || access.flags == 3, CuResult::INVALID_VALUE)?;
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn get_access(
    flags: Out<c_uint>,
    pool: cuda::MemoryPool,
    location: In<MemLocation>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            flags.required()?;
            let on = known(inner, pool)?.device;
            let device = driver.device(location.get()?.id)?;
            flags.set(if device == on { 3 } else { 0 });
            Ok(())
        })
    })
}

pub(crate) extern "C" fn device_default(pool: Out<cuda::MemoryPool>, device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            pool.required()?;
            let device = driver.device(device)?;
            pool.set(handle(default_pool(inner, device)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn device_current(pool: Out<cuda::MemoryPool>, device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            pool.required()?;
            let device = driver.device(device)?;
            pool.set(handle(current_pool(inner, device)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_device_current(device: Device, pool: cuda::MemoryPool) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            let found = known(inner, pool)?;
            ensure(found.device == device && !found.imported, CuResult::INVALID_VALUE)?;
            inner.current_pools.insert(u64::from(device), pool as u64);
            Ok(())
        })
    })
}

fn device_at(location: In<MemLocation>, kind: c_uint) -> Api<Device> {
    let location = location.get()?;
    ensure(kind == ALLOCATION_PINNED, CuResult::NOT_SUPPORTED)?;
    ensure(location.kind == LOCATION_DEVICE, CuResult::NOT_SUPPORTED)?;
    Ok(location.id)
}

pub(crate) extern "C" fn location_default(
    pool: Out<cuda::MemoryPool>,
    location: In<MemLocation>,
    kind: c_uint,
) -> CuResult {
    match device_at(location, kind) {
        Ok(device) => device_default(pool, device),
        Err(error) => error,
    }
}

pub(crate) extern "C" fn location_current(
    pool: Out<cuda::MemoryPool>,
    location: In<MemLocation>,
    kind: c_uint,
) -> CuResult {
    match device_at(location, kind) {
        Ok(device) => device_current(pool, device),
        Err(error) => error,
    }
}

pub(crate) extern "C" fn set_location_current(
    location: In<MemLocation>,
    kind: c_uint,
    pool: cuda::MemoryPool,
) -> CuResult {
    match device_at(location, kind) {
        Ok(device) => set_device_current(device, pool),
        Err(error) => error,
    }
}
