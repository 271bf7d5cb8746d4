//! The bookkeeping behind [`Physical`](super::physical::Physical): pieces of physical memory, and the references that
//! keep each of them alive.

use super::device::DeviceMemory;
use super::marks::Mark;
use super::tiles::Tiles;
use super::tracker::Handle;
use core::{mem, ptr};
use session::layout::MemoryKind;
use std::collections::{BTreeMap, HashMap};

/// Identifies a piece of memory or a multicast object; never reused.
pub(super) type Name = u64;

/// Where a piece of memory is charged.
#[derive(Clone, Copy)]
pub(super) enum Payer {
    /// Charged to this process in the session's ledger.
    This(&'static DeviceMemory),
    /// Charged to the process that exported the memory, or to another importer.
    Exporter(&'static DeviceMemory),
    /// Not charged: a multicast object has no memory of its own.
    Nobody,
}

pub(super) struct Piece {
    pub(super) payer: Payer,
    pub(super) bytes: u64,
    /// Number of references that keep the piece alive.
    pub(super) holders: u32,
    /// The memory bound to the piece, if it is a multicast object.
    pub(super) bindings: Vec<Binding>,
    /// The piece's mark, if other processes may refer to it. The charged process holds one more reference until no
    /// other process does.
    pub(super) mark: Option<Mark>,
    /// Whether this process has dropped its own references or never created the memory. NVML then shows the memory for
    /// this process only while nothing else refers to it.
    is_orphan: bool,
}

impl Piece {
    /// Whether no process refers to the piece any more.
    fn has_lapsed(&mut self) -> bool {
        match (self.payer, self.mark) {
            (Payer::This(_) | Payer::Nobody, Some(mark)) if self.holders == 1 => {
                mark.leave();
                self.is_orphan = true;
                !mark.is_held()
            }
            _ => false,
        }
    }

    /// The device of the piece's memory; `None` for a multicast object.
    pub(super) fn device(&self) -> Option<&'static DeviceMemory> {
        match self.payer {
            Payer::This(device) | Payer::Exporter(device) => Some(device),
            Payer::Nobody => None,
        }
    }
}

/// Memory bound to a range of a multicast object.
pub(super) struct Binding {
    pub(super) device: Option<&'static DeviceMemory>,
    pub(super) offset: u64,
    pub(super) pieces: Vec<Name>,
}

/// A reference, other than a `cuMemCreate` handle, that keeps a piece alive until a context ends.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    pub(super) name: Name,
    pub(super) context: usize,
    /// How often the memory was opened.
    pub(super) opens: u32,
}

#[derive(Default)]
pub(super) struct Pieces {
    last: Name,
    pub(super) pieces: HashMap<Name, Piece>,
    /// Name and number of references, by handle.
    pub(super) handles: HashMap<u64, (Name, u32)>,
    /// Length and name, by address.
    pub(super) mappings: BTreeMap<u64, (u64, Name)>,
    /// By handle of the sparse array or mipmapped array.
    pub(super) sparse: HashMap<usize, Tiles<Name>>,
    /// References to external memory and parts mapped from it, IPC memory (also in its exporter), and imported pools.
    pub(super) holds: HashMap<Handle, Reference>,
    /// The pieces that have a mark.
    marked: Vec<Name>,
}

impl Pieces {
    pub(super) fn make(&mut self, payer: Payer, bytes: u64) -> Name {
        self.last += 1;
        let (bindings, mark) = (Vec::new(), None);
        let piece = Piece { payer, bytes, holders: 1, bindings, mark, is_orphan: false };
        self.pieces.insert(self.last, piece);
        self.last
    }

    pub(super) fn hold(&mut self, name: Name) {
        if let Some(piece) = self.pieces.get_mut(&name) {
            piece.holders += 1;
        }
    }

    /// Drops one reference for each entry of `names`. Forgets pieces without references and releases their charge,
    /// before another thread can see that they are gone.
    pub(super) fn let_go(&mut self, mut names: Vec<Name>) {
        while let Some(name) = names.pop() {
            let Some(piece) = self.pieces.get_mut(&name) else { continue };
            piece.holders = piece.holders.saturating_sub(1);
            if piece.holders > 0 && !piece.has_lapsed() {
                continue;
            }
            if let Some(piece) = self.pieces.remove(&name) {
                if let Some(mark) = piece.mark {
                    mark.end();
                }
                if let Payer::This(device) = piece.payer {
                    device.ledger.release(MemoryKind::Data, piece.bytes);
                }
                names.extend(piece.bindings.into_iter().flat_map(|binding| binding.pieces));
            }
        }
    }

    /// Marks a piece for export. `mark` gets the piece's bytes and present mark, and marks the exported handle; `None`
    /// if the handle cannot be marked.
    pub(super) fn export(
        &mut self,
        name: Name,
        mark: impl FnOnce(u64, Option<Mark>) -> Option<Mark>,
    ) {
        let Some(piece) = self.pieces.get_mut(&name) else { return };
        let old = piece.mark;
        if old.is_none() {
            if let Payer::Exporter(_) = piece.payer {
                return;
            }
            piece.holders += 1;
            self.marked.push(name);
        }
        let new = mark(piece.bytes, old);
        if new.is_none() && old.is_some() {
            piece.holders += 1;
        }
        piece.mark = old.or(new).or(Some(Mark::NONE));
    }

    /// Records a reference to memory that another process or this one has exported.
    pub(super) fn import(
        &mut self,
        device: &'static DeviceMemory,
        bytes: u64,
        mark: Option<Mark>,
    ) -> Name {
        let Some(mark) = mark.filter(|mark| mark.refer()) else {
            return self.make(Payer::Exporter(device), bytes);
        };
        if let Some(name) = self.with_mark(mark) {
            self.hold(name);
            return name;
        }
        let name = self.make(Payer::Exporter(device), bytes);
        if let Some(piece) = self.pieces.get_mut(&name) {
            piece.mark = Some(mark);
        }
        self.marked.push(name);
        name
    }

    /// Records memory that outlives the object for which it was charged, because it was exported.
    pub(super) fn outlives(&mut self, device: &'static DeviceMemory, bytes: u64, mark: Mark) {
        let name = self.make(Payer::This(device), bytes);
        mark.leave();
        if let Some(piece) = self.pieces.get_mut(&name) {
            (piece.mark, piece.is_orphan) = (Some(mark), true);
        }
        self.marked.push(name);
    }

    /// Drops the reference of a mark whose memory could not be imported.
    pub(super) fn not_imported(&self, mark: Mark) {
        if self.with_mark(mark).is_none() {
            mark.leave();
        }
    }

    pub(super) fn with_mark(&self, mark: Mark) -> Option<Name> {
        let has = |name: &Name| self.pieces.get(name).is_some_and(|of| of.mark == Some(mark));
        self.marked.iter().copied().find(has)
    }

    /// Drops pieces to which nothing refers any more, and takes over the charge of pieces whose payer has ended.
    pub(super) fn sweep(&mut self) {
        let mut gone = Vec::new();
        let mut marked = mem::take(&mut self.marked);
        marked.retain(|name| {
            let Some(piece) = self.pieces.get_mut(name) else { return false };
            if piece.has_lapsed() {
                gone.push(*name);
            } else if let (Payer::Exporter(device), Some(mark)) = (piece.payer, piece.mark)
                && let Some(mut opened) = device.ledger.open()
                && mark.is_paid_here()
            {
                // The charged process has ended.
                let slot = device.ledger.membership().slot();
                opened.charge(slot, MemoryKind::Data, piece.bytes);
                piece.payer = Payer::This(device);
                (piece.holders, piece.is_orphan) = (piece.holders + 1, true);
            }
            true
        });
        self.marked = marked;
        self.let_go(gone);
    }

    /// Bytes of a device's memory that this process is charged for but NVML shows elsewhere, and bytes that NVML shows
    /// for this process but another one is charged for.
    pub(super) fn shown_otherwise(&self, device: &DeviceMemory) -> (u64, u64) {
        let (mut hidden, mut foreign) = (0, 0);
        for piece in self.marked.iter().filter_map(|name| self.pieces.get(name)) {
            let is_meant = piece.device().is_some_and(|of| ptr::eq(of, device));
            let Some(mark) = piece.mark.filter(|_| is_meant) else { continue };
            match piece.payer {
                Payer::This(_) if piece.is_orphan && (piece.holders == 1 || mark.is_held()) => {
                    hidden += piece.bytes;
                }
                Payer::Exporter(_) if !mark.is_held() => foreign += piece.bytes,
                _ => {}
            }
        }
        (hidden, foreign)
    }

    pub(super) fn by_handle(&self, handle: u64) -> Option<Name> {
        self.handles.get(&handle).map(|&(name, _)| name)
    }

    /// Adds a reference through `handle` to a piece.
    pub(super) fn refer(&mut self, handle: u64, name: Name) {
        self.hold(name);
        self.handles.entry(handle).or_insert((name, 0)).1 += 1;
    }

    /// The pieces mapped in a range of addresses.
    pub(super) fn mapped(&self, address: u64, length: u64) -> Vec<Name> {
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
