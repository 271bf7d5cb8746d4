//! Virtual memory management: addresses, physical allocations, and their mappings. One file for one section of the
//! driver API ("Virtual Memory Management").
//!
//! A process's physical memory is one sparse anonymous file, and an allocation is a range of it, so two mappings of one
//! allocation show the same bytes. An allocation that other processes may have is a block of the node. Allocations
//! belong to the process, not to a context, and are charged to the device in their properties.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::BTreeMap;
use std::os::fd::IntoRawFd;

use driver::cuda::{
    ALLOCATION_PINNED, AccessDesc, AllocationHandle, AllocationProp, CuResult, DevicePtr,
    HANDLE_TYPE_POSIX_FD, LOCATION_DEVICE, MemLocation,
};
use fake_node::blocks::BlockId;

use crate::ffi::{Api, In, Out, api, ensure};
use crate::memory::{self, Allocation, GRANULE, Kind};
use crate::multicast::{self, Multicast};
use crate::sharing;
use crate::state::{Driver, Inner, Table, driver, with};

/// `CU_MEM_LOCATION_TYPE_HOST`, `_HOST_NUMA`, `_HOST_NUMA_CURRENT`
const HOSTS: core::ops::RangeInclusive<c_uint> = 2..=4;
/// `CU_MEM_CREATE_USAGE_TILE_POOL`
const CREATE_USAGE_TILE_POOL: u8 = 1;
/// The largest reservation, in bytes.
const LARGEST: usize = 1 << 45;

/// A physical allocation.
#[derive(Clone, Copy)]
struct Physical {
    /// The file that holds it, and the offset there.
    file: c_int,
    offset: u64,
    /// Its block, with a file of its own, if other processes may have it.
    block: Option<BlockId>,
    size: u64,
    /// The node's device; `None`: on the host.
    device: Option<u32>,
    prop: AllocationProp,
    /// Handles that the program holds, from create and retain.
    handles: u32,
    mappings: u32,
    /// Number of multicast objects and sparse arrays that use it.
    bindings: u32,
}

/// A process's virtual memory.
#[derive(Default)]
pub(crate) struct Vmm {
    /// The file; created when needed.
    file: Option<c_int>,
    /// The file's length so far.
    end: u64,
    physical: Table<Physical>,
    /// Reserved addresses: base -> size.
    reserved: BTreeMap<u64, u64>,
    /// Mapped addresses: base -> handle and size.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// The multicast objects, by handle.
    pub(crate) multicast: Table<Multicast>,
}

/// # Safety
/// Whatever is mapped at `base` must be the driver's own reservation.
unsafe fn map_at(base: u64, size: u64, file: Option<(c_int, u64)>) -> Api {
    let (kind, descriptor, offset) = match file {
        Some((descriptor, offset)) => (libc::MAP_SHARED, descriptor, offset),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    // SAFETY: replaces part of a reservation, by this function's own condition.
    let address = unsafe {
        libc::mmap(
            base as *mut c_void,
            size as usize,
            libc::PROT_NONE,
            kind | libc::MAP_FIXED | libc::MAP_NORESERVE,
            descriptor,
            offset as libc::off_t,
        )
    };
    ensure(address != libc::MAP_FAILED, CuResult::OUT_OF_MEMORY)
}

pub(crate) extern "C" fn reserve(
    address: Out<DevicePtr>,
    size: usize,
    alignment: usize,
    _hint: DevicePtr,
    flags: u64,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            address.required()?;
            let whole = size > 0 && (size as u64).is_multiple_of(GRANULE);
            let aligned = alignment == 0 || alignment.is_power_of_two();
            ensure(whole && aligned && flags == 0, CuResult::INVALID_VALUE)?;
            let alignment = alignment.max(GRANULE as usize);
            ensure(size <= LARGEST && alignment <= LARGEST, CuResult::OUT_OF_MEMORY)?;
            let span = size + alignment;
            // SAFETY: a new inaccessible mapping at an address of the system's choice.
            let start = unsafe {
                libc::mmap(
                    core::ptr::null_mut(),
                    span,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            ensure(start != libc::MAP_FAILED, CuResult::OUT_OF_MEMORY)?;
            let start = start as usize;
            let base = start.next_multiple_of(alignment);
            // Unmap what the alignment leaves over at both ends.
            if base > start {
                memory::unmap(start as u64, (base - start) as u64);
            }
            memory::unmap((base + size) as u64, (start + span - base - size) as u64);
            inner.vmm.reserved.insert(base as u64, size as u64);
            address.set(base as u64);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn free_addresses(address: DevicePtr, size: usize) -> CuResult {
    api(|| {
        with(|_, inner| {
            let whole = inner.vmm.reserved.get(&address) == Some(&(size as u64));
            ensure(whole, CuResult::INVALID_VALUE)?;
            let end = address + size as u64;
            let in_use = inner.vmm.mapped.range(address..end).next().is_some();
            ensure(!in_use, CuResult::INVALID_VALUE)?;
            inner.vmm.reserved.remove(&address);
            memory::unmap(address, size as u64);
            Ok(())
        })
    })
}

/// The device of a location; `None`: on the host.
fn locate(driver: &Driver, prop: &AllocationProp) -> Api<Option<u32>> {
    ensure(prop.kind == ALLOCATION_PINNED, CuResult::INVALID_VALUE)?;
    match prop.location.kind {
        LOCATION_DEVICE => driver.device(prop.location.id).map(Some),
        kind if HOSTS.contains(&kind) => Ok(None),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn file(vmm: &mut Vmm) -> Api<c_int> {
    if let Some(file) = vmm.file {
        return Ok(file);
    }
    // SAFETY: a valid name; makes a new descriptor.
    let file = unsafe { libc::memfd_create(c"fake-gpu-memory".as_ptr(), libc::MFD_CLOEXEC) };
    ensure(file >= 0, CuResult::OUT_OF_MEMORY)?;
    vmm.file = Some(file);
    Ok(file)
}

/// A free range in the file, for memory that is not shared.
fn place(vmm: &mut Vmm, size: u64) -> Api<(c_int, u64)> {
    let (file, offset) = (file(vmm)?, vmm.end);
    // SAFETY: a descriptor of this driver's own.
    let grown = unsafe { libc::ftruncate(file, (offset + size) as libc::off_t) } == 0;
    ensure(grown, CuResult::OUT_OF_MEMORY)?;
    vmm.end = offset + size;
    Ok((file, offset))
}

pub(crate) extern "C" fn create(
    to: Out<AllocationHandle>,
    size: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let prop = prop.get()?;
            let device = locate(driver, &prop)?;
            ensure(prop.handle_types & !HANDLE_TYPE_POSIX_FD == 0, CuResult::NOT_SUPPORTED)?;
            let size = size as u64;
            ensure(
                size > 0 && size.is_multiple_of(GRANULE) && flags == 0,
                CuResult::INVALID_VALUE,
            )?;
            ensure(size <= LARGEST as u64, CuResult::OUT_OF_MEMORY)?;
            if let Some(device) = device {
                memory::take(driver, inner, device, size)?;
            }
            let placed = if prop.handle_types == 0 {
                place(&mut inner.vmm, size).map(|(file, offset)| (file, offset, None))
            } else {
                let bytes = if device.is_some() { size } else { 0 };
                sharing::make(driver, inner, device.unwrap_or(0), (bytes, false), size)
                    .map(|(id, file)| (file.into_raw_fd(), 0, Some(id)))
            };
            let (file, offset, block) = match placed {
                Ok(placed) => placed,
                Err(error) => {
                    if let Some(device) = device {
                        driver.node.give_back(driver.process, device, size);
                    }
                    return Err(error);
                }
            };
            let key = inner.new_handle();
            let made = Physical {
                file,
                offset,
                block,
                size,
                device,
                prop,
                handles: 1,
                mappings: 0,
                bindings: 0,
            };
            inner.vmm.physical.insert(key, made);
            to.set(key);
            Ok(())
        })
    })
}

fn drop_unused(driver: &Driver, inner: &mut Inner, key: u64) {
    let Some(found) = inner.vmm.physical.get(&key) else { return };
    if found.handles > 0 || found.mappings > 0 || found.bindings > 0 {
        return;
    }
    let found = *found;
    inner.vmm.physical.remove(&key);
    multicast::remove(driver, inner, key);
    if let Some(block) = found.block {
        // SAFETY: a descriptor of this allocation's own, not used again.
        unsafe { libc::close(found.file) };
        sharing::let_go(driver, inner, block);
        return;
    }
    // SAFETY: a descriptor of this driver's own; nothing maps this range any more.
    unsafe {
        libc::fallocate(
            found.file,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            found.offset as libc::off_t,
            found.size as libc::off_t,
        );
    }
    if let Some(device) = found.device {
        driver.node.give_back(driver.process, device, found.size);
    }
}

fn known(inner: &mut Inner, key: AllocationHandle) -> Api<&mut Physical> {
    match inner.vmm.physical.get_mut(&key) {
        Some(found) if found.handles > 0 => Ok(found),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// A handle without device memory, for an object to which only addresses are mapped.
pub(crate) fn addresses_only(
    inner: &mut Inner,
    size: u64,
    prop: AllocationProp,
) -> Api<AllocationHandle> {
    ensure(size <= LARGEST as u64, CuResult::OUT_OF_MEMORY)?;
    let (file, offset) = place(&mut inner.vmm, size)?;
    let key = inner.new_handle();
    inner.vmm.physical.insert(
        key,
        Physical {
            file,
            offset,
            block: None,
            size,
            device: None,
            prop,
            handles: 1,
            mappings: 0,
            bindings: 0,
        },
    );
    Ok(key)
}

/// Device and size of an allocation whose handle the program holds.
pub(crate) fn on_device(inner: &mut Inner, key: AllocationHandle) -> Api<(u32, u64)> {
    let found = known(inner, key)?;
    Ok((found.device.ok_or(CuResult::INVALID_VALUE)?, found.size))
}

/// Like [`on_device`], for an allocation made for sparse arrays.
pub(crate) fn tile_pool(inner: &mut Inner, key: AllocationHandle) -> Api<(u32, u64)> {
    let usage = &known(inner, key)?.prop.alloc_flags[2..4];
    ensure(usage[0] & CREATE_USAGE_TILE_POOL == CREATE_USAGE_TILE_POOL, CuResult::INVALID_VALUE)?;
    on_device(inner, key)
}

/// Device and handle of the mapping at `base`.
pub(crate) fn mapped_at(inner: &Inner, base: u64) -> Api<(u32, AllocationHandle)> {
    let &(key, _) = inner.vmm.mapped.get(&base).ok_or(CuResult::INVALID_VALUE)?;
    let device = inner.vmm.physical.get(&key).and_then(|found| found.device);
    Ok((device.ok_or(CuResult::INVALID_VALUE)?, key))
}

/// Adds a use of an allocation other than by a handle or a mapping.
pub(crate) fn bind(inner: &mut Inner, key: AllocationHandle) {
    if let Some(found) = inner.vmm.physical.get_mut(&key) {
        found.bindings += 1;
    }
}

/// Removes a use added by [`bind`].
pub(crate) fn unbind(driver: &Driver, inner: &mut Inner, key: AllocationHandle) {
    if let Some(found) = inner.vmm.physical.get_mut(&key) {
        found.bindings -= 1;
    }
    drop_unused(driver, inner, key);
}

pub(crate) extern "C" fn release(key: AllocationHandle) -> CuResult {
    api(|| {
        with(|driver, inner| {
            known(inner, key)?.handles -= 1;
            drop_unused(driver, inner, key);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn map(
    address: DevicePtr,
    size: usize,
    offset: usize,
    key: AllocationHandle,
    flags: u64,
) -> CuResult {
    api(|| {
        multicast::wait_for_team(key)?;
        with(|_, inner| {
            let found = *known(inner, key)?;
            let size = size as u64;
            ensure(offset == 0 && flags == 0, CuResult::INVALID_VALUE)?;
            ensure(size == found.size && address.is_multiple_of(GRANULE), CuResult::INVALID_VALUE)?;
            let end = address.checked_add(size).ok_or(CuResult::INVALID_VALUE)?;
            let reserved = inner
                .vmm
                .reserved
                .range(..=address)
                .next_back()
                .is_some_and(|(&base, &length)| end <= base + length);
            ensure(reserved, CuResult::INVALID_VALUE)?;
            let free = inner
                .memory
                .range(..end)
                .next_back()
                .is_none_or(|(&base, other)| base + other.size <= address);
            ensure(free, CuResult::INVALID_VALUE)?;
            // SAFETY: the range lies in a reservation of this driver and nothing is mapped there.
            unsafe { map_at(address, size, Some((found.file, found.offset)))? };
            known(inner, key)?.mappings += 1;
            inner.vmm.mapped.insert(address, (key, size));
            inner.memory.insert(
                address,
                Allocation {
                    size,
                    taken: 0,
                    device: found.device.unwrap_or(0),
                    context: 0,
                    kind: Kind::Mapped { accessible: false },
                    ours: false,
                },
            );
            Ok(())
        })
    })
}

/// The mappings that together cover exactly this range.
fn cover(inner: &Inner, address: u64, size: usize) -> Api<Vec<u64>> {
    let end = address.checked_add(size as u64).ok_or(CuResult::INVALID_VALUE)?;
    let mut at = address;
    let mut found = Vec::new();
    while at < end {
        let &(_, length) = inner.vmm.mapped.get(&at).ok_or(CuResult::INVALID_VALUE)?;
        found.push(at);
        at += length;
    }
    ensure(at == end && size > 0, CuResult::INVALID_VALUE)?;
    Ok(found)
}

pub(crate) extern "C" fn unmap(address: DevicePtr, size: usize) -> CuResult {
    api(|| {
        with(|driver, inner| {
            for base in cover(inner, address, size)? {
                let Some((key, length)) = inner.vmm.mapped.remove(&base) else { continue };
                inner.memory.remove(&base);
                // SAFETY: this range was mapped by this driver within its own reservation.
                unsafe { map_at(base, length, None)? };
                if let Some(found) = inner.vmm.physical.get_mut(&key) {
                    found.mappings -= 1;
                }
                drop_unused(driver, inner, key);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_access(
    address: DevicePtr,
    size: usize,
    access: In<AccessDesc>,
    count: usize,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            ensure(count > 0, CuResult::INVALID_VALUE)?;
            let mut allowed = 0;
            for access in access.list(count)? {
                if access.location.kind == LOCATION_DEVICE {
                    driver.device(access.location.id)?;
                } else {
                    let host = HOSTS.contains(&access.location.kind);
                    ensure(host, CuResult::INVALID_VALUE)?;
                }
                ensure(matches!(access.flags, 0 | 1 | 3), CuResult::INVALID_VALUE)?;
                allowed |= access.flags;
            }
            for base in cover(inner, address, size)? {
                let Some(&(_, length)) = inner.vmm.mapped.get(&base) else { continue };
                let protection =
                    if allowed == 0 { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
                // SAFETY: the range is a mapping of this driver's own.
                unsafe { libc::mprotect(base as *mut c_void, length as usize, protection) };
                if let Some(found) = inner.memory.get_mut(&base) {
                    found.kind = Kind::Mapped { accessible: allowed != 0 };
                }
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn get_access(
    flags: Out<u64>,
    _location: In<MemLocation>,
    address: DevicePtr,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            flags.required()?;
            match memory::find(inner, address).map(|(_, found)| found.kind) {
                Some(Kind::Mapped { accessible }) => flags.set(if accessible { 3 } else { 0 }),
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}

/// `cuMemGetAllocationGranularity`: minimum and recommended are the same here.
pub(crate) extern "C" fn granularity(
    to: Out<usize>,
    prop: In<AllocationProp>,
    option: c_uint,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        to.required()?;
        locate(driver, &prop.get()?)?;
        ensure(option <= 1, CuResult::INVALID_VALUE)?;
        to.set(GRANULE as usize);
        Ok(())
    })
}

pub(crate) extern "C" fn properties(prop: Out<AllocationProp>, key: AllocationHandle) -> CuResult {
    api(|| {
        with(|_, inner| {
            prop.required()?;
            prop.set(known(inner, key)?.prop);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn retain(to: Out<AllocationHandle>, address: *mut c_void) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            let found = inner.vmm.mapped.range(..=address as u64).next_back();
            let key = match found {
                Some((&base, &(key, length))) if (address as u64) < base + length => key,
                _ => return Err(CuResult::INVALID_VALUE),
            };
            if let Some(found) = inner.vmm.physical.get_mut(&key) {
                found.handles += 1;
            }
            to.set(key);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn export(
    to: Out<c_int>,
    key: AllocationHandle,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let found = known(inner, key)?;
            ensure(kind == HANDLE_TYPE_POSIX_FD && flags == 0, CuResult::INVALID_VALUE)?;
            let block = found.block.ok_or(CuResult::INVALID_VALUE)?;
            to.set(sharing::descriptor(driver, block)?);
            Ok(())
        })
    })
}

/// `cuMemImportFromShareableHandle`: the caller keeps the descriptor. Only the exporter is charged for the memory.
pub(crate) extern "C" fn import(
    to: Out<AllocationHandle>,
    descriptor: *mut c_void,
    kind: c_uint,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            ensure(kind == HANDLE_TYPE_POSIX_FD, CuResult::INVALID_VALUE)?;
            let id = sharing::named(driver, descriptor as c_int)?;
            let (block, file) = sharing::open(driver, inner, id)?;
            if sharing::stands_for_pool(&block) {
                sharing::let_go(driver, inner, id);
                return Err(CuResult::INVALID_VALUE);
            }
            let on_host = block.bytes == 0;
            let location = if on_host {
                MemLocation { kind: *HOSTS.start(), id: 0 }
            } else {
                match sharing::ordinal(driver, &block) {
                    Ok(id) => MemLocation { kind: LOCATION_DEVICE, id },
                    Err(error) => {
                        sharing::let_go(driver, inner, id);
                        return Err(error);
                    }
                }
            };
            let prop = AllocationProp {
                kind: ALLOCATION_PINNED,
                handle_types: HANDLE_TYPE_POSIX_FD,
                location,
                win32_handle_meta_data: core::ptr::null_mut(),
                alloc_flags: [0; 8],
            };
            let made = Physical {
                file: file.into_raw_fd(),
                offset: 0,
                block: Some(id),
                size: block.length,
                device: (!on_host).then_some(block.device),
                prop,
                handles: 1,
                mappings: 0,
                bindings: 0,
            };
            let key = inner.new_handle();
            inner.vmm.physical.insert(key, made);
            to.set(key);
            Ok(())
        })
    })
}
