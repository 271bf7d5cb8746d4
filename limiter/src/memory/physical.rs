//! Physical memory (`cuMemCreate`, imports): charged for as long as anything refers to it. The virtual memory, sharing
//! and array hooks call this.
//!
//! Memory of `cuMemCreate` lives until every reference to its handle is released and every mapping, tile of a sparse
//! array and multicast binding is gone, in any order ("cuMemRelease", CUDA driver API, Virtual Memory Management). The
//! driver may reuse a handle's number while the old memory is still mapped, so each piece of memory has a unique name
//! here. Exported memory stays charged to its exporter while other processes or descriptors refer to it, as
//! [`marks`](super::marks) tell. Imported memory has a name as well, but no charge while its exporter is charged.
//! Memory imported from graphics interfaces has no exporter in the session; it is charged here until its object and
//! everything mapped from it are gone.

use super::device::DeviceMemory;
use super::marks::Mark;
use super::pieces::{Binding, Name, Payer, Piece, Pieces, Reference};
use super::tiles::{Region, Tiles};
use super::tracker::{Allocation, Handle};
use crate::driver_calls;
use core::ptr;
use driver::cuda::CuResult;
use session::layout::MemoryKind;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The source of a binding to a multicast object.
pub(crate) enum BindingSource {
    /// The handle of memory.
    Handle(u64),
    /// Address and length of mapped memory.
    Mapped(u64, u64),
}

/// One change of a sparse array's tiles.
pub(crate) struct TileChange {
    /// The array or mipmapped array.
    pub(crate) array: usize,
    pub(crate) region: Region,
    /// The memory mapped in `region`; `None` for an unmapping.
    pub(crate) handle: Option<u64>,
}

/// This process's physical memory.
#[derive(Default)]
pub(crate) struct Physical(Mutex<Pieces>);

impl Physical {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records memory of a device from `cuMemCreate`. Its charge is released when nothing refers to the memory.
    pub(super) fn created(&self, device: &'static DeviceMemory, bytes: u64, handle: u64) {
        let mut pieces = self.pieces();
        let name = pieces.make(Payer::This(device), bytes);
        let gone = pieces.handles.insert(handle, (name, 1));
        // Other memory with this number has had its handle released.
        let gone = gone.map_or(Vec::new(), |(name, references)| vec![name; references as usize]);
        pieces.let_go(gone);
    }

    /// Records that the program has exported memory or a multicast object; `descriptor`: `None` for other handle types.
    pub(crate) fn exported(&self, handle: u64, descriptor: Option<RawFd>) {
        let mut pieces = self.pieces();
        if let Some(name) = pieces.by_handle(handle) {
            pieces.export(name, |bytes, old| Mark::put(descriptor?, old, bytes));
        }
    }

    /// Records an IPC handle for the memory that `address` frees. `taken` is the memory's record in the tracker; `None`
    /// if the memory already has an IPC handle.
    pub(super) fn ipc_exported(
        &self,
        taken: Option<(&'static DeviceMemory, Allocation)>,
        address: Handle,
        handle: &[u8; 64],
    ) {
        let mut pieces = self.pieces();
        if let Some((device, Allocation { bytes, context, .. })) = taken {
            let name = pieces.make(Payer::This(device), bytes);
            pieces.holds.insert(address, Reference { name, context, opens: 1 });
        }
        if let Some(&Reference { name, .. }) = pieces.holds.get(&address) {
            let mark = Mark::of_ipc(handle).filter(|mark| mark.is_paid_here());
            pieces.export(name, |_, old| mark.filter(|&mark| old.is_none_or(|old| old == mark)));
        }
    }

    /// Marks a pool that the program has exported; `old` is its present mark. Returns the pool's mark from now on.
    pub(super) fn pool_exported(&self, descriptor: Option<RawFd>, old: Option<Mark>) -> Mark {
        let _alone = self.pieces();
        descriptor.and_then(|descriptor| Mark::put(descriptor, old, 0)).unwrap_or(Mark::NONE)
    }

    /// Charges what is left of an exported pool that has ended as data, if other processes still refer to it.
    pub(super) fn outlives_pool(&self, device: &'static DeviceMemory, bytes: u64, mark: Mark) {
        let mut pieces = self.pieces();
        if mark.is_held()
            && let Some(mut opened) = device.ledger.open()
        {
            opened.charge(device.ledger.membership().slot(), MemoryKind::Data, bytes);
            pieces.outlives(device, bytes, mark);
        } else {
            mark.end();
        }
    }

    /// The mark of a descriptor that the program is about to import.
    pub(crate) fn mark_of(&self, descriptor: RawFd) -> Option<Mark> {
        let _alone = self.pieces();
        Mark::of(descriptor)
    }

    /// The mark of an IPC handle that the program is about to open, if its exporter is charged. Refers to the memory at
    /// once, because its exporter may be about to free it.
    pub(crate) fn mark_of_ipc(&self, handle: &[u8; 64]) -> Option<Mark> {
        let _alone = self.pieces();
        Mark::of_ipc(handle).filter(|mark| mark.is_paid_elsewhere() && mark.refer())
    }

    /// Drops the reference of a mark whose memory could not be imported.
    pub(crate) fn not_imported(&self, mark: Option<Mark>) {
        if let Some(mark) = mark {
            self.pieces().not_imported(mark);
        }
    }

    /// Records an import of a device's memory that another process or this one has exported.
    pub(crate) fn imported(&self, device: &'static DeviceMemory, handle: u64, mark: Option<Mark>) {
        let mut pieces = self.pieces();
        match pieces.by_handle(handle) {
            // One more reference to memory that the program already has.
            Some(name) => pieces.refer(handle, name),
            None => {
                let name = pieces.import(device, mark.map_or(0, Mark::bytes), mark);
                pieces.handles.insert(handle, (name, 1));
            }
        }
    }

    /// Records memory of another process that the program has opened at `address`.
    pub(crate) fn opened(&self, device: &'static DeviceMemory, address: u64, mark: Option<Mark>) {
        let (mut base, mut bytes) = (0, 0);
        let known = driver_calls::mem_address_range(&raw mut base, &raw mut bytes, address).is_ok();
        let bytes = if known { bytes as u64 } else { 0 };
        self.holds(device, Handle::Address(address), bytes, mark);
    }

    /// Records an imported pool.
    pub(crate) fn pool_imported(&self, device: &'static DeviceMemory, pool: usize, mark: Mark) {
        self.holds(device, Handle::Pool(pool), 0, Some(mark));
    }

    fn holds(&self, device: &'static DeviceMemory, handle: Handle, bytes: u64, mark: Option<Mark>) {
        // A pool outlives contexts.
        let context = if let Handle::Pool(_) = handle { 0 } else { device.current_context() };
        let mut pieces = self.pieces();
        if let Some(hold) = pieces.holds.get_mut(&handle) {
            hold.opens += 1;
            return;
        }
        let name = pieces.import(device, bytes, mark);
        pieces.holds.insert(handle, Reference { name, context, opens: 1 });
    }

    /// Releases memory to which no process refers any more, and takes over the charge of memory whose exporter has
    /// ended.
    pub(super) fn sweep(&self) {
        self.pieces().sweep();
    }

    /// See [`Pieces::shown_otherwise`].
    pub(super) fn shown_otherwise(&self, device: &DeviceMemory) -> (u64, u64) {
        self.pieces().shown_otherwise(device)
    }

    /// Records a multicast object that the program has created or imported; it may be one of its own.
    pub(crate) fn multicast(&self, handle: u64, mark: Option<Mark>) {
        let mut pieces = self.pieces();
        let own = mark.and_then(|mark| pieces.with_mark(mark));
        match pieces.by_handle(handle).or(own) {
            Some(name) => pieces.refer(handle, name),
            None => {
                let name = pieces.make(Payer::Nobody, 0);
                pieces.handles.insert(handle, (name, 1));
                if let Some(mark) = mark.filter(|mark| mark.refer()) {
                    pieces.export(name, |_, _| Some(mark));
                }
            }
        }
    }

    /// Runs `cuMemRelease`. The record changes before the call: after the call, another thread may get the same handle.
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
                pieces.let_go(vec![name]);
            } else {
                pieces.handles.entry(handle).or_insert((name, 0)).1 += 1;
            }
        }
        result
    }

    /// Runs `cuMemRetainAllocationHandle` for an address; `handle` is evaluated after success.
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

    /// Runs `cuMemUnmap`, which unmaps whole mappings only.
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
            pieces.let_go(taken.into_iter().map(|(_, (_, name))| name).collect());
        } else {
            pieces.mappings.extend(taken);
        }
        result
    }

    /// Runs a call that binds memory to a multicast object at `offset`.
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

    /// Runs `cuMulticastUnbind`, which unbinds whole bindings of a device's memory.
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
            pieces.let_go(bindings.into_iter().flat_map(|binding| binding.pieces).collect());
        } else if let Some(object) = pieces.pieces.get_mut(&name) {
            object.bindings.extend(bindings);
        }
        result
    }

    /// Records a sparse array, to which memory is mapped tile by tile, or a deferred-mapping array (`at_once`).
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
            // Memory unknown here has no charge, but may replace memory that has.
            let name = handle.and_then(|handle| pieces.by_handle(handle));
            let Some(tiles) = pieces.sparse.get_mut(&array) else { continue };
            let change = tiles.put(region, name);
            for name in change.more {
                pieces.hold(name);
            }
            gone.extend(change.fewer);
        }
        pieces.let_go(gone);
        result
    }

    /// Runs a call that destroys an array; the array may be sparse.
    pub(super) fn destroy_array(&self, array: usize, call: impl FnOnce() -> CuResult) -> CuResult {
        let taken = self.pieces().sparse.remove(&array);
        let result = call();
        let Some(tiles) = taken else { return result };
        let mut pieces = self.pieces();
        if result.is_ok() {
            pieces.let_go(tiles.into_held().collect());
        } else {
            pieces.sparse.insert(array, tiles);
        }
        result
    }

    /// Records memory imported from a graphics interface. Its charge is released when the object and everything mapped
    /// from it are gone.
    pub(super) fn external_imported(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        handle: Handle,
    ) {
        let context = device.current_context();
        let mut pieces = self.pieces();
        let name = pieces.make(Payer::This(device), bytes);
        pieces.holds.insert(handle, Reference { name, context, opens: 1 });
    }

    /// Runs a call that maps a part of external memory; `mapped` returns the handle that frees that part.
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

    /// Runs a call that destroys external memory, frees a mapped part of it, closes IPC memory, or frees memory that
    /// has an IPC handle.
    pub(crate) fn free_external(
        &self,
        handle: Handle,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let taken = {
            let mut pieces = self.pieces();
            let taken = pieces.holds.remove(&handle);
            if let Some(hold) = taken.filter(|hold| hold.opens > 1) {
                pieces.holds.insert(handle, Reference { opens: hold.opens - 1, ..hold });
            }
            taken
        };
        let result = call();
        let Some(hold) = taken else { return result };
        let mut pieces = self.pieces();
        if !result.is_ok() {
            pieces.holds.insert(handle, hold);
        } else if hold.opens == 1 {
            pieces.let_go(vec![hold.name]);
        }
        result
    }

    /// Forgets the arrays and the parts of external memory of a context that has ended.
    pub(super) fn context_ended(&self, context: usize) {
        let mut pieces = self.pieces();
        let mut gone: Vec<Name> = Vec::new();
        let holds = pieces.holds.extract_if(|_, hold| hold.context == context);
        gone.extend(holds.map(|(_, hold)| hold.name));
        let sparse = pieces.sparse.extract_if(|_, tiles| tiles.context() == context);
        gone.extend(sparse.flat_map(|(_, tiles)| tiles.into_held()));
        pieces.let_go(gone);
    }
}
