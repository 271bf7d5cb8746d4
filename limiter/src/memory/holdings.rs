//! Memory without one call that allocates it and one that frees it. It is charged by the driver's figure, or
//! for as long as anything refers to it.

use super::device::DeviceMemory;
use super::graphs::Graphs;
use super::physical::Physical;
use super::pools::Pools;

/// The pools, graphs and physical memory of this process.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) physical: Physical,
}

impl Holdings {
    /// Brings the charges of a device's pools, graphs and exported memory up to date; `trim`: pools and graphs
    /// give back unused memory first.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        self.pools.refresh(device, trim);
        self.graphs.refresh(device, trim);
        self.physical.sweep();
    }

    /// A context has ended, and with it what was made in it.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        self.physical.context_ended(context);
        self.graphs.context_ended(device, context);
    }
}
