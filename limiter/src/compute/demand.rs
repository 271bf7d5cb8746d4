//! Who wants a gate to be open, and how the governor learns of it.

use crate::own_thread;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use rustix::thread::futex;

/// See the module.
#[derive(Default)]
pub(super) struct Demand {
    /// Number of threads that wait.
    waiting: AtomicU32,
    /// Changes when a thread begins to wait; the governor sleeps on it.
    bell: AtomicU32,
    /// The governor sleeps until somebody wants a lease.
    asleep: AtomicBool,
}

/// A thread waits until this is dropped.
pub(super) struct Waiting<'gate>(&'gate AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Demand {
    /// A thread begins to wait.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.ring();
        Waiting(&self.waiting)
    }

    pub(super) fn has_threads(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Has the governor look around.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 1);
    }

    /// Has the governor see that work is held, if it has nothing to do.
    pub(super) fn ring_for_work(&self) {
        // What was launched is seen by the governor that says that it sleeps, or that is seen here.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// How often the governor has been rung for.
    pub(super) fn rings(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until the governor is rung for once more than `rings` times, unless the gate is wanted already; may wake
    /// early.
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
