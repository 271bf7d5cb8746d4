//! Memory shared by several processes: IPC handles, and allocations of shared pools.
//!
//! Shared memory becomes a block of the node, whose contents every process can map. It takes no additional device
//! memory, and stays on the device until its owner and every process that opened it have released it.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::os::unix::fs::FileExt;

use driver::cuda::{
    self, CuResult, DevicePtr, HANDLE_TYPE_POSIX_FD, IPC_LAZY_PEER_ACCESS, IpcMemHandle,
};
use fake_node::blocks::{Block, BlockId};

use crate::capture;
use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::memory::{self, Allocation, Kind};
use crate::pool;
use crate::state::{Driver, Inner, with, with_context};

/// Page size of host memory.
const PAGE: u64 = 4096;
/// The first word of a handle of `cuIpcGetMemHandle`.
const IPC_MARK: u64 = 0x5355_4c49_4345_0001;
/// The first word of the result of `cuMemPoolExportPointer`.
const POOL_MARK: u64 = 0x5355_4c49_4345_0002;

/// How often this process holds each block; the node knows only whether it does.
#[derive(Default)]
pub(crate) struct Holds {
    counts: HashMap<(u32, u32), u32>,
    /// Allocations that were turned into blocks, by address.
    exported: HashMap<u64, BlockId>,
}

/// Makes a block from memory that this process has taken.
pub(crate) fn make(
    driver: &Driver,
    inner: &mut Inner,
    device: u32,
    (bytes, covered): (u64, bool),
    length: u64,
) -> Api<(BlockId, File)> {
    let made = driver.node.make_block(driver.process, device, (bytes, covered), length);
    let (id, file) = made.map_err(|_| CuResult::OUT_OF_MEMORY)?;
    inner.holds.counts.insert((id.slot, id.generation), 1);
    Ok((id, file))
}

/// Opens a block.
pub(crate) fn open(driver: &Driver, inner: &mut Inner, id: BlockId) -> Api<(Block, File)> {
    let opened = driver.node.open_block(driver.process, id);
    let found = opened.map_err(|_| CuResult::INVALID_HANDLE)?;
    *inner.holds.counts.entry((id.slot, id.generation)).or_default() += 1;
    Ok(found)
}

/// Whether a block represents a pool instead of memory.
pub(crate) fn stands_for_pool(block: &Block) -> bool {
    block.bytes == 0 && block.covered == 1
}

/// Releases one hold of a block.
pub(crate) fn let_go(driver: &Driver, inner: &mut Inner, id: BlockId) {
    let key = (id.slot, id.generation);
    let Some(count) = inner.holds.counts.get_mut(&key) else { return };
    *count -= 1;
    if *count == 0 {
        inner.holds.counts.remove(&key);
        driver.node.release_block(driver.process, id);
    }
}

/// Makes a descriptor for another process; the caller owns it.
pub(crate) fn descriptor(driver: &Driver, id: BlockId) -> Api<c_int> {
    let file = driver.node.export_block(id).map_err(|_| CuResult::OPERATING_SYSTEM)?;
    Ok(file.into_raw_fd())
}

/// The block of a descriptor from any process. The caller keeps the descriptor.
pub(crate) fn named(driver: &Driver, descriptor: c_int) -> Api<BlockId> {
    ensure(descriptor >= 0, CuResult::INVALID_VALUE)?;
    // SAFETY: used for this call only, during which the caller of the driver API keeps it open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = borrowed.try_clone_to_owned().map_err(|_| CuResult::INVALID_VALUE)?;
    driver.node.exported_block(&File::from(file)).ok_or(CuResult::INVALID_VALUE)
}

/// The ordinal of a block's device; fails if this process does not see the device.
pub(crate) fn ordinal(driver: &Driver, block: &Block) -> Api<c_int> {
    let found = driver.visible.iter().position(|&device| device == block.device);
    found.map(|ordinal| ordinal as c_int).ok_or(CuResult::INVALID_DEVICE)
}

/// Releases the block of the allocation at `base`; returns whether there was one.
pub(crate) fn discarded(driver: &Driver, inner: &mut Inner, base: u64) -> bool {
    match inner.holds.exported.remove(&base) {
        Some(id) => {
            let_go(driver, inner, id);
            true
        }
        None => false,
    }
}

/// Which pages of a range this process has touched (`/proc/self/pagemap`: present or swapped out).
fn touched(base: u64, pages: u64) -> std::io::Result<Vec<bool>> {
    let mut entries = vec![0_u8; pages as usize * 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, base / PAGE * 8)?;
    // The two highest bits of each little-endian entry.
    Ok(entries.iter().skip(7).step_by(8).map(|high| high & 0xc0 != 0).collect())
}

fn map_file(file: &File, length: u64, at: Option<u64>) -> Api<u64> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping at an address of the system's choice, or (`at`) in place of the
    // driver's own mapping of an allocation.
    let address = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut c_void,
            length as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE | fixed,
            file.as_raw_fd(),
            0,
        )
    };
    ensure(address != libc::MAP_FAILED, CuResult::OUT_OF_MEMORY)?;
    Ok(address as u64)
}

/// Turns an allocation of this process into a block, if it is none yet; its contents move to the block's file.
fn share(driver: &Driver, inner: &mut Inner, base: u64, covered: bool) -> Api<BlockId> {
    if let Some(&id) = inner.holds.exported.get(&base) {
        return Ok(id);
    }
    let found = *inner.memory.get(&base).ok_or(CuResult::INVALID_VALUE)?;
    let length = memory::round_up(found.size, PAGE);
    let (id, file) = make(driver, inner, found.device, (found.taken, covered), length)?;
    let copied = touched(base, length / PAGE).and_then(|pages| {
        for page in (0_u64..).zip(pages).filter(|(_, touched)| *touched).map(|(page, _)| page) {
            // SAFETY: a page of the driver's own mapping of this allocation.
            let bytes = unsafe {
                core::slice::from_raw_parts((base + page * PAGE) as *const u8, PAGE as usize)
            };
            file.write_all_at(bytes, page * PAGE)?;
        }
        Ok(())
    });
    let mapped =
        copied.map_err(|_| CuResult::MAP_FAILED).and_then(|()| map_file(&file, length, Some(base)));
    if let Err(error) = mapped {
        inner.holds.counts.remove(&(id.slot, id.generation));
        driver.node.cancel_block(id);
        return Err(error);
    }
    inner.holds.exported.insert(base, id);
    Ok(id)
}

/// Maps another process's block.
fn import(driver: &Driver, inner: &mut Inner, id: BlockId, context: u64, ipc: bool) -> Api<u64> {
    let (block, file) = open(driver, inner, id)?;
    let mapped = ordinal(driver, &block).and_then(|_| map_file(&file, block.length, None));
    match mapped {
        Ok(base) => {
            let allocation = Allocation {
                size: block.length,
                taken: 0,
                device: block.device,
                context,
                kind: Kind::Imported { block: id, opens: 1, ipc },
                ours: true,
            };
            inner.memory.insert(base, allocation);
            Ok(base)
        }
        Err(error) => {
            let_go(driver, inner, id);
            Err(error)
        }
    }
}

fn words(bytes: &[u8; 64]) -> [u32; 16] {
    core::array::from_fn(|at| u32::from_le_bytes(core::array::from_fn(|byte| bytes[at * 4 + byte])))
}

fn packed(mark: u64, ids: &[BlockId]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    for (place, id) in bytes[8..].chunks_exact_mut(8).zip(ids) {
        place[..4].copy_from_slice(&id.slot.to_le_bytes());
        place[4..].copy_from_slice(&id.generation.to_le_bytes());
    }
    bytes
}

/// The ids in bytes from [`packed`]; `None` for other bytes.
fn unpacked(mark: u64, bytes: &[u8; 64]) -> Option<[BlockId; 2]> {
    let words = words(bytes);
    let marked = u64::from(words[0]) | u64::from(words[1]) << 32;
    let id = |at: usize| BlockId { slot: words[at], generation: words[at + 1] };
    (marked == mark).then(|| [id(2), id(4)])
}

pub(crate) extern "C" fn ipc_get(to: Out<IpcMemHandle>, address: DevicePtr) -> CuResult {
    api(|| {
        with_context(|driver, inner, _| {
            to.required()?;
            let found = inner.memory.get(&address).ok_or(CuResult::INVALID_VALUE)?;
            ensure(found.kind == Kind::Linear, CuResult::INVALID_VALUE)?;
            capture::unsafe_call(inner)?;
            let id = share(driver, inner, address, false)?;
            to.set(IpcMemHandle { reserved: packed(IPC_MARK, &[id]) });
            Ok(())
        })
    })
}

pub(crate) extern "C" fn ipc_open(
    to: Out<DevicePtr>,
    memory: IpcMemHandle,
    flags: c_uint,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            to.required()?;
            ensure(flags == IPC_LAZY_PEER_ACCESS, CuResult::INVALID_VALUE)?;
            let [id, _] = unpacked(IPC_MARK, &memory.reserved).ok_or(CuResult::INVALID_HANDLE)?;
            capture::unsafe_call(inner)?;
            // Refused in the exporting process, and after that process has freed the memory.
            let owner = driver.node.lock_reaped().block(id).map(|block| block.owner);
            let owner = owner.ok_or(CuResult::INVALID_HANDLE)?;
            ensure(owner != driver.process, CuResult::INVALID_CONTEXT)?;
            ensure(owner != fake_node::layout::NONE, CuResult::INVALID_HANDLE)?;
            let again = inner.memory.iter_mut().find_map(|(&base, found)| match &mut found.kind {
                Kind::Imported { block, opens, ipc: true }
                    if *block == id && found.context == context =>
                {
                    Some((base, opens))
                }
                _ => None,
            });
            if let Some((base, opens)) = again {
                *opens += 1;
                to.set(base);
                return Ok(());
            }
            to.set(import(driver, inner, id, context, true)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn ipc_close(address: DevicePtr) -> CuResult {
    api(|| {
        with_context(|driver, inner, _| {
            capture::unsafe_call(inner)?;
            let found = inner.memory.get_mut(&address).map(|found| &mut found.kind);
            let Some(Kind::Imported { opens, ipc: true, .. }) = found else {
                return Err(CuResult::INVALID_VALUE);
            };
            *opens -= 1;
            if *opens == 0 {
                memory::discard(driver, inner, address);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn pool_export(
    to: Out<c_int>,
    pool: cuda::MemoryPool,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let offered = pool::known(inner, pool)?.shareable();
            ensure(kind == HANDLE_TYPE_POSIX_FD && offered, CuResult::INVALID_VALUE)?;
            ensure(flags == 0, CuResult::INVALID_VALUE)?;
            let id = match pool::known(inner, pool)?.block {
                Some(id) => id,
                None => {
                    let device = pool::known(inner, pool)?.device;
                    let (id, _) = make(driver, inner, device, (0, true), PAGE)?;
                    pool::known(inner, pool)?.block = Some(id);
                    id
                }
            };
            to.set(descriptor(driver, id)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn pool_import(
    to: Out<cuda::MemoryPool>,
    descriptor: *mut c_void,
    kind: c_uint,
    flags: u64,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            ensure(kind == HANDLE_TYPE_POSIX_FD && flags == 0, CuResult::INVALID_VALUE)?;
            let id = named(driver, descriptor as c_int)?;
            let (block, _) = open(driver, inner, id)?;
            let pool = if stands_for_pool(&block) { Ok(()) } else { Err(CuResult::INVALID_VALUE) };
            if let Err(error) = pool.and_then(|()| ordinal(driver, &block)) {
                let_go(driver, inner, id);
                return Err(error);
            }
            to.set(handle(pool::imported(inner, block.device, id)));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn pool_export_pointer(to: Out<[u8; 64]>, address: DevicePtr) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let found = inner.memory.get(&address).ok_or(CuResult::INVALID_VALUE)?;
            let Kind::Pool(key) = found.kind else { return Err(CuResult::INVALID_VALUE) };
            let of = pool::known(inner, handle(key))?.block.ok_or(CuResult::INVALID_VALUE)?;
            let id = share(driver, inner, address, true)?;
            to.set(packed(POOL_MARK, &[id, of]));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn pool_import_pointer(
    to: Out<DevicePtr>,
    pool: cuda::MemoryPool,
    data: In<[u8; 64]>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let pool = pool::known(inner, pool)?;
            ensure(pool.imported, CuResult::INVALID_VALUE)?;
            let own = pool.block;
            let [id, of] = unpacked(POOL_MARK, &data.get()?).ok_or(CuResult::INVALID_VALUE)?;
            ensure(own == Some(of), CuResult::INVALID_VALUE)?;
            let imported = import(driver, inner, id, 0, false);
            to.set(imported.map_err(|_| CuResult::INVALID_VALUE)?);
            Ok(())
        })
    })
}
