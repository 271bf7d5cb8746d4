//! Pieces of physical memory, and what keeps each of them alive.

use super::device::DeviceMemory;
use super::marks::Mark;
use super::tiles::Tiles;
use super::tracker::Handle;
use core::{mem, ptr};
use session::layout::MemoryKind;
use std::collections::{BTreeMap, HashMap};

/// Identifies a piece of memory, or a multicast object. Never used twice.
pub(super) type Name = u64;

/// Who pays for a piece of memory.
#[derive(Clone, Copy)]
pub(super) enum Payer {
    /// This process: the session's ledger has the bytes.
    This(&'static DeviceMemory),
    /// The process that exported it, or another one that has imported it.
    Exporter(&'static DeviceMemory),
    /// Nobody: a multicast object has no memory of its own.
    Nobody,
}

pub(super) struct Piece {
    pub(super) payer: Payer,
    pub(super) bytes: u64,
    /// The number of references that keep it alive.
    pub(super) holders: u32,
    /// The memory bound to it, if it is a multicast object.
    pub(super) bindings: Vec<Binding>,
    /// If other processes may refer to it. Who pays for it has one more reference, until none of them does.
    pub(super) mark: Option<Mark>,
    /// Whether this process had let go of it, or has never made it: then NVML shows it for this process only
    /// while nothing else refers to it.
    is_orphan: bool,
}

impl Piece {
    /// Whether nothing refers to it any more, in any process.
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

    /// The device that it is on, if it has memory.
    pub(super) fn device(&self) -> Option<&'static DeviceMemory> {
        match self.payer {
            Payer::This(device) | Payer::Exporter(device) => Some(device),
            Payer::Nobody => None,
        }
    }
}

/// Memory bound to a part of a multicast object.
pub(super) struct Binding {
    pub(super) device: Option<&'static DeviceMemory>,
    pub(super) offset: u64,
    pub(super) pieces: Vec<Name>,
}

/// A reference, other than a handle of `cuMemCreate`, that keeps a piece alive until a context ends.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    pub(super) name: Name,
    pub(super) context: usize,
    /// How often it was opened.
    pub(super) opens: u32,
}

#[derive(Default)]
pub(super) struct Pieces {
    last: Name,
    pub(super) pieces: HashMap<Name, Piece>,
    /// By handle: name and references.
    pub(super) handles: HashMap<u64, (Name, u32)>,
    /// By address: length and name.
    pub(super) mappings: BTreeMap<u64, (u64, Name)>,
    /// By sparse array or mipmapped array.
    pub(super) sparse: HashMap<usize, Tiles<Name>>,
    /// External memory, and what is mapped of it; IPC memory, in its exporter too; imported pools.
    pub(super) holds: HashMap<Handle, Reference>,
    /// Those with a mark.
    marked: Vec<Name>,
}

/// Bytes to be given back, by device.
#[derive(Default)]
#[must_use]
pub(super) struct Freed(Vec<(&'static DeviceMemory, u64)>);

impl Freed {
    pub(super) fn give_back(self) {
        for (device, bytes) in self.0 {
            device.ledger.release(MemoryKind::Data, bytes);
        }
    }
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

    /// Removes one reference for each of `names`; forgets pieces without references.
    pub(super) fn let_go(&mut self, mut names: Vec<Name>) -> Freed {
        let mut freed = Freed::default();
        while let Some(name) = names.pop() {
            let Some(piece) = self.pieces.get_mut(&name) else { continue };
            piece.holders = piece.holders.saturating_sub(1);
            if piece.holders > 0 && !piece.has_lapsed() {
                continue;
            }
            if let Some(piece) = self.pieces.remove(&name) {
                if let Payer::This(device) = piece.payer {
                    freed.0.push((device, piece.bytes));
                }
                if let Some(mark) = piece.mark {
                    mark.end();
                }
                names.extend(piece.bindings.into_iter().flat_map(|binding| binding.pieces));
            }
        }
        freed
    }

    /// A piece is exported. `mark` gets its bytes and its present mark, and marks what may now be imported;
    /// `None`: that cannot be marked.
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

    /// The program has got a reference to memory that was exported, by another process or by this one.
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

    /// Memory has outlived what it was charged for, because of what was exported.
    pub(super) fn outlives(&mut self, device: &'static DeviceMemory, bytes: u64, mark: Mark) {
        let name = self.make(Payer::This(device), bytes);
        mark.leave();
        if let Some(piece) = self.pieces.get_mut(&name) {
            (piece.mark, piece.is_orphan) = (Some(mark), true);
        }
        self.marked.push(name);
    }

    /// What has this mark could not be imported.
    pub(super) fn not_imported(&self, mark: Mark) {
        if self.with_mark(mark).is_none() {
            mark.leave();
        }
    }

    pub(super) fn with_mark(&self, mark: Mark) -> Option<Name> {
        let has = |name: &Name| self.pieces.get(name).is_some_and(|of| of.mark == Some(mark));
        self.marked.iter().copied().find(has)
    }

    /// Gives back what nobody refers to any more, and takes over what nobody pays for.
    pub(super) fn sweep(&mut self) -> Freed {
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
                // The process that paid has ended.
                let slot = device.ledger.membership().slot();
                opened.charge(slot, MemoryKind::Data, piece.bytes);
                piece.payer = Payer::This(device);
                (piece.holders, piece.is_orphan) = (piece.holders + 1, true);
            }
            true
        });
        self.marked = marked;
        self.let_go(gone)
    }

    /// Bytes of a device's memory that this process is charged for and NVML does not show for it; and those
    /// that NVML shows for it and another process is charged for.
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

    /// A call has given the program a reference to a piece.
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
