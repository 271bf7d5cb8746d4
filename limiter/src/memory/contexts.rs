//! The contexts of this process on a device, and what each of them takes of its memory.

use crate::driver_calls;
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By handle.
#[derive(Default)]
pub(crate) struct Contexts {
    bytes: Mutex<HashMap<usize, u64>>,
    /// Green contexts of the device, with what each took. They live in the primary context.
    green: Mutex<HashMap<usize, Green>>,
    primary: AtomicUsize,
    /// References to the primary context that the program holds.
    references: AtomicUsize,
    /// Held while a context is made or may end: two contexts made at once could not be told apart when they
    /// are measured. The driver serialises these calls in any case.
    changing: Mutex<()>,
}

/// A green context.
#[derive(Clone, Copy)]
pub(crate) struct Green {
    ordinal: cuda::Device,
    pub(super) bytes: u64,
    /// The context that stands for it; zero if unknown.
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

    /// The device's ordinal, if a green context is on it.
    pub(crate) fn ordinal_of_green(&self, handle: usize) -> Option<cuda::Device> {
        self.green().get(&handle).map(|green| green.ordinal)
    }

    /// A green context has been made and took `bytes`.
    pub(crate) fn green_made(&self, ordinal: cuda::Device, handle: usize, bytes: u64) {
        let made = Green::new(ordinal, bytes, handle);
        self.green().insert(handle, made);
    }

    /// The context that stands for a green one; zero if unknown.
    pub(crate) fn context_of_green(&self, handle: usize) -> usize {
        self.green().get(&handle).map_or(0, |green| green.context)
    }

    /// A green context is about to end. Must be called under [`Contexts::change`].
    pub(crate) fn green_ends(&self, handle: usize) -> Option<Green> {
        self.green().remove(&handle)
    }

    /// The green context did not end.
    pub(crate) fn green_stays(&self, handle: usize, green: Green) {
        self.green().insert(handle, green);
    }

    /// The contexts that end with the primary one: itself, and those that stand for green contexts.
    pub(crate) fn of_primary(&self) -> Vec<usize> {
        let green = self.green();
        green.values().map(|green| green.context).chain([self.primary()]).collect()
    }

    /// The context that allocations made in `current` end with. A context that was not made by a context call
    /// stands for a green one; its allocations end with the primary context.
    pub(crate) fn owner(&self, current: usize) -> usize {
        match self.primary() {
            primary if current == primary => current,
            primary if current == 0 || primary == 0 || self.has(current) => current,
            primary => primary,
        }
    }

    /// The primary context has ended; returns the green contexts that ended with it.
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

    /// Whether a context is on this device.
    pub(crate) fn has(&self, handle: usize) -> bool {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&handle)
    }

    /// Handle of the primary context, zero if this process has not seen one.
    pub(crate) fn primary(&self) -> usize {
        self.primary.load(Relaxed)
    }

    /// Keeps other threads from making or ending contexts. This is the one lock that is held across driver
    /// calls; nothing else is waited for under it.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has retained the primary context.
    pub(crate) fn primary_retained(&self, handle: usize) {
        self.references.fetch_add(1, Relaxed);
        self.primary.store(handle, Relaxed);
    }

    /// Whether the program's next release of the primary context is its last.
    pub(crate) fn last_reference(&self) -> bool {
        self.references.load(Relaxed) <= 1
    }

    /// The program has released the primary context, which is still there.
    pub(crate) fn primary_released(&self) {
        let _ = self.references.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }
}
