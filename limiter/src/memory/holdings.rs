//! Memory without one call that allocates it and one that frees it. It is charged by the driver's figure, or
//! for as long as anything refers to it.

use super::device::DeviceMemory;
use super::graphs::Graphs;
use super::imports::Imports;
use super::physical::Physical;
use super::pools::Pools;
use core::sync::atomic::Ordering::Relaxed;
use session::layout::MemoryKind;

/// The pools, graphs, physical memory and imports of this process.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) physical: Physical,
    pub(crate) imports: Imports,
}

impl Holdings {
    /// Brings the charges of a device's pools and graphs up to date; `trim`: they give back unused memory
    /// first.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        self.pools.refresh(device, trim);
        self.graphs.refresh(device, trim);
    }

    /// Bytes of a device's memory that this process has imported, as far as known. Their exporter is charged
    /// for them.
    pub(super) fn imported_bytes(&self, device: &DeviceMemory) -> u64 {
        self.physical.imported_bytes(device).saturating_add(self.imports.bytes(device))
    }

    /// The same, but at most what the other processes are charged for. Memory imported by handle outlives its
    /// release by the exporter; then it belongs to the importer.
    pub(super) fn bytes_of_others(&self, device: &DeviceMemory) -> u64 {
        let by_handle = self.physical.imported_bytes(device).min(data_of_others(device));
        by_handle.saturating_add(self.imports.bytes(device))
    }

    /// A context has ended, and with it what was made in it.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        self.physical.context_ended(context);
        self.imports.context_ended(context);
        self.graphs.context_ended(device, context);
    }
}

/// What the other processes of the session are charged for memory of kinds that can be exported.
fn data_of_others(device: &DeviceMemory) -> u64 {
    let Some(page) = device.ledger.page() else { return 0 };
    let (own, seated) = (device.ledger.membership().slot(), page.high_water.load(Relaxed) as usize);
    let others = page.slots.iter().take(seated).enumerate().filter(|&(slot, _)| slot != own);
    let data = others.map(|(_, slot)| slot.bytes[MemoryKind::Data as usize].load(Relaxed));
    data.fold(0, u64::saturating_add)
}
