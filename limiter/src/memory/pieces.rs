//! Pieces of physical memory, and what keeps each of them alive.

use super::device::DeviceMemory;
use super::tiles::Tiles;
use super::tracker::Handle;
use session::layout::MemoryKind;
use std::collections::{BTreeMap, HashMap};

/// Identifies a piece of memory, or a multicast object. Never used twice.
pub(super) type Name = u64;

/// Who pays for a piece of memory.
#[derive(Clone, Copy)]
pub(super) enum Payer {
    /// This process: the session's ledger has the bytes.
    This(&'static DeviceMemory),
    /// The process that exported it.
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
}

impl Piece {
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
    /// External memory, and what is mapped of it.
    pub(super) holds: HashMap<Handle, Reference>,
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
        let piece = Piece { payer, bytes, holders: 1, bindings: Vec::new() };
        self.pieces.insert(self.last, piece);
        self.last
    }

    pub(super) fn hold(&mut self, name: Name) {
        if let Some(piece) = self.pieces.get_mut(&name) {
            piece.holders += 1;
        }
    }

    /// Removes one reference for each of `names`; forgets pieces without references.
    pub(super) fn let_go(&mut self, names: impl IntoIterator<Item = Name>) -> Freed {
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
