//! Device memory limits. The hooks call [`Memory`], which reserves bytes in the session's ledger, runs the driver call,
//! and records what was allocated, so that a later free can release it.
//!
//! Each layer uses only those below it:
//!
//! * [`Memory`]: the interface for the hooks
//! * `allocate`, `pool_allocation`, `graph_launch`, `context_life`, `images`, `overcommit`: calls that allocate and
//!   free; `reconciler`: the thread that charges changes which no call reports
//! * `reserve`: whether an allocation fits; `reconcile`, `quick_check`, `estimate`: memory that the driver has taken by
//!   itself; `clearance`: allocations that need no check
//! * `holdings` (`pools`, `graphs`, `physical`): memory that is not one allocation with one handle
//! * `reservation`, `headroom`, `refusal`, `seen`: one device's bytes in the session's ledger and in NVML
//! * `device` (`tracker`, `contexts`, `changes`, `bell`): the state of one device
//! * `size`, `holes`, `tiles`, `pieces`, `marks`, `graph_nodes`: sizes, address ranges, and other processes' references

mod allocate;
mod bell;
mod changes;
mod clearance;
mod context_life;
mod contexts;
mod device;
mod estimate;
mod graph_launch;
mod graph_nodes;
mod graphs;
mod headroom;
mod holdings;
mod holes;
mod images;
pub(crate) mod marks;
pub(crate) mod overcommit;
pub(crate) mod physical;
mod pieces;
mod pool_allocation;
mod pools;
mod quick_check;
mod reconcile;
mod reconciler;
mod refusal;
mod reservation;
mod reserve;
pub(crate) mod seen;
mod size;
pub(crate) mod tiles;
mod tracker;
mod waiting;

pub(crate) use contexts::Green;
pub(crate) use device::DeviceMemory;
pub(crate) use images::Loaded;
pub(crate) use reserve::Much;
pub(crate) use size::{array_bytes, linear_bytes, mipmapped_bytes};
pub(crate) use tracker::Handle;

use crate::driver_calls;
use crate::exit_guard::ExitGuard;
use crate::ledger::{DeviceLedger, is_overcommitted_by};
use changes::Changing;
use core::sync::atomic::Ordering::Relaxed;
use device::{Devices, Shared};
use driver::cuda::{self, CuResult, DevicePtr, Graph, GraphExec, MemoryPool, Stream};
use graphs::Graphs;
use images::Images;
use overcommit::HostPlaced;
use physical::Physical;
use pools::Pools;
use reconciler::{Charge, Started};
use reserve::Reserve;
use session::layout::{MemoryKind, NO_LIMIT};

/// This process's record of the memory of all devices.
pub(crate) struct Memory {
    shared: Shared,
    devices: Devices,
    reserve: Reserve,
    images: Images,
    placed: HostPlaced,
    reconciler: Started,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            shared: Shared::default(),
            devices: Devices::new(),
            reserve: Reserve::default(),
            images: Images::default(),
            placed: HostPlaced::default(),
            reconciler: Started::default(),
        }
    }

    /// Counts an allocating or freeing call until the guard is dropped.
    #[inline]
    pub(crate) fn changes(&self) -> Changing<'_> {
        self.shared.changes.begin()
    }

    /// Creates the record of a device that has just got a ledger.
    pub(crate) fn device(&'static self, ledger: &'static DeviceLedger) -> DeviceMemory {
        DeviceMemory::new(ledger, &self.shared)
    }

    /// Adds a device that is in use. Must not be called by two threads at once.
    pub(crate) fn add(&self, device: &'static DeviceMemory) {
        self.devices.push(device);
    }

    pub(crate) const fn pools(&self) -> &Pools {
        &self.reserve.holdings.pools
    }

    pub(crate) const fn graphs(&self) -> &Graphs {
        &self.reserve.holdings.graphs
    }

    pub(crate) const fn physical(&self) -> &Physical {
        &self.reserve.holdings.physical
    }

    pub(crate) const fn images(&self) -> &Images {
        &self.images
    }

    /// See [`allocate::allocate`].
    pub(crate) fn allocate(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> Handle,
    ) -> CuResult {
        allocate::allocate(&self.reserve, device, kind, bytes, call, handle)
    }

    /// See [`allocate::allocate_anywhere`].
    pub(crate) fn allocate_anywhere(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        on_host: impl FnOnce() -> CuResult,
        address: impl Fn() -> DevicePtr,
    ) -> CuResult {
        let (reserve, placed) = (&self.reserve, &self.placed);
        allocate::allocate_anywhere(reserve, placed, device, bytes, call, on_host, address)
    }

    /// See [`pool_allocation::allocate`].
    pub(crate) fn allocate_from_pool(
        &self,
        device: &'static DeviceMemory,
        of: (MemoryPool, Stream),
        bytes: u64,
        call: impl Fn() -> CuResult,
        address: impl Fn() -> u64,
        undo: impl Fn(),
    ) -> CuResult {
        pool_allocation::allocate(&self.reserve, device, of, bytes, call, address, undo)
    }

    /// See [`allocate::place_on_host`].
    pub(crate) fn place_on_host(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        address: impl Fn() -> DevicePtr,
    ) -> CuResult {
        allocate::place_on_host(&self.placed, device, bytes, call, address)
    }

    /// See [`allocate::create_physical`].
    pub(crate) fn create_physical(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> u64,
    ) -> CuResult {
        allocate::create_physical(&self.reserve, device, bytes, call, handle)
    }

    /// See [`allocate::import_external`].
    pub(crate) fn import_external(
        &self,
        device: &'static DeviceMemory,
        bytes: u64,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> Handle,
    ) -> CuResult {
        allocate::import_external(&self.reserve, device, bytes, call, handle)
    }

    /// See [`allocate::free`].
    pub(crate) fn free(&self, handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
        allocate::free(&self.devices, &self.reserve.holdings, handle, call)
    }

    /// Tracks the memory around `address` by the mark of the IPC handle that the program has got for it.
    pub(crate) fn ipc_exported(&self, address: DevicePtr, handle: &[u8; 64]) {
        let (mut base, mut bytes) = (0, 0);
        if !driver_calls::mem_address_range(&raw mut base, &raw mut bytes, address).is_ok() {
            base = address;
        }
        let freed_by = Handle::Address(base);
        let taken = match self.devices.take(freed_by) {
            Some((device, other)) if other.kind != MemoryKind::Data => {
                device.remember(freed_by, other);
                None
            }
            taken => taken,
        };
        self.physical().ipc_exported(taken, freed_by, handle);
    }

    /// Frees memory on the host in stream order; `None` if the address is not such memory.
    pub(crate) fn free_host_placed(&self, address: DevicePtr, stream: Stream) -> Option<CuResult> {
        self.placed.free_async(&self.devices, address, stream)
    }

    /// Whether an address is in managed memory that was placed on the host.
    pub(crate) fn is_on_host(&self, address: DevicePtr) -> bool {
        self.placed.is_on_host(&self.devices, address)
    }

    /// See [`graph_launch::instantiate`].
    pub(crate) fn instantiate(
        &self,
        graph: Graph,
        limited: impl Fn(cuda::Device) -> Option<&'static DeviceMemory>,
        exec: impl Fn() -> GraphExec,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        graph_launch::instantiate(&self.reserve, graph, limited, exec, call)
    }

    /// See [`graph_launch::launch`].
    pub(crate) fn launch_graph(
        &self,
        exec: GraphExec,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        graph_launch::launch(&self.reserve, exec, call)
    }

    /// See [`Images::load`].
    pub(crate) fn load(
        &self,
        device: &'static DeviceMemory,
        image: (u64, Loaded),
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> usize,
    ) -> CuResult {
        let make_room = || self.reserve.holdings.refresh(device, true);
        self.images.load(device, image, make_room, call, handle)
    }

    /// Reacts to a call that may have made the driver take memory of the current device by itself. Does nothing for a
    /// device without a ledger.
    pub(crate) fn driver_may_have_taken(&self, current: Option<&'static DeviceMemory>, much: Much) {
        if let Some(device) = current {
            self.reserve.driver_may_have_taken(device, much);
        }
        self.ring();
    }

    /// Requests a reconciliation soon.
    pub(crate) fn ring(&self) {
        self.shared.bell.ring();
    }

    /// Starts the reconciler thread unless it is running.
    pub(crate) fn start_reconciler(&'static self, guard: &'static ExitGuard) {
        let charge = Charge {
            bell: &self.shared.bell,
            devices: &self.devices,
            holdings: &self.reserve.holdings,
            looks: &self.reserve.looks,
            placed: &self.placed,
        };
        self.reconciler.start(guard, charge);
    }

    /// Must be called before [`Contexts::change`](contexts::Contexts::change). Loading a library under that lock could
    /// deadlock: another thread may hold the loader's lock and wait for this one.
    pub(crate) fn prepare_for_contexts(&self) {
        driver_calls::nvml::load();
    }

    /// See [`context_life::create`].
    pub(crate) fn create_context(
        &self,
        device: &'static DeviceMemory,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> usize,
        undo: impl FnOnce(),
    ) -> CuResult {
        context_life::create(&self.reserve, device, call, handle, undo)
    }

    /// See [`context_life::create_green`].
    pub(crate) fn create_green_context(
        &self,
        device: &'static DeviceMemory,
        ordinal: cuda::Device,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> usize,
        undo: impl FnOnce(),
    ) -> CuResult {
        context_life::create_green(&self.reserve, device, ordinal, call, handle, undo)
    }

    /// Carries out pending frees of a context that is about to end.
    pub(crate) fn context_ends(&self, handle: usize) {
        self.placed.context_ends(handle);
    }

    /// See [`context_life::ended`].
    pub(crate) fn context_ended(&self, device: &'static DeviceMemory, handle: usize) {
        context_life::ended(&self.reserve.holdings, &self.images, device, handle);
    }

    /// See [`context_life::green_ended`].
    pub(crate) fn green_context_ended(&self, device: &DeviceMemory, green: Green) {
        context_life::green_ended(device, green);
    }

    /// See [`context_life::primary_ended`].
    pub(crate) fn primary_context_ended(&self, device: &'static DeviceMemory, handle: usize) {
        context_life::primary_ended(&self.reserve.holdings, &self.images, device, handle);
    }

    /// The session's limit and use, to report in place of the driver's figures; `None` without a memory limit.
    pub(crate) fn view(
        &self,
        device: &DeviceMemory,
        real_free: u64,
        real_total: u64,
    ) -> Option<ReportedMemory> {
        // Memory of dead processes, and memory that pools have given back, counts as free.
        let page = device.ledger.page_reaped()?;
        let limit = page.memory_limit.load(Relaxed);
        if limit == NO_LIMIT {
            return None;
        }
        self.reserve.holdings.refresh(device, false);
        let used = page.used.load(Relaxed);
        if is_overcommitted_by(page) {
            // An allocation that does not fit on the device is placed on the host.
            let free = limit.saturating_sub(used);
            return Some(ReportedMemory { total: limit, free, used: used.min(limit) });
        }
        let total = limit.min(real_total);
        let free = total.saturating_sub(used).min(real_free);
        Some(ReportedMemory { total, free, used: used.min(total) })
    }
}

/// A device's memory as reported to a program, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedMemory {
    /// The limit, or the device's size if that is smaller.
    pub(crate) total: u64,
    /// Free within both the limit and the device.
    pub(crate) free: u64,
    /// Used by the session.
    pub(crate) used: u64,
}
