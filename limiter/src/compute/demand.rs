//! Counts the threads that wait for a gate to open, and wakes the governor for them and for held work.

use crate::own_thread;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use rustix::thread::futex;

/// The demand for one gate.
#[derive(Default)]
pub(super) struct Demand {
    /// Number of threads that wait.
    waiting: AtomicU32,
    /// Changes when a thread begins to wait; the governor sleeps on it.
    bell: AtomicU32,
    /// Whether the governor sleeps until a lease is wanted.
    asleep: AtomicBool,
}

/// Guard of a waiting thread.
pub(super) struct Waiting<'gate>(&'gate AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Demand {
    /// Counts the calling thread as waiting until the guard is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.ring();
        Waiting(&self.waiting)
    }

    pub(super) fn has_threads(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Wakes the governor.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 1);
    }

    /// Wakes the governor if it is idle, so that it sees held work.
    pub(super) fn ring_for_work(&self) {
        // Pairs with the fence in `sleep_unless`: either the governor sees the launch, or this thread sees it asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// How often the governor was rung for.
    pub(super) fn rings(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until the governor is rung for after `rings` was read, unless the gate is already wanted. May wake early.
    pub(super) fn sleep_unless(&self, is_wanted: impl FnOnce() -> bool, rings: u32) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_wanted() {
            let private = futex::Flags::PRIVATE;
            let _ = own_thread::asleep(|| futex::wait(&self.bell, private, rings, None));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}
