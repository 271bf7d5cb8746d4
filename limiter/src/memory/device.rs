//! One device's memory as this process accounts for it, and the list of all such devices.

use super::bell::Bell;
use super::changes::Changes;
use super::clearance::Clearance;
use super::contexts::Contexts;
use super::tracker::{Allocation, Handle, Tracker};
use crate::device_list::DeviceList;
use crate::driver_calls;
use crate::ledger::DeviceLedger;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use driver::cuda;
use session::layout::MemoryKind;

/// State that all devices of a process share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) changes: Changes,
    pub(crate) bell: Bell,
    /// This process's id in NVML's lists; zero while unknown.
    pub(super) own_pid: AtomicU32,
}

pub(crate) struct DeviceMemory {
    pub(crate) ledger: &'static DeviceLedger,
    pub(super) shared: &'static Shared,
    pub(super) tracker: Tracker,
    pub(crate) contexts: Contexts,
    /// Bytes of the images that were given to the driver and may yet be placed as code.
    pub(super) images: AtomicU64,
    /// Bytes left of the limit at this process's last reconciliation.
    pub(super) left_when_seen: AtomicU64,
    /// Charges that need no check close to the limit.
    pub(super) clearance: Clearance,
    /// The program's ordinal of the device; negative: unknown.
    ordinal: AtomicI32,
}

impl DeviceMemory {
    pub(super) fn new(ledger: &'static DeviceLedger, shared: &'static Shared) -> Self {
        Self {
            ledger,
            shared,
            tracker: Tracker::default(),
            contexts: Contexts::default(),
            images: AtomicU64::new(0),
            left_when_seen: AtomicU64::new(0),
            clearance: Clearance::default(),
            ordinal: AtomicI32::new(-1),
        }
    }

    /// Sets the ordinal by which the program calls the device.
    pub(crate) fn is_called(&self, ordinal: cuda::Device) {
        self.ordinal.store(ordinal, Relaxed);
    }

    /// Whether the calling thread's context is on this device.
    pub(super) fn is_current(&self) -> bool {
        let mut ordinal = 0;
        driver_calls::ctx_get_device(&raw mut ordinal).is_ok()
            && ordinal == self.ordinal.load(Relaxed)
    }

    /// The context with which the calling thread's allocations on the device end; 0: none.
    pub(super) fn current_context(&self) -> usize {
        self.contexts.owner(driver_calls::current_context())
    }

    /// Records an allocation. An earlier allocation with this handle no longer exists, so its bytes are released.
    pub(super) fn remember(&self, handle: Handle, allocation: Allocation) {
        if let Some(gone) = self.tracker.insert(handle, allocation) {
            self.ledger.release(gone.kind, gone.bytes);
        }
    }
}

/// The memory of every device that has a ledger and has been used.
pub(crate) struct Devices(DeviceList<DeviceMemory>);

impl Devices {
    pub(super) const fn new() -> Self {
        Self(DeviceList::new())
    }

    /// Adds a device. Must not be called by two threads at once.
    pub(super) fn push(&self, device: &'static DeviceMemory) {
        self.0.push(device);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'static DeviceMemory> {
        self.0.iter()
    }

    /// Removes an allocation's record, whatever its device: a free may come from a thread with another device's
    /// context, or with none.
    pub(super) fn take(&self, handle: Handle) -> Option<(&'static DeviceMemory, Allocation)> {
        self.iter().find_map(|device| Some((device, device.tracker.take(handle)?)))
    }

    /// The kind as which an allocation is charged, whatever its device.
    pub(super) fn kind_of(&self, handle: Handle) -> Option<MemoryKind> {
        self.iter().find_map(|device| device.tracker.kind_of(handle))
    }
}
