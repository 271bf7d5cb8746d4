//! Device memory: the table of allocations, linear memory, and free memory.
//!
//! Addresses are real: every allocation is mapped (without reserving host memory), so that copies move bytes. The
//! device counts the bytes that the real driver would take, not the requested ones.

use core::ffi::{c_uint, c_void};

use driver::cuda::{CuResult, DevicePtr};
use fake_node::blocks::BlockId;

use crate::context::device_of;
use crate::ffi::{Api, Out, api, ensure};
use crate::state::{Driver, Inner, with, with_context};
use crate::{capture, external, graph_memory, managed, pool, sharing, stream_memory};

/// From this size on, allocations take multiples of [`GRANULE`].
const LARGE: u64 = 1 << 20;
/// Granularity of smaller allocations, in bytes.
const SMALL_GRANULE: u64 = 512;
/// Granularity of device memory, in bytes.
pub(crate) const GRANULE: u64 = 2 << 20;
/// Rows of pitched memory begin at multiples of this many bytes.
const PITCH: usize = 512;
/// Upper bound for an allocation, in bytes.
pub(crate) const LARGEST: u64 = 1 << 46;

/// The origin of an allocation, which decides how it is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Linear,
    /// Counted on the device only while it is resident there.
    Managed {
        resident: bool,
    },
    /// From the pool with this handle.
    Pool(u64),
    /// Of an allocation node; `owners` counts the graphs that can make it live.
    Graph {
        live: bool,
        owners: u32,
    },
    Host,
    Registered,
    /// Another process's block. `opens` counts how often IPC (`ipc`) or a shared pool has returned it.
    Imported {
        block: BlockId,
        opens: u32,
        ipc: bool,
    },
    /// A buffer mapped onto external memory.
    External(u64),
    /// A mapping of physical memory (`cuMemMap`).
    Mapped {
        accessible: bool,
    },
}

/// A piece of memory that the driver knows.
#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    /// Requested bytes.
    pub(crate) size: u64,
    /// Bytes that the device counts for it.
    pub(crate) taken: u64,
    /// The node's device.
    pub(crate) device: u32,
    pub(crate) context: u64,
    pub(crate) kind: Kind,
    /// Whether the driver made the mapping.
    pub(crate) ours: bool,
}

/// The next multiple of `granule`.
pub(crate) fn round_up(size: u64, granule: u64) -> u64 {
    size.div_ceil(granule) * granule
}

/// Bytes that the driver takes for an allocation of `size` bytes.
pub(crate) fn rounded(size: u64) -> u64 {
    round_up(size, if size < LARGE { SMALL_GRANULE } else { GRANULE })
}

/// Maps fresh memory. `low`: below 4 GiB, for functions with 32-bit addresses.
pub(crate) fn map(size: u64, low: bool) -> Api<u64> {
    ensure(size <= LARGEST, CuResult::OUT_OF_MEMORY)?;
    let address = if low { map_low(size) } else { map_at(0, size, 0) };
    address.ok_or(CuResult::OUT_OF_MEMORY)
}

/// Maps fresh memory at `at`; 0: where the system chooses.
fn map_at(at: u64, size: u64, flag: libc::c_int) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flag;
    // SAFETY: a new anonymous mapping, in the place of none.
    let address = unsafe {
        libc::mmap(
            core::ptr::with_exposed_provenance_mut(at as usize),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

#[cfg(target_arch = "x86_64")]
fn map_low(size: u64) -> Option<u64> {
    map_at(0, size, libc::MAP_32BIT)
}

/// Maps fresh memory at the first free place below 4 GiB, because there is no `MAP_32BIT` here.
#[cfg(not(target_arch = "x86_64"))]
fn map_low(size: u64) -> Option<u64> {
    const STEP: usize = 16 << 20;
    let end = (1_u64 << 32).checked_sub(size)?;
    let free = |at| map_at(at, size, libc::MAP_FIXED_NOREPLACE).filter(|&got| got == at);
    (1 << 28..end).step_by(STEP).find_map(free)
}

/// Unmaps a mapping made by [`map`].
pub(crate) fn unmap(base: u64, size: u64) {
    // SAFETY: the table of allocations says that this range is the driver's own mapping; a program
    // that uses it after freeing it has broken the driver API's rules.
    unsafe { libc::munmap(base as *mut c_void, size as usize) };
}

/// Maps fresh memory that begins at a multiple of `grain`.
pub(crate) fn map_aligned(size: u64, grain: u64) -> Api<u64> {
    let whole = map(size + grain, false)?;
    let base = round_up(whole, grain);
    unmap(whole, base - whole);
    unmap(base + size, whole + grain - base);
    Ok(base)
}

/// Drops the contents of a part of the driver's own mappings.
pub(crate) fn clear(base: u64, size: u64) {
    // SAFETY: as for `unmap`; the range stays mapped.
    unsafe {
        libc::mmap(
            base as *mut c_void,
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

/// Takes bytes of a device. If they are not free, gives back what this process does not need.
pub(crate) fn take(driver: &Driver, inner: &mut Inner, device: u32, bytes: u64) -> Api {
    if bytes == 0 || driver.node.take(driver.process, device, bytes).is_ok() {
        return Ok(());
    }
    reclaim(driver, inner, device);
    driver.node.take(driver.process, device, bytes).map_err(|_| CuResult::OUT_OF_MEMORY)
}

/// Gives back what this process holds on a device without needing it: unused memory of pools and graphs, and managed
/// memory, which can be on the host.
pub(crate) fn reclaim(driver: &Driver, inner: &mut Inner, device: u32) {
    pool::trim_all(driver, inner, device);
    graph_memory::trim(driver, inner, device);
    managed::evict(driver, inner, device);
}

/// The allocation that contains an address, with its base.
pub(crate) fn find(inner: &Inner, address: u64) -> Option<(u64, &Allocation)> {
    let (&base, found) = inner.memory.range(..=address).next_back()?;
    (address < base + found.size).then_some((base, found))
}

fn allocate(size: u64, low: bool) -> Api<u64> {
    with_context(|driver, inner, context| {
        ensure(size > 0, CuResult::INVALID_VALUE)?;
        capture::unsafe_call(inner)?;
        let (_, device) = device_of(inner, context)?;
        let taken = rounded(size.min(LARGEST));
        ensure(size <= LARGEST, CuResult::OUT_OF_MEMORY)?;
        take(driver, inner, device, taken)?;
        let base = match map(size, low) {
            Ok(base) => base,
            Err(error) => {
                driver.node.give_back(driver.process, device, taken);
                return Err(error);
            }
        };
        let allocation =
            Allocation { size, taken, device, context, kind: Kind::Linear, ours: true };
        inner.memory.insert(base, allocation);
        Ok(base)
    })
}

pub(crate) extern "C" fn alloc(address: Out<DevicePtr>, size: usize) -> CuResult {
    api(|| {
        crate::state::driver()?;
        address.required()?.set(allocate(size as u64, false)?);
        Ok(())
    })
}

/// The form of CUDA 2, with 32-bit addresses.
pub(crate) extern "C" fn alloc_v1(address: Out<c_uint>, size: c_uint) -> CuResult {
    api(|| {
        crate::state::driver()?;
        address.required()?.set(allocate(u64::from(size), true)? as c_uint);
        Ok(())
    })
}

fn allocate_pitch(width: usize, height: usize, element: c_uint, low: bool) -> Api<(u64, usize)> {
    crate::state::driver()?;
    ensure(matches!(element, 4 | 8 | 16), CuResult::INVALID_VALUE)?;
    ensure(width > 0 && height > 0, CuResult::INVALID_VALUE)?;
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(CuResult::INVALID_VALUE)?;
    let size = pitch.checked_mul(height).ok_or(CuResult::OUT_OF_MEMORY)?;
    Ok((allocate(size as u64, low)?, pitch))
}

pub(crate) extern "C" fn alloc_pitch(
    address: Out<DevicePtr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> CuResult {
    api(|| {
        address.required()?;
        pitch.required()?;
        let (base, row) = allocate_pitch(width, height, element, false)?;
        address.set(base);
        pitch.set(row);
        Ok(())
    })
}

pub(crate) extern "C" fn alloc_pitch_v1(
    address: Out<c_uint>,
    pitch: Out<c_uint>,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CuResult {
    api(|| {
        address.required()?;
        pitch.required()?;
        let (base, row) = allocate_pitch(width as usize, height as usize, element, true)?;
        address.set(base as c_uint);
        pitch.set(row as c_uint);
        Ok(())
    })
}

/// Removes an allocation from the table and releases its bytes.
pub(crate) fn discard(driver: &Driver, inner: &mut Inner, base: u64) {
    let Some(found) = inner.memory.remove(&base) else { return };
    inner.at_home.remove(&base);
    match found.kind {
        Kind::Linear if sharing::discarded(driver, inner, base) => {}
        Kind::Linear | Kind::Managed { resident: true } => {
            driver.node.give_back(driver.process, found.device, found.taken);
        }
        Kind::Pool(key) => {
            sharing::discarded(driver, inner, base);
            pool::returned(inner, key, base, &found);
        }
        Kind::Imported { block, .. } => sharing::let_go(driver, inner, block),
        Kind::External(key) => external::unmap(driver, inner, key, base, found.size),
        Kind::Host | Kind::Registered => stream_memory::forget(driver, base, found.size),
        _ => {}
    }
    if found.ours {
        unmap(base, found.size);
    }
}

fn release(address: u64) -> Api {
    with(|driver, inner| {
        if address == 0 {
            return Ok(());
        }
        let kind = inner.memory.get(&address).map(|found| found.kind);
        match kind {
            Some(
                Kind::Linear
                | Kind::Managed { .. }
                | Kind::Pool(_)
                | Kind::External(_)
                | Kind::Imported { ipc: false, .. },
            ) => {
                capture::unsafe_call(inner)?;
                discard(driver, inner, address);
                Ok(())
            }
            Some(Kind::Graph { .. }) => {
                capture::unsafe_call(inner)?;
                graph_memory::free(inner, address)
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    })
}

pub(crate) extern "C" fn free(address: DevicePtr) -> CuResult {
    api(|| release(address))
}

pub(crate) extern "C" fn free_v1(address: c_uint) -> CuResult {
    api(|| release(u64::from(address)))
}

fn info_now() -> Api<(u64, u64)> {
    fake_node::asked::note(fake_node::asked::FREE_MEMORY);
    with_context(|driver, inner, context| {
        let (_, device) = device_of(inner, context)?;
        let free = driver.node.lock_reaped().free_memory(device);
        Ok((free, driver.node.config().memory))
    })
}

pub(crate) extern "C" fn info(free: Out<usize>, total: Out<usize>) -> CuResult {
    api(|| {
        let (left, all) = info_now()?;
        // Either may be null.
        free.set(left as usize);
        total.set(all as usize);
        Ok(())
    })
}

/// The form of CUDA 2: larger sizes saturate at 32 bits.
pub(crate) extern "C" fn info_v1(free: Out<c_uint>, total: Out<c_uint>) -> CuResult {
    api(|| {
        let (left, all) = info_now()?;
        free.set(u32::try_from(left).unwrap_or(u32::MAX));
        total.set(u32::try_from(all).unwrap_or(u32::MAX));
        Ok(())
    })
}

/// Frees the allocations of a context.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let gone: Vec<u64> = inner
        .memory
        .iter()
        .filter(|(_, found)| {
            let outlives = match found.kind {
                Kind::Mapped { .. } | Kind::Graph { .. } => true,
                Kind::Pool(key) => pool::outlives_contexts(inner, key),
                _ => false,
            };
            found.context == context && !outlives
        })
        .map(|(&base, _)| base)
        .collect();
    for base in gone {
        discard(driver, inner, base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_the_driver_takes() {
        for (asked, taken) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            (LARGE - 1, LARGE),
            (LARGE, GRANULE),
            (GRANULE, GRANULE),
            (GRANULE + 1, 2 * GRANULE),
        ] {
            assert_eq!(rounded(asked), taken, "{asked}");
        }
    }
}
