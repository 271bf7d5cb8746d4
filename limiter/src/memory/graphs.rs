//! Memory of graphs' allocation nodes (`cuGraphAddMemAllocNode`).
//!
//! The driver assigns a node's address when the node is added, and backs it with memory when the executable graph is
//! instantiated, uploaded or launched. The memory comes from one pool per device, which keeps what graphs have freed
//! until it is trimmed. The charge is the pool's `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`. Before a launch,
//! [`graph_launch`](super::graph_launch) reserves the most that it may add.
//!
//! Executable graphs that do not run at the same time may share memory. So a launch adds at most its own allocations,
//! and at most what all launched graphs would have if they shared nothing.

use super::device::DeviceMemory;
use super::graph_nodes::Need;
use super::holes;
use super::reservation::Reservation;
use crate::driver_calls::{self, undisturbing};
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use driver::cuda::{self, CuResult, GRAPH_RESERVED_CURRENT, GRAPH_USED_CURRENT, GraphExec};
use session::layout::MemoryKind;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An executable graph with allocation nodes on a device that has a ledger.
pub(super) struct Executable {
    /// The context at whose end the executable graph ends.
    pub(super) context: usize,
    pub(super) needs: Vec<Need>,
    /// Whether memory may back its allocations.
    pub(super) launched: bool,
}

/// A device's pool for graphs.
struct GraphPool {
    device: &'static DeviceMemory,
    charged: u64,
    /// Number of the query that gave `charged`; the answer to an older query must not replace it.
    asked: u64,
    /// Bytes that destroyed executable graphs may have left allocated.
    left_behind: u64,
    /// Launches in progress that count on the pool's memory.
    launches: u32,
}

#[derive(Default)]
struct Known {
    executables: HashMap<usize, Executable>,
    pools: HashMap<cuda::Device, GraphPool>,
}

impl Known {
    fn leave_behind(&mut self, executable: &Executable) {
        if !executable.launched {
            return;
        }
        for need in &executable.needs {
            if let Some(pool) = self.pools.get_mut(&need.ordinal) {
                pool.left_behind = pool.left_behind.saturating_add(grains(need.bytes));
            }
        }
    }

    /// The most bytes by which the pool may grow when an executable graph gets its memory.
    fn growth(&self, exec: usize, need: &Need) -> u64 {
        let others = self.executables.iter().filter(|&(&other, of)| of.launched && other != exec);
        let of_others = others
            .flat_map(|(_, executable)| &executable.needs)
            .filter(|other| other.ordinal == need.ordinal)
            .fold(0_u64, |sum, other| sum.saturating_add(grains(other.bytes)));
        let (charged, left_behind) =
            self.pools.get(&need.ordinal).map_or((0, 0), |pool| (pool.charged, pool.left_behind));
        let most = of_others.saturating_add(left_behind).saturating_add(grains(need.bytes));
        grains(most.saturating_sub(charged)).min(grains(need.bytes))
    }
}

/// Rounds up to whole chunks of a pool.
fn grains(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(holes::CHUNK).unwrap_or(u64::MAX)
}

/// Reads a `CU_GRAPH_MEM_ATTR_*` of the device's graph pool, in bytes.
fn attribute(ordinal: cuda::Device, attribute: u32) -> Option<u64> {
    let mut value = 0_u64;
    undisturbing(|| driver_calls::graph_mem_attribute(ordinal, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// Bytes that the device's graph pool has reserved, and how many of them are in use.
fn figures(ordinal: cuda::Device) -> Option<(u64, u64)> {
    attribute(ordinal, GRAPH_RESERVED_CURRENT).zip(attribute(ordinal, GRAPH_USED_CURRENT))
}

/// Whether the graph pool has enough unused memory, in whole chunks, for an executable graph.
pub(super) fn has_idle(need: &Need) -> bool {
    let idle = figures(need.ordinal).map_or(0, |(reserved, used)| reserved.saturating_sub(used));
    idle >= grains(need.bytes)
}

/// The executable graphs with allocation nodes, and the devices' graph pools.
#[derive(Default)]
pub(crate) struct Graphs {
    known: Mutex<Known>,
    /// Length of `Known::executables`, readable without the lock.
    executables: AtomicUsize,
    /// Number of queries to the driver so far.
    questions: AtomicU64,
}

impl Graphs {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no executable graph has allocation nodes.
    pub(super) fn is_empty(&self) -> bool {
        self.executables.load(Ordering::Relaxed) == 0
    }

    /// Records an executable graph.
    pub(super) fn insert(&self, exec: usize, executable: Executable) {
        let mut known = self.known();
        known.executables.insert(exec, executable);
        self.count(&known);
    }

    /// Forgets an executable graph.
    pub(super) fn remove(&self, exec: usize) {
        let mut known = self.known();
        known.executables.remove(&exec);
        self.count(&known);
    }

    fn count(&self, known: &Known) {
        self.executables.store(known.executables.len(), Ordering::Relaxed);
    }

    /// The needs of an executable graph; `None` if it has no allocation nodes.
    pub(super) fn needs(&self, exec: usize) -> Option<Vec<Need>> {
        self.known().executables.get(&exec).map(|of| of.needs.clone())
    }

    /// The charge, in bytes, of the pool from which an executable graph allocates.
    pub(super) fn charged(&self, need: &Need) -> u64 {
        self.known().pools.get(&need.ordinal).map_or(0, |of| of.charged)
    }

    /// Registers a device's pool; returns by how many bytes it may grow for a graph that is not registered yet.
    pub(super) fn open_pool(&self, need: &Need) -> u64 {
        let mut known = self.known();
        let fresh =
            || GraphPool { device: need.device, charged: 0, asked: 0, left_behind: 0, launches: 0 };
        known.pools.entry(need.ordinal).or_insert_with(fresh);
        known.growth(0, need)
    }

    /// Counts a launch. Returns the most bytes by which the pool may grow, and whether no other launch is in progress.
    pub(super) fn begin(&self, exec: usize, need: &Need) -> (u64, bool) {
        let mut known = self.known();
        let growth = known.growth(exec, need);
        // From here on, other launches take this graph into account.
        if let Some(executable) = known.executables.get_mut(&exec) {
            executable.launched = true;
        }
        let Some(pool) = known.pools.get_mut(&need.ordinal) else { return (growth, true) };
        pool.launches += 1;
        (growth, pool.launches == 1)
    }

    /// Ends the count of a launch that is over, or was not made.
    pub(super) fn end(&self, need: &Need) {
        if let Some(pool) = self.known().pools.get_mut(&need.ordinal) {
            pool.launches = pool.launches.saturating_sub(1);
        }
    }

    /// Sets the charge of a device's graph pool to the driver's figure, and releases the reservation of the call just
    /// made.
    pub(super) fn settle(&self, ordinal: cuda::Device, in_flight: Option<Reservation>) {
        let asked = self.questions.fetch_add(1, Ordering::Relaxed) + 1;
        let figures = figures(ordinal);
        let mut known = self.known();
        let Some(pool) = known.pools.get_mut(&ordinal) else { return };
        let ledger = pool.device.ledger;
        let slot = ledger.membership().slot();
        let Some(mut opened) = ledger.open() else { return };
        let mut released = in_flight.map_or(Ok(()), |bytes| bytes.give_back_in(&mut opened));
        if let Some((reserved, used)) = figures.filter(|_| asked > pool.asked) {
            // Bytes in use have memory, or are about to get it.
            let holds = reserved.max(used);
            released = released.and(opened.release(slot, MemoryKind::Graph, pool.charged));
            opened.charge(slot, MemoryKind::Graph, holds);
            pool.charged = holds;
            pool.asked = asked;
            pool.left_behind = pool.left_behind.min(used);
        }
        drop(opened);
        drop(known);
        ledger.say_if_damaged(released);
    }

    /// Updates the charge of a device's graph pool; `trim`: after the pool has given back unused memory.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        let ordinals: Vec<cuda::Device> = {
            let known = self.known();
            let of_device = known.pools.iter().filter(|(_, of)| ptr::eq(of.device, device));
            of_device.filter(|(_, of)| of.charged > 0).map(|(&ordinal, _)| ordinal).collect()
        };
        for ordinal in ordinals {
            if trim && self.known().pools.get(&ordinal).is_some_and(|of| of.launches == 0) {
                let _ = undisturbing(|| driver_calls::graph_mem_trim(ordinal));
            }
            self.settle(ordinal, None);
        }
    }

    /// Runs `cuDeviceGraphMemTrim`.
    pub(crate) fn trim(&self, ordinal: cuda::Device, call: impl FnOnce() -> CuResult) -> CuResult {
        let result = call();
        self.settle(ordinal, None);
        result
    }

    /// Runs `cuGraphExecDestroy`. Memory that the graph did not free stays allocated.
    pub(crate) fn destroy(&self, exec: GraphExec, call: impl FnOnce() -> CuResult) -> CuResult {
        if self.is_empty() {
            return call();
        }
        // Forget the graph before the call: another thread may get the same handle.
        let exec = exec as usize;
        let taken = {
            let mut known = self.known();
            let taken = known.executables.remove(&exec);
            if let Some(executable) = &taken {
                known.leave_behind(executable);
            }
            self.count(&known);
            taken
        };
        let result = call();
        let Some(executable) = taken else { return result };
        if !result.is_ok() {
            self.insert(exec, executable);
            return result;
        }
        for need in &executable.needs {
            self.settle(need.ordinal, None);
        }
        result
    }

    /// Forgets the executable graphs of a context that has ended.
    pub(super) fn context_ended(&self, device: &DeviceMemory, context: usize) {
        {
            let mut known = self.known();
            let ended: Vec<(usize, Executable)> =
                known.executables.extract_if(|_, of| of.context == context).collect();
            ended.iter().for_each(|(_, executable)| known.leave_behind(executable));
            self.count(&known);
        }
        self.refresh(device, true);
    }
}
