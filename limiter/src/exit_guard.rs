//! Keeps the driver alive under the calls of the limiter's own threads.
//!
//! These threads query events and memory at any time. A context that ends destroys its events, and a process
//! that exits destroys the whole driver. Both wait until the threads have left the driver, and the threads do
//! not enter it again.

use crate::{clock, driver_calls, own_thread};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::time::Duration;
use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// A step of waiting for threads to leave the driver.
const STEP_NS: u64 = 100_000;

/// Keeps the limiter's own threads out of the driver when it ends.
pub(crate) struct ExitGuard {
    /// The process that this guard belongs to. A child that was not made by `fork(3)` inherits the guard but
    /// none of the threads. It must not wait for a lock that one of them held.
    process: u32,
    at_exit: extern "C" fn(),
    watches: AtomicBool,
    /// One thread for each device whose time is limited. Each is in the driver only for moments.
    pub(crate) governors: Visits,
    /// The reconciler may be in the driver for as long as the device works.
    pub(crate) reconciler: Visits,
}

impl ExitGuard {
    /// `at_exit` has to keep the threads out.
    pub(crate) fn new(at_exit: extern "C" fn()) -> Self {
        Self {
            process: std::process::id(),
            at_exit,
            watches: AtomicBool::new(false),
            governors: Visits::new(),
            reconciler: Visits::new(),
        }
    }

    /// Starts a thread that will call the driver. Must be called from a call into the driver, without a lock.
    pub(crate) fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.watch_exit();
        driver_calls::library::keep();
        own_thread::start(name, body)
    }

    /// Stops the threads when the program exits, before the driver ends itself. Exit handlers run in the
    /// opposite order of their registration, and the driver registered its handler earlier.
    fn watch_exit(&self) {
        // Not a `Once`: a forked child may find it locked by a thread that the child does not have.
        if !self.watches.swap(true, AcqRel) {
            // SAFETY: the handler does not unwind.
            unsafe { libc::atexit(self.at_exit) };
        }
    }

    /// Whether the threads are of this process.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// The visits that threads of one kind make to the driver.
pub(crate) struct Visits {
    inside: RwLock<()>,
    kept_out: AtomicBool,
}

impl Visits {
    pub(crate) const fn new() -> Self {
        Self { inside: RwLock::new(()), kept_out: AtomicBool::new(false) }
    }

    /// Such a thread holds this around its driver calls. When the process is about to end, the thread has no
    /// more work to do and sleeps here.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        if let Some(inside) = self.try_enter() {
            return inside;
        }
        loop {
            clock::sleep_for(Duration::from_secs(3600));
        }
    }

    /// The same; `None` when the process is about to end.
    pub(crate) fn try_enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        (!self.kept_out.load(Relaxed)).then_some(inside)
    }

    /// Waits until no such thread is in the driver, and keeps them out while the guard is held.
    pub(crate) fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.inside.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the threads out for good. Waits for those inside, but at most `longest`: a thread may have been
    /// ended in the middle of a call.
    pub(crate) fn keep_out(&self, longest: Duration) {
        let mut tries = longest.as_nanos() / u128::from(STEP_NS);
        let _alone = loop {
            match self.inside.try_write() {
                Ok(alone) => break Some(alone),
                Err(TryLockError::Poisoned(alone)) => break Some(alone.into_inner()),
                Err(TryLockError::WouldBlock) if tries == 0 => break None,
                Err(TryLockError::WouldBlock) => {
                    tries -= 1;
                    clock::sleep(STEP_NS);
                }
            }
        };
        self.kept_out.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_once_kept_out() {
        let visits = Visits::new();
        assert!(visits.try_enter().is_some());
        visits.keep_out(Duration::from_secs(1));
        assert!(visits.try_enter().is_none());
    }

    #[test]
    fn a_thread_that_stays_inside_is_not_waited_for_for_ever() {
        let visits = Visits::new();
        let inside = visits.try_enter();
        visits.keep_out(Duration::from_millis(1));
        assert!(inside.is_some() && visits.try_enter().is_none());
    }

    #[test]
    fn threads_wait_while_they_are_excluded() {
        let visits = Visits::new();
        std::thread::scope(|scope| {
            let alone = visits.exclude();
            let entered = scope.spawn(|| visits.try_enter().is_some());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!entered.is_finished());
            drop(alone);
            assert!(entered.join().unwrap());
        });
    }
}
