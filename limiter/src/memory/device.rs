//! A device's memory, as this process keeps account of it.

use super::bell::Bell;
use super::changes::Changes;
use super::contexts::Contexts;
use super::tracker::{Allocation, Handle, Tracker};
use crate::device_list::DeviceList;
use crate::driver_calls;
use crate::ledger::DeviceLedger;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use driver::cuda;
use session::layout::MemoryKind;

/// What the devices of a process have in common.
#[derive(Default)]
pub(crate) struct Shared {
    /// Calls that allocate or free.
    pub(crate) changes: Changes,
    /// Wakes the reconciler.
    pub(crate) bell: Bell,
    /// This process's id as NVML knows it; zero while that is not known.
    pub(super) own_pid: AtomicU32,
}

/// One device's memory.
pub(crate) struct DeviceMemory {
    pub(crate) ledger: &'static DeviceLedger,
    pub(super) shared: &'static Shared,
    /// What this process has taken.
    pub(super) tracker: Tracker,
    /// The contexts among it.
    pub(crate) contexts: Contexts,
    /// Bytes of the images that the driver has been given, for their code to be placed.
    pub(super) images: AtomicU64,
    /// What was left of the limit when this process last asked NVML.
    pub(super) left_when_seen: AtomicU64,
    /// As the program counts; negative while that is not known.
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
            ordinal: AtomicI32::new(-1),
        }
    }

    /// The program calls it so.
    pub(crate) fn is_called(&self, ordinal: cuda::Device) {
        self.ordinal.store(ordinal, Relaxed);
    }

    /// Whether the calling thread's context is on this device.
    pub(super) fn is_current(&self) -> bool {
        let mut ordinal = 0;
        driver_calls::ctx_get_device(&raw mut ordinal).is_ok()
            && ordinal == self.ordinal.load(Relaxed)
    }

    /// The context that the calling thread's allocations on the device end with, as a number; zero for none.
    pub(super) fn current_context(&self) -> usize {
        self.contexts.owner(driver_calls::current_context())
    }

    /// Remembers an allocation. What had its handle before is gone, however that came about.
    pub(super) fn remember(&self, handle: Handle, allocation: Allocation) {
        if let Some(gone) = self.tracker.insert(handle, allocation) {
            self.ledger.release(gone.kind, gone.bytes);
        }
    }
}

/// The memory of all devices that are accounted and have been used.
pub(crate) struct Devices(DeviceList<DeviceMemory>);

impl Devices {
    pub(super) const fn new() -> Self {
        Self(DeviceList::new())
    }

    /// One more. By one thread at a time.
    pub(super) fn push(&self, device: &'static DeviceMemory) {
        self.0.push(device);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'static DeviceMemory> {
        self.0.iter()
    }

    /// Finds an allocation on whatever device it is, and forgets it. A free may come from a thread with
    /// another device's context, or with none.
    pub(super) fn take(&self, handle: Handle) -> Option<(&'static DeviceMemory, Allocation)> {
        self.iter().find_map(|device| Some((device, device.tracker.take(handle)?)))
    }

    /// What an allocation was charged as, on whatever device it is.
    pub(super) fn kind_of(&self, handle: Handle) -> Option<MemoryKind> {
        self.iter().find_map(|device| device.tracker.kind_of(handle))
    }
}
