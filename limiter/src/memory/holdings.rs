//! Memory that is not bound to one allocating and one freeing call: pools, graphs and physical memory. It is charged by
//! the driver's figure, or for as long as anything refers to it.

use super::device::DeviceMemory;
use super::graphs::Graphs;
use super::physical::Physical;
use super::pools::Pools;

/// This process's pools, graphs and physical memory.
#[derive(Default)]
pub(crate) struct Holdings {
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) physical: Physical,
}

impl Holdings {
    /// Updates the charges of a device's pools, graphs and exported memory; `trim`: after pools and graphs have given
    /// back unused memory.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        self.pools.refresh(device, trim);
        self.graphs.refresh(device, trim);
        self.physical.sweep();
    }

    /// Forgets the physical memory and graphs of a context that has ended.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        self.physical.context_ended(context);
        self.graphs.context_ended(device, context);
    }
}
