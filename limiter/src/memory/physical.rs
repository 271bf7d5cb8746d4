//! Physical memory that lives as long as it is referred to.
//!
//! Memory of `cuMemCreate` lives until every reference to its handle is released and every mapping, tile of a
//! sparse array and binding to a multicast object is gone, in any order ("cuMemRelease", CUDA driver API,
//! Virtual Memory Management). The driver may reuse a handle's number while the old memory is still mapped.
//! So memory has a unique name here. Imported memory has a name, too, but no charge: its exporter pays.
//! Memory imported from other interfaces has no exporter that would pay. It is charged here, and lives as
//! long as its object and what is mapped of it.

use super::device::DeviceMemory;
use super::pieces::{Binding, Name, Payer, Piece, Pieces, Reference};
use super::tiles::{Region, Tiles};
use super::tracker::Handle;
use core::ptr;
use driver::cuda::CuResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The source of a binding to a multicast object.
pub(crate) enum BindingSource {
    /// Memory by its handle.
    Handle(u64),
    /// Memory by address and length.
    Mapped(u64, u64),
}

/// A change of a sparse array's tiles.
pub(crate) struct TileChange {
    /// The array or mipmapped array.
    pub(crate) array: usize,
    /// Which tiles.
    pub(crate) region: Region,
    /// The memory mapped there; `None`: an unmapping.
    pub(crate) handle: Option<u64>,
}

/// The physical memory of the program.
#[derive(Default)]
pub(crate) struct Physical(Mutex<Pieces>);

impl Physical {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has made memory of a device by `cuMemCreate`. Its charge is given back when nothing refers
    /// to it any more.
    pub(super) fn created(&self, device: &'static DeviceMemory, bytes: u64, handle: u64) {
        let mut pieces = self.pieces();
        let name = pieces.make(Payer::This(device), bytes);
        let gone = pieces.handles.insert(handle, (name, 1));
        // If other memory had this number, its handle was released.
        let freed =
            pieces
                .let_go(gone.into_iter().flat_map(|(name, references)| {
                    core::iter::repeat_n(name, references as usize)
                }));
        drop(pieces);
        freed.give_back();
    }

    /// The program has imported memory of a device, exported by another process or by itself.
    pub(crate) fn imported(&self, device: &'static DeviceMemory, handle: u64) {
        let mut pieces = self.pieces();
        match pieces.by_handle(handle) {
            // One more reference to memory that the program already has.
            Some(name) => pieces.refer(handle, name),
            None => {
                let name = pieces.make(Payer::Exporter(device), 0);
                pieces.handles.insert(handle, (name, 1));
            }
        }
    }

    /// Bytes of a device's memory that this process has imported by handle, as far as its mappings show.
    pub(super) fn imported_bytes(&self, device: &DeviceMemory) -> u64 {
        let pieces = self.pieces();
        let imported = pieces
            .pieces
            .values()
            .filter(|piece| matches!(piece.payer, Payer::Exporter(of) if ptr::eq(of, device)));
        imported.map(|piece| piece.bytes).fold(0, u64::saturating_add)
    }

    /// The program has made or imported a multicast object.
    pub(crate) fn multicast(&self, handle: u64) {
        let mut pieces = self.pieces();
        match pieces.by_handle(handle) {
            Some(name) => pieces.refer(handle, name),
            None => {
                let name = pieces.make(Payer::Nobody, 0);
                pieces.handles.insert(handle, (name, 1));
            }
        }
    }

    /// Runs `cuMemRelease`. The record changes before the call: after it, another thread may get the handle's
    /// number.
    pub(crate) fn release_handle(&self, handle: u64, call: impl FnOnce() -> CuResult) -> CuResult {
        let name = {
            let mut pieces = self.pieces();
            let name = pieces.by_handle(handle);
            if let Some((_, references)) = pieces.handles.get_mut(&handle) {
                *references = references.saturating_sub(1);
                if *references == 0 {
                    pieces.handles.remove(&handle);
                }
            }
            name
        };
        let result = call();
        if let Some(name) = name {
            let mut pieces = self.pieces();
            if result.is_ok() {
                let freed = pieces.let_go([name]);
                drop(pieces);
                freed.give_back();
            } else {
                pieces.handles.entry(handle).or_insert((name, 0)).1 += 1;
            }
        }
        result
    }

    /// Runs `cuMemRetainAllocationHandle` for an address; `handle` is read after success.
    pub(crate) fn retain(
        &self,
        address: u64,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> u64,
    ) -> CuResult {
        let result = call();
        if result.is_ok() {
            let mut pieces = self.pieces();
            if let Some(&name) = pieces.mapped(address, 1).first() {
                pieces.refer(handle(), name);
            }
        }
        result
    }

    /// Runs `cuMemMap`.
    pub(crate) fn map(
        &self,
        address: u64,
        offset: u64,
        length: u64,
        handle: u64,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let result = call();
        if result.is_ok() {
            let mut pieces = self.pieces();
            if let Some(name) = pieces.by_handle(handle) {
                pieces.hold(name);
                pieces.mappings.insert(address, (length, name));
                if let Some(piece) = pieces.pieces.get_mut(&name)
                    && let Payer::Exporter(_) = piece.payer
                {
                    piece.bytes = piece.bytes.max(offset.saturating_add(length));
                }
            }
        }
        result
    }

    /// Runs `cuMemUnmap`, which takes whole mappings only.
    pub(crate) fn unmap(
        &self,
        address: u64,
        length: u64,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let taken: Vec<(u64, (u64, Name))> = {
            let mut pieces = self.pieces();
            let range = address..address.saturating_add(length);
            let taken: Vec<_> =
                pieces.mappings.range(range).map(|(&start, &to)| (start, to)).collect();
            for (start, _) in &taken {
                pieces.mappings.remove(start);
            }
            taken
        };
        let result = call();
        if taken.is_empty() {
            return result;
        }
        let mut pieces = self.pieces();
        if result.is_ok() {
            let freed = pieces.let_go(taken.into_iter().map(|(_, (_, name))| name));
            drop(pieces);
            freed.give_back();
        } else {
            pieces.mappings.extend(taken);
        }
        result
    }

    /// Runs a call that binds memory to a multicast object, at an offset in the object.
    pub(crate) fn bind(
        &self,
        object: u64,
        offset: u64,
        bound: &BindingSource,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let result = call();
        if result.is_ok() {
            let mut pieces = self.pieces();
            let names = match *bound {
                BindingSource::Handle(handle) => pieces.by_handle(handle).into_iter().collect(),
                BindingSource::Mapped(address, length) => pieces.mapped(address, length),
            };
            let device =
                names.first().and_then(|name| pieces.pieces.get(name)).and_then(Piece::device);
            if let Some(object) = pieces.by_handle(object) {
                for &name in &names {
                    pieces.hold(name);
                }
                if let Some(object) = pieces.pieces.get_mut(&object) {
                    object.bindings.push(Binding { device, offset, pieces: names });
                }
            }
        }
        result
    }

    /// Runs `cuMulticastUnbind`, which takes whole bindings of a device's memory.
    pub(crate) fn unbind(
        &self,
        object: u64,
        device: &DeviceMemory,
        offset: u64,
        length: u64,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let end = offset.saturating_add(length);
        let is_meant = |binding: &mut Binding| {
            (offset..end).contains(&binding.offset)
                && binding.device.is_some_and(|of| ptr::eq(of, device))
        };
        let taken: Option<(Name, Vec<Binding>)> = {
            let mut pieces = self.pieces();
            pieces.by_handle(object).and_then(|name| {
                let bindings = &mut pieces.pieces.get_mut(&name)?.bindings;
                Some((name, bindings.extract_if(.., is_meant).collect()))
            })
        };
        let result = call();
        let Some((name, bindings)) = taken else { return result };
        let mut pieces = self.pieces();
        if result.is_ok() {
            let freed = pieces.let_go(bindings.into_iter().flat_map(|binding| binding.pieces));
            drop(pieces);
            freed.give_back();
        } else if let Some(object) = pieces.pieces.get_mut(&name) {
            object.bindings.extend(bindings);
        }
        result
    }

    /// The program has made an array that memory is mapped to: tile by tile, or `at_once`.
    pub(crate) fn sparse_made(&self, device: &DeviceMemory, array: usize, at_once: bool) {
        let tiles = Tiles::new(device.current_context(), at_once);
        self.pieces().sparse.insert(array, tiles);
    }

    /// Runs `cuMemMapArrayAsync`, which changes tiles of sparse arrays.
    pub(crate) fn map_tiles(
        &self,
        changes: impl FnOnce() -> Vec<TileChange>,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let result = call();
        if !result.is_ok() {
            return result;
        }
        let mut pieces = self.pieces();
        let mut gone = Vec::new();
        for TileChange { array, region, handle } in changes() {
            // Memory that is not known here costs nothing, but may replace memory that does.
            let name = handle.and_then(|handle| pieces.by_handle(handle));
            let Some(tiles) = pieces.sparse.get_mut(&array) else { continue };
            let change = tiles.put(region, name);
            for name in change.more {
                pieces.hold(name);
            }
            gone.extend(change.fewer);
        }
        let freed = pieces.let_go(gone);
        drop(pieces);
        freed.give_back();
        result
    }

    /// Runs a call that destroys an array, which may be sparse.
    pub(super) fn destroy_array(&self, array: usize, call: impl FnOnce() -> CuResult) -> CuResult {
        let taken = self.pieces().sparse.remove(&array);
        let result = call();
        let Some(tiles) = taken else { return result };
        let mut pieces = self.pieces();
        if result.is_ok() {
            let freed = pieces.let_go(tiles.into_held());
            drop(pieces);
            freed.give_back();
        } else {
            pieces.sparse.insert(array, tiles);
        }
        result
    }

    /// The program has imported memory of another interface. Its charge is given back when the object and
    /// what is mapped of it are gone.
    pub(super) fn external_imported(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        handle: Handle,
    ) {
        let context = device.current_context();
        let mut pieces = self.pieces();
        let name = pieces.make(Payer::This(device), bytes);
        pieces.holds.insert(handle, Reference { name, context });
    }

    /// Runs a call that maps a part of external memory; `mapped` is the handle that will free that part.
    pub(crate) fn map_external(
        &self,
        external: Handle,
        call: impl FnOnce() -> CuResult,
        mapped: impl FnOnce() -> Handle,
    ) -> CuResult {
        let result = call();
        if result.is_ok() {
            let mut pieces = self.pieces();
            if let Some(&hold) = pieces.holds.get(&external) {
                pieces.hold(hold.name);
                pieces.holds.insert(mapped(), hold);
            }
        }
        result
    }

    /// Runs a call that destroys external memory, or frees a part mapped of it.
    pub(crate) fn free_external(
        &self,
        handle: Handle,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let taken = self.pieces().holds.remove(&handle);
        let result = call();
        let Some(hold) = taken else { return result };
        let mut pieces = self.pieces();
        if result.is_ok() {
            let freed = pieces.let_go([hold.name]);
            drop(pieces);
            freed.give_back();
        } else {
            pieces.holds.insert(handle, hold);
        }
        result
    }

    /// A context has ended, and with it its arrays and its parts of external memory.
    pub(super) fn context_ended(&self, context: usize) {
        let mut pieces = self.pieces();
        let mut gone: Vec<Name> = Vec::new();
        let holds = pieces.holds.extract_if(|_, hold| hold.context == context);
        gone.extend(holds.map(|(_, hold)| hold.name));
        let sparse = pieces.sparse.extract_if(|_, tiles| tiles.context() == context);
        gone.extend(sparse.flat_map(|(_, tiles)| tiles.into_held()));
        let freed = pieces.let_go(gone);
        drop(pieces);
        freed.give_back();
    }
}
