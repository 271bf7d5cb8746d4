//! This process's contexts on a device, with the bytes that each took.

use crate::driver_calls;
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The contexts of one device, by handle.
#[derive(Default)]
pub(crate) struct Contexts {
    bytes: Mutex<HashMap<usize, u64>>,
    /// Green contexts; they live in the primary context.
    green: Mutex<HashMap<usize, Green>>,
    primary: AtomicUsize,
    /// References to the primary context that the program holds.
    references: AtomicUsize,
    /// Held while a context is created or destroyed: two contexts created at once cannot be told apart when they are
    /// measured. The driver serialises these calls anyway.
    changing: Mutex<()>,
}

#[derive(Clone, Copy)]
pub(crate) struct Green {
    ordinal: cuda::Device,
    pub(super) bytes: u64,
    /// The context from `cuCtxFromGreenCtx`; 0 if unknown.
    pub(crate) context: usize,
}

impl Green {
    fn new(ordinal: cuda::Device, bytes: u64, handle: usize) -> Self {
        let mut context = ptr::null_mut();
        let found =
            driver_calls::ctx_from_green(&raw mut context, handle as cuda::GreenContext).is_ok();
        let context = if found { context as usize } else { 0 };
        Self { ordinal, bytes, context }
    }
}

impl Contexts {
    fn green(&self) -> MutexGuard<'_, HashMap<usize, Green>> {
        self.green.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's ordinal if the green context `handle` is on it.
    pub(crate) fn ordinal_of_green(&self, handle: usize) -> Option<cuda::Device> {
        self.green().get(&handle).map(|green| green.ordinal)
    }

    /// Records a green context that took `bytes`.
    pub(crate) fn green_made(&self, ordinal: cuda::Device, handle: usize, bytes: u64) {
        let made = Green::new(ordinal, bytes, handle);
        self.green().insert(handle, made);
    }

    /// The context from `cuCtxFromGreenCtx` for a green context; 0 if unknown.
    pub(crate) fn context_of_green(&self, handle: usize) -> usize {
        self.green().get(&handle).map_or(0, |green| green.context)
    }

    /// Removes a green context that is about to end. Must be called under [`Contexts::change`].
    pub(crate) fn green_ends(&self, handle: usize) -> Option<Green> {
        self.green().remove(&handle)
    }

    /// Restores a green context whose destruction failed.
    pub(crate) fn green_stays(&self, handle: usize, green: Green) {
        self.green().insert(handle, green);
    }

    /// The contexts that end with the primary one: the primary context itself and those of its green contexts.
    pub(crate) fn of_primary(&self) -> Vec<usize> {
        let green = self.green();
        green.values().map(|green| green.context).chain([self.primary()]).collect()
    }

    /// The context at whose end allocations made in `current` are freed. A context that no context call created belongs
    /// to a green context; its allocations end with the primary context.
    pub(crate) fn owner(&self, current: usize) -> usize {
        match self.primary() {
            primary if current == primary => current,
            primary if current == 0 || primary == 0 || self.has(current) => current,
            primary => primary,
        }
    }

    /// Forgets the primary context; returns the green contexts that ended with it.
    pub(super) fn primary_ended(&self) -> Vec<Green> {
        self.references.store(0, Relaxed);
        self.primary.store(0, Relaxed);
        self.green().drain().map(|(_, green)| green).collect()
    }

    pub(super) fn take(&self, handle: usize) -> Option<u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    pub(super) fn set(&self, handle: usize, bytes: u64) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, bytes);
    }

    /// Whether the context `handle` is on this device.
    pub(crate) fn has(&self, handle: usize) -> bool {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&handle)
    }

    /// Handle of the primary context; 0 if this process has not seen one.
    pub(crate) fn primary(&self) -> usize {
        self.primary.load(Relaxed)
    }

    /// Keeps other threads from creating or destroying contexts. The only lock held across driver calls; nothing else
    /// is waited for under it.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the program's reference to the primary context.
    pub(crate) fn primary_retained(&self, handle: usize) {
        self.references.fetch_add(1, Relaxed);
        self.primary.store(handle, Relaxed);
    }

    /// Whether the program's next release of the primary context is its last.
    pub(crate) fn last_reference(&self) -> bool {
        self.references.load(Relaxed) <= 1
    }

    /// Drops one of the program's references to the primary context, which still exists.
    pub(crate) fn primary_released(&self) {
        let _ = self.references.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }
}
