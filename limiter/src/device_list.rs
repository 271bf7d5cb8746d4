//! A list that only grows, and is read without a lock.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Devices that one process can see. The driver itself stops at 64.
pub(crate) const MAX_DEVICES: usize = 64;

/// One item for each device, null after the last.
pub(crate) struct DeviceList<T: 'static>([AtomicPtr<T>; MAX_DEVICES]);

impl<T> DeviceList<T> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES])
    }

    /// Whether there is no space for another item.
    pub(crate) fn is_full(&self) -> bool {
        self.iter().count() == MAX_DEVICES
    }

    /// Adds an item; does nothing if the list is full. One thread at a time may call this.
    pub(crate) fn push(&self, item: &'static T) {
        if let Some(place) = self.0.iter().find(|place| place.load(Ordering::Relaxed).is_null()) {
            place.store(ptr::from_ref(item).cast_mut(), Ordering::Release);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: null, or a reference that lasts.
        self.0.iter().map_while(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
    }
}
