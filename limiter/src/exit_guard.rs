//! Keeps the driver alive under the calls of the limiter's own threads.
//!
//! These threads query events and memory at any time. A context that ends destroys its events, and a process that exits
//! shuts down the driver. Both wait until the threads have left the driver, and keep them out.

use crate::{clock, driver_calls, own_thread};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::time::Duration;
use std::io;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Interval of the polls for threads to leave the driver.
const STEP_NS: u64 = 100_000;

/// Starts the limiter's own threads, and keeps them out of the driver when it ends.
pub(crate) struct ExitGuard {
    /// The process that this guard belongs to. A child not created by `fork(3)` inherits the guard but none of the
    /// threads; it must not wait for a lock that one of them held.
    process: u32,
    at_exit: extern "C" fn(),
    watches: AtomicBool,
    /// Visits of the governors: one thread for each device with a compute share, each in the driver only briefly.
    pub(crate) governors: Visits,
    /// Visits of the reconciler, which may be in the driver for as long as the device works.
    pub(crate) reconciler: Visits,
}

impl ExitGuard {
    /// `at_exit`: the exit handler, which has to keep the threads out of the driver.
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

    /// Stops the threads when the program exits, before the driver shuts down. Exit handlers run in reverse order of
    /// their registration, and the driver registered its handler earlier.
    fn watch_exit(&self) {
        // Not a `Once`: in a forked child it could be locked by a thread that does not exist there.
        if !self.watches.swap(true, AcqRel) {
            // SAFETY: the handler does not unwind.
            unsafe { libc::atexit(self.at_exit) };
        }
    }

    /// Whether this process started the threads.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// The visits of one kind of thread to the driver.
pub(crate) struct Visits {
    inside: RwLock<()>,
    kept_out: AtomicBool,
}

impl Visits {
    pub(crate) const fn new() -> Self {
        Self { inside: RwLock::new(()), kept_out: AtomicBool::new(false) }
    }

    /// Guard for a thread's driver calls. When the process is about to end, the thread sleeps here for good.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        if let Some(inside) = self.try_enter() {
            return inside;
        }
        loop {
            clock::sleep_for(Duration::from_secs(3600));
        }
    }

    /// Like [`Visits::enter`]; `None` when the process is about to end.
    pub(crate) fn try_enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        (!self.kept_out.load(Relaxed)).then_some(inside)
    }

    /// Waits until these threads have left the driver, and keeps them out while the guard is held.
    pub(crate) fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.inside.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the threads out for good. Waits at most `longest` for those inside, because a thread may have been killed
    /// in the middle of a call.
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
