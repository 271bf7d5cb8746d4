//! State that survives a `fork`.
//!
//! A lock that another thread held at the time of a `fork` stays locked in the child, where that thread does not exist.
//! Remedies: the child forgets the static and makes a new one ([`PerProcess`]), or the lock records the process that
//! holds it ([`Turnstile`]).

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// State for one thread at a time. Other threads are turned away instead of waiting.
pub(crate) struct Turnstile<T> {
    /// The process whose thread is inside; 0: none.
    inside: AtomicU32,
    state: UnsafeCell<T>,
}

// SAFETY: `pass` lets one thread at a time reach the state.
unsafe impl<T: Send> Sync for Turnstile<T> {}

impl<T> Turnstile<T> {
    pub(crate) const fn new(state: T) -> Self {
        Self { inside: AtomicU32::new(0), state: UnsafeCell::new(state) }
    }

    /// Runs `body` on the state, unless a thread is inside.
    pub(crate) fn pass(&self, body: impl FnOnce(&mut T)) {
        let me = std::process::id();
        let inside = self.inside.load(Ordering::Relaxed);
        // A thread of the parent process does not exist here.
        if inside == me
            || self
                .inside
                .compare_exchange(inside, me, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        let _leave = Leave(&self.inside);
        // SAFETY: no other thread is inside until `_leave` is dropped.
        body(unsafe { &mut *self.state.get() });
    }
}

/// Marks the turnstile as free, even after a panic.
struct Leave<'a>(&'a AtomicU32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A value made at its first use.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<T>);

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> &'static T {
        let present = self.0.load(Ordering::Acquire);
        // SAFETY: null, or leaked and never freed.
        if let Some(value) = unsafe { present.as_ref() } {
            return value;
        }
        let made: *mut T = Box::leak(Box::default());
        match self.0.compare_exchange(present, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => unsafe { &*made },
            Err(first) => {
                // SAFETY: no other thread has seen this one; the other thread's value was leaked.
                unsafe {
                    drop(Box::from_raw(made));
                    &*first
                }
            }
        }
    }

    /// Forgets the value, in a forked child.
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}
