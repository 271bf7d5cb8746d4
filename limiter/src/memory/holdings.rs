//! What is charged by what the driver says, or as long as anything refers to it: not by one call that allocates and
//! one that frees.

use super::device::DeviceMemory;
use super::graphs::Graphs;
use super::imports::Imports;
use super::physical::Physical;
use super::pools::Pools;
use core::sync::atomic::Ordering::Relaxed;
use session::layout::MemoryKind;

/// See the module.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) physical: Physical,
    pub(crate) imports: Imports,
}

impl Holdings {
    /// Brings the charges of a device's pools and graphs up to date; `trim`: after they have given back what they do
    /// not use.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        self.pools.refresh(device, trim);
        self.graphs.refresh(device, trim);
    }

    /// Bytes of a device's memory that this process has imported, as far as that is known: their exporter is
    /// charged for them.
    pub(super) fn imported_bytes(&self, device: &DeviceMemory) -> u64 {
        self.physical.imported_bytes(device).saturating_add(self.imports.bytes(device))
    }

    /// The same as far as the others are charged for it. What came as a handle lives on when its exporter has
    /// released it, and is its importer's then: the others pay for no more than they are charged.
    pub(super) fn bytes_of_others(&self, device: &DeviceMemory) -> u64 {
        let by_handle = self.physical.imported_bytes(device).min(data_of_others(device));
        by_handle.saturating_add(self.imports.bytes(device))
    }

    /// A context is gone, and with it what was made in it.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        self.physical.context_ended(context);
        self.imports.context_ended(context);
        self.graphs.context_ended(device, context);
    }
}

/// What the other processes of the session are charged for, of the kind that can be exported.
fn data_of_others(device: &DeviceMemory) -> u64 {
    let Some(page) = device.ledger.page() else { return 0 };
    let (own, seated) = (device.ledger.membership().slot(), page.high_water.load(Relaxed) as usize);
    let others = page.slots.iter().take(seated).enumerate().filter(|&(slot, _)| slot != own);
    let data = others.map(|(_, slot)| slot.bytes[MemoryKind::Data as usize].load(Relaxed));
    data.fold(0, u64::saturating_add)
}
