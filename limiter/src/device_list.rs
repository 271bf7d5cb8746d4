//! A list of devices that only grows and is read without a lock.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The most devices that one process can use; the driver has the same limit.
pub(crate) const MAX_DEVICES: usize = 64;

/// Pointers to the items, then nulls.
pub(crate) struct DeviceList<T: 'static>([AtomicPtr<T>; MAX_DEVICES]);

impl<T> DeviceList<T> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES])
    }

    /// Whether the list has no space for another item.
    pub(crate) fn is_full(&self) -> bool {
        self.iter().count() == MAX_DEVICES
    }

    /// Adds an item; does nothing if the list is full. Must not be called by two threads at once.
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
