//! Physical memory that lives as long as anything refers to it.
//!
//! What `cuMemCreate` takes lives until every reference to the handle is released and every mapping,
//! tile of a sparse array and binding to a multicast object is gone ("cuMemRelease", CUDA driver API,
//! Virtual Memory Management), in whatever order. A handle's number may come again while the memory that
//! it stood for is still mapped, so memory is known by a name of its own here. Imported memory has a
//! name, too, and nobody is charged for it: its exporter is. Memory of other interfaces that is imported
//! has no exporter who would be charged, and lives as long as its object and what is mapped of it.

use super::charge::{current_context, refused, release, reserve};
use super::tiles::{Region, Tiles};
use super::tracker::Handle;
use crate::device::Device;
use crate::per_process::PerProcess;
use core::ptr;
use driver::cuda::CuResult;
use session::layout::Kind;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names a piece of memory, or a multicast object. Never used twice.
type Name = u64;

/// Who pays for a piece of memory.
#[derive(Clone, Copy)]
enum Payer {
    /// This process: the session's book has the bytes.
    This(&'static Device),
    /// The process that exported it.
    Exporter(&'static Device),
    /// Nobody: a multicast object has no memory of its own.
    Nobody,
}

struct Piece {
    payer: Payer,
    bytes: u64,
    /// How many things keep it alive.
    holders: u32,
    /// What is bound to it, if it is a multicast object.
    bindings: Vec<Binding>,
}

/// Memory bound to a part of a multicast object.
struct Binding {
    device: Option<&'static Device>,
    offset: u64,
    pieces: Vec<Name>,
}

/// Something else than handles of `cuMemCreate` that keeps a piece alive until a context ends.
#[derive(Clone, Copy)]
struct Hold {
    name: Name,
    context: usize,
}

#[derive(Default)]
struct Pieces {
    last: Name,
    pieces: HashMap<Name, Piece>,
    /// By handle: name and references.
    handles: HashMap<u64, (Name, u32)>,
    /// By address: length and name.
    mappings: BTreeMap<u64, (u64, Name)>,
    /// By sparse array or mipmapped array.
    sparse: HashMap<usize, Tiles<Name>>,
    /// External memory, and what is mapped of it.
    holds: HashMap<Handle, Hold>,
}

static PIECES: PerProcess<Mutex<Pieces>> = PerProcess::new();

/// In a forked child: the parent's memory is not the child's.
pub(super) fn after_fork() {
    PIECES.forget();
}

fn pieces() -> MutexGuard<'static, Pieces> {
    PIECES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes to be given back, by device.
#[derive(Default)]
#[must_use]
struct Freed(Vec<(&'static Device, u64)>);

impl Freed {
    fn give_back(self) {
        for (device, bytes) in self.0 {
            release(device, Kind::Data, bytes);
        }
    }
}

impl Pieces {
    fn make(&mut self, payer: Payer, bytes: u64) -> Name {
        self.last += 1;
        let piece = Piece { payer, bytes, holders: 1, bindings: Vec::new() };
        self.pieces.insert(self.last, piece);
        self.last
    }

    fn hold(&mut self, name: Name) {
        if let Some(piece) = self.pieces.get_mut(&name) {
            piece.holders += 1;
        }
    }

    /// One holder less for each of `names`; forgets what nothing holds any more.
    fn let_go(&mut self, names: impl IntoIterator<Item = Name>) -> Freed {
        let mut freed = Freed::default();
        let mut names: Vec<Name> = names.into_iter().collect();
        while let Some(name) = names.pop() {
            let Some(piece) = self.pieces.get_mut(&name) else { continue };
            piece.holders = piece.holders.saturating_sub(1);
            if piece.holders > 0 {
                continue;
            }
            if let Some(piece) = self.pieces.remove(&name) {
                if let Payer::This(device) = piece.payer {
                    freed.0.push((device, piece.bytes));
                }
                names.extend(piece.bindings.into_iter().flat_map(|binding| binding.pieces));
            }
        }
        freed
    }

    fn by_handle(&self, handle: u64) -> Option<Name> {
        self.handles.get(&handle).map(|&(name, _)| name)
    }

    /// A call has given the program a reference to a piece.
    fn refer(&mut self, handle: u64, name: Name) {
        self.hold(name);
        self.handles.entry(handle).or_insert((name, 0)).1 += 1;
    }

    /// The pieces mapped in a range of addresses.
    fn mapped(&self, address: u64, length: u64) -> Vec<Name> {
        let end = address.saturating_add(length.max(1));
        let before = self.mappings.range(..address).next_back();
        before
            .into_iter()
            .chain(self.mappings.range(address..end))
            .filter(|&(&start, &(length, _))| start.saturating_add(length) > address)
            .map(|(_, &(_, name))| name)
            .collect()
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
        let name = pieces.make(Payer::This(device), bytes);
        let gone = pieces.handles.insert(handle(), (name, 1));
        // What had the number before has been released, however that came about.
        let freed =
            pieces
                .let_go(gone.into_iter().flat_map(|(name, references)| {
                    core::iter::repeat_n(name, references as usize)
                }));
        drop(pieces);
        freed.give_back();
    } else {
        release(device, Kind::Data, bytes);
    }
    result
}

/// The program has imported memory of a device that another process has exported, or its own.
pub(crate) fn imported(device: &'static Device, handle: u64) {
    let mut pieces = pieces();
    match pieces.by_handle(handle) {
        // One more reference to what the program has.
        Some(name) => pieces.refer(handle, name),
        None => {
            let name = pieces.make(Payer::Exporter(device), 0);
            pieces.handles.insert(handle, (name, 1));
        }
    }
}

/// Bytes of a device's memory that this process has imported by handle, as far as its mappings tell.
pub(super) fn imported_bytes(device: &Device) -> u64 {
    let pieces = pieces();
    let imported = pieces
        .pieces
        .values()
        .filter(|piece| matches!(piece.payer, Payer::Exporter(of) if ptr::eq(of, device)));
    imported.map(|piece| piece.bytes).fold(0, u64::saturating_add)
}

/// The program has made or imported a multicast object.
pub(crate) fn multicast(handle: u64) {
    let mut pieces = pieces();
    match pieces.by_handle(handle) {
        Some(name) => pieces.refer(handle, name),
        None => {
            let name = pieces.make(Payer::Nobody, 0);
            pieces.handles.insert(handle, (name, 1));
        }
    }
}

/// Runs `cuMemRelease`. The record changes first: once the driver has released it, the handle's number
/// may be another thread's.
pub(crate) fn release_handle(handle: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let name = {
        let mut pieces = pieces();
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
        let mut pieces = pieces();
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
    address: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> u64,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        if let Some(&name) = pieces.mapped(address, 1).first() {
            pieces.refer(handle(), name);
        }
    }
    result
}

/// Runs `cuMemMap`.
pub(crate) fn map(
    address: u64,
    offset: u64,
    length: u64,
    handle: u64,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
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
pub(crate) fn unmap(address: u64, length: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let taken: Vec<(u64, (u64, Name))> = {
        let mut pieces = pieces();
        let range = address..address.saturating_add(length);
        let taken: Vec<_> = pieces.mappings.range(range).map(|(&start, &to)| (start, to)).collect();
        for (start, _) in &taken {
            pieces.mappings.remove(start);
        }
        taken
    };
    let result = call();
    if taken.is_empty() {
        return result;
    }
    let mut pieces = pieces();
    if result.is_ok() {
        let freed = pieces.let_go(taken.into_iter().map(|(_, (_, name))| name));
        drop(pieces);
        freed.give_back();
    } else {
        pieces.mappings.extend(taken);
    }
    result
}

/// What is bound to a multicast object.
pub(crate) enum Bound {
    /// Memory by its handle.
    Handle(u64),
    /// Memory by address and length.
    Mapped(u64, u64),
}

/// Runs a call that binds memory to a multicast object, at an offset in that.
pub(crate) fn bind(
    object: u64,
    offset: u64,
    bound: &Bound,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        let names = match *bound {
            Bound::Handle(handle) => pieces.by_handle(handle).into_iter().collect(),
            Bound::Mapped(address, length) => pieces.mapped(address, length),
        };
        let device = names.first().and_then(|name| pieces.pieces.get(name)).and_then(device_of);
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

fn device_of(piece: &Piece) -> Option<&'static Device> {
    match piece.payer {
        Payer::This(device) | Payer::Exporter(device) => Some(device),
        Payer::Nobody => None,
    }
}

/// Runs `cuMulticastUnbind`, which takes whole bindings of a device's memory.
pub(crate) fn unbind(
    object: u64,
    device: &Device,
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
        let mut pieces = pieces();
        pieces.by_handle(object).and_then(|name| {
            let bindings = &mut pieces.pieces.get_mut(&name)?.bindings;
            Some((name, bindings.extract_if(.., is_meant).collect()))
        })
    };
    let result = call();
    let Some((name, bindings)) = taken else { return result };
    let mut pieces = pieces();
    if result.is_ok() {
        let freed = pieces.let_go(bindings.into_iter().flat_map(|binding| binding.pieces));
        drop(pieces);
        freed.give_back();
    } else if let Some(object) = pieces.pieces.get_mut(&name) {
        object.bindings.extend(bindings);
    }
    result
}

/// A change of a sparse array's tiles.
pub(crate) struct TileChange {
    /// The array or mipmapped array.
    pub(crate) array: usize,
    /// Which tiles.
    pub(crate) region: Region,
    /// What is mapped there; `None`: nothing any more.
    pub(crate) handle: Option<u64>,
}

/// The program has made an array that memory is mapped to: tile by tile, or `at_once`.
pub(crate) fn sparse_made(device: &Device, array: usize, at_once: bool) {
    let tiles = Tiles::new(current_context(device), at_once);
    pieces().sparse.insert(array, tiles);
}

/// Runs `cuMemMapArrayAsync`, which changes tiles of sparse arrays.
pub(crate) fn map_tiles(
    changes: impl FnOnce() -> Vec<TileChange>,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = call();
    if !result.is_ok() {
        return result;
    }
    let mut pieces = pieces();
    let mut gone = Vec::new();
    for TileChange { array, region, handle } in changes() {
        // Memory that is not known here costs nothing, but may replace what does.
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
pub(super) fn destroy_array(array: usize, call: impl FnOnce() -> CuResult) -> CuResult {
    let taken = pieces().sparse.remove(&array);
    let result = call();
    let Some(tiles) = taken else { return result };
    let mut pieces = pieces();
    if result.is_ok() {
        let freed = pieces.let_go(tiles.into_held());
        drop(pieces);
        freed.give_back();
    } else {
        pieces.sparse.insert(array, tiles);
    }
    result
}

/// Runs `cuImportExternalMemory` for `bytes` of a device; `handle` is read after success.
pub(crate) fn import_external(
    device: &'static Device,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> Handle,
) -> CuResult {
    if !reserve(device, Kind::Data, bytes) {
        return refused(device, bytes);
    }
    let result = call();
    if result.is_ok() {
        let context = current_context(device);
        let mut pieces = pieces();
        let name = pieces.make(Payer::This(device), bytes);
        pieces.holds.insert(handle(), Hold { name, context });
    } else {
        release(device, Kind::Data, bytes);
    }
    result
}

/// Runs a call that maps something of external memory, which is freed by `mapped`.
pub(crate) fn map_external(
    external: Handle,
    call: impl FnOnce() -> CuResult,
    mapped: impl FnOnce() -> Handle,
) -> CuResult {
    let result = call();
    if result.is_ok() {
        let mut pieces = pieces();
        if let Some(&hold) = pieces.holds.get(&external) {
            pieces.hold(hold.name);
            pieces.holds.insert(mapped(), hold);
        }
    }
    result
}

/// Runs a call that destroys external memory, or frees something mapped of it.
pub(crate) fn free_external(handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
    let taken = pieces().holds.remove(&handle);
    let result = call();
    let Some(hold) = taken else { return result };
    let mut pieces = pieces();
    if result.is_ok() {
        let freed = pieces.let_go([hold.name]);
        drop(pieces);
        freed.give_back();
    } else {
        pieces.holds.insert(handle, hold);
    }
    result
}

/// A context is gone, and with it its arrays and what it had of external memory.
pub(super) fn context_ended(context: usize) {
    let mut pieces = pieces();
    let mut gone: Vec<Name> = Vec::new();
    let holds = pieces.holds.extract_if(|_, hold| hold.context == context);
    gone.extend(holds.map(|(_, hold)| hold.name));
    let sparse = pieces.sparse.extract_if(|_, tiles| tiles.context() == context);
    gone.extend(sparse.flat_map(|(_, tiles)| tiles.into_held()));
    let freed = pieces.let_go(gone);
    drop(pieces);
    freed.give_back();
}
