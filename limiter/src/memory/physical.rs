//! Physical memory of the virtual memory API.
//!
//! What `cuMemCreate` takes lives until every reference to the handle is released and every mapping is
//! gone ("cuMemRelease", CUDA driver API, Virtual Memory Management), in whatever order. A handle's number
//! may come again while the memory that it stood for is still mapped, so memory is known by a name of
//! its own here.

use super::charge::{refused, release, reserve};
use crate::device::Device;
use crate::per_process::PerProcess;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use utils::driver::cuda::CuResult;
use utils::page::layout::Kind;

/// Names a piece of memory, never used twice.
type Name = u64;

#[derive(Clone, Copy)]
struct Piece {
    device: &'static Device,
    bytes: u64,
    references: u32,
    mappings: u32,
}

#[derive(Default)]
struct Pieces {
    next: Name,
    by_handle: HashMap<u64, Name>,
    /// By address: length and piece.
    mappings: BTreeMap<u64, (u64, Name)>,
    pieces: HashMap<Name, Piece>,
}

static PIECES: PerProcess<Mutex<Pieces>> = PerProcess::new();

/// In a forked child: the parent's memory is not the child's.
pub(crate) fn after_fork() {
    PIECES.forget();
}

fn pieces() -> MutexGuard<'static, Pieces> {
    PIECES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pieces {
    /// Forgets a piece that nothing refers to any more, and tells what to give back.
    fn sweep(&mut self, name: Name) -> Option<Piece> {
        let piece = self.pieces.get(&name)?;
        if piece.references == 0 && piece.mappings == 0 { self.pieces.remove(&name) } else { None }
    }

    fn change(&mut self, name: Name, change: impl FnOnce(&mut Piece)) {
        if let Some(piece) = self.pieces.get_mut(&name) {
            change(piece);
        }
    }
}

fn give_back(piece: Option<Piece>) {
    if let Some(Piece { device, bytes, .. }) = piece {
        release(device, Kind::Data, bytes);
    }
}

/// Runs `cuMemCreate` for `bytes` of a device; `handle` is read after success.
pub(crate) fn create(
    device: &'static Device,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> u64,
) -> CuResult {
    if !reserve(device, Kind::Data, bytes) {
        return refused(device, bytes);
    }
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        pieces.next += 1;
        let name = pieces.next;
        pieces.by_handle.insert(handle(), name);
        pieces.pieces.insert(name, Piece { device, bytes, references: 1, mappings: 0 });
    } else {
        release(device, Kind::Data, bytes);
    }
    result
}

/// Runs `cuMemRelease`. The record changes first: once the driver has released it, the handle's number
/// may be another thread's.
pub(crate) fn release_handle(handle: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let name = {
        let mut pieces = pieces();
        let name = pieces.by_handle.get(&handle).copied();
        if let Some(name) = name {
            let mut left = 0;
            pieces.change(name, |piece| {
                piece.references = piece.references.saturating_sub(1);
                left = piece.references;
            });
            if left == 0 {
                pieces.by_handle.remove(&handle);
            }
        }
        name
    };
    let result = call();
    if let Some(name) = name {
        let mut pieces = pieces();
        if result.is_ok() {
            let gone = pieces.sweep(name);
            drop(pieces);
            give_back(gone);
        } else {
            pieces.change(name, |piece| piece.references += 1);
            pieces.by_handle.insert(handle, name);
        }
    }
    result
}

/// Runs `cuMemRetainAllocationHandle` for an address; `handle` is read after success.
pub(crate) fn retain(
    address: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> u64,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        let found = pieces.mappings.range(..=address).next_back();
        if let Some((_, &(_, name))) =
            found.filter(|&(&start, &(length, _))| address - start < length)
        {
            pieces.change(name, |piece| piece.references += 1);
            pieces.by_handle.insert(handle(), name);
        }
    }
    result
}

/// Runs `cuMemMap`.
pub(crate) fn map(
    address: u64,
    length: u64,
    handle: u64,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        if let Some(&name) = pieces.by_handle.get(&handle) {
            pieces.change(name, |piece| piece.mappings += 1);
            pieces.mappings.insert(address, (length, name));
        }
    }
    result
}

/// Runs `cuMemUnmap`, which takes whole mappings only.
pub(crate) fn unmap(address: u64, length: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let range = address..address.saturating_add(length);
    let taken: Vec<(u64, (u64, Name))> = {
        let mut pieces = pieces();
        let taken: Vec<_> = pieces.mappings.range(range).map(|(&start, &to)| (start, to)).collect();
        for (start, _) in &taken {
            pieces.mappings.remove(start);
        }
        taken
    };
    let result = call();
    for (start, (length, name)) in taken {
        let mut pieces = pieces();
        if result.is_ok() {
            pieces.change(name, |piece| piece.mappings = piece.mappings.saturating_sub(1));
            let gone = pieces.sweep(name);
            drop(pieces);
            give_back(gone);
        } else {
            pieces.mappings.insert(start, (length, name));
        }
    }
    result
}
