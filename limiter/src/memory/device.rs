//! A device's memory, as this process accounts for it.

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
    /// Calls that allocate or free.
    pub(crate) changes: Changes,
    /// Wakes the reconciler.
    pub(crate) bell: Bell,
    /// This process's id in NVML's lists; zero while unknown.
    pub(super) own_pid: AtomicU32,
}

/// One device's memory.
pub(crate) struct DeviceMemory {
    pub(crate) ledger: &'static DeviceLedger,
    pub(super) shared: &'static Shared,
    /// This process's allocations.
    pub(super) tracker: Tracker,
    /// This process's contexts.
    pub(crate) contexts: Contexts,
    /// Bytes of the images that the driver has been given and may yet place as code.
    pub(super) images: AtomicU64,
    /// What was left of the limit at this process's last reconciliation.
    pub(super) left_when_seen: AtomicU64,
    /// What needs no check close to the limit.
    pub(super) clearance: Clearance,
    /// The program's ordinal of the device; negative while unknown.
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

    /// The program uses this ordinal for the device.
    pub(crate) fn is_called(&self, ordinal: cuda::Device) {
        self.ordinal.store(ordinal, Relaxed);
    }

    /// Whether the calling thread's context is on this device.
    pub(super) fn is_current(&self) -> bool {
        let mut ordinal = 0;
        driver_calls::ctx_get_device(&raw mut ordinal).is_ok()
            && ordinal == self.ordinal.load(Relaxed)
    }

    /// The context that the calling thread's allocations on the device end with, as a number; zero if there
    /// is none.
    pub(super) fn current_context(&self) -> usize {
        self.contexts.owner(driver_calls::current_context())
    }

    /// Remembers an allocation. If another one had its handle, that one is gone.
    pub(super) fn remember(&self, handle: Handle, allocation: Allocation) {
        if let Some(gone) = self.tracker.insert(handle, allocation) {
            self.ledger.release(gone.kind, gone.bytes);
        }
    }
}

/// The memory of all devices that have a ledger and have been used.
pub(crate) struct Devices(DeviceList<DeviceMemory>);

impl Devices {
    pub(super) const fn new() -> Self {
        Self(DeviceList::new())
    }

    /// Adds a device. One thread at a time may call this.
    pub(super) fn push(&self, device: &'static DeviceMemory) {
        self.0.push(device);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'static DeviceMemory> {
        self.0.iter()
    }

    /// Finds an allocation on any device and forgets it. A free may come from a thread with another device's
    /// context, or with none.
    pub(super) fn take(&self, handle: Handle) -> Option<(&'static DeviceMemory, Allocation)> {
        self.iter().find_map(|device| Some((device, device.tracker.take(handle)?)))
    }

    /// The kind that an allocation was charged as, on any device.
    pub(super) fn kind_of(&self, handle: Handle) -> Option<MemoryKind> {
        self.iter().find_map(|device| device.tracker.kind_of(handle))
    }
}
