//! Keeps the driver alive under the governor's calls.
//!
//! The governor asks about events from a thread of its own. A context that ends takes its events
//! with it, and a process that exits takes the whole driver: both wait until the governor is out of
//! the driver, and the governor does not go in again.

use crate::per_process::PerProcess;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static PINS: PerProcess<RwLock<()>> = PerProcess::new();
static EXITING: AtomicBool = AtomicBool::new(false);
/// The process whose governors have to be stopped: a forked child has none, and must not wait for a
/// lock that a thread of its parent held.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// In a forked child: the governors stayed with the parent, and with them what they held.
pub(super) fn after_fork() {
    PINS.forget();
}

/// Held by the governor around its driver calls; `None` when the process is about to end.
pub(super) fn pin() -> Option<RwLockReadGuard<'static, ()>> {
    let pin = PINS.get().read().unwrap_or_else(PoisonError::into_inner);
    (!EXITING.load(Ordering::Relaxed)).then_some(pin)
}

/// Waits until no governor is in the driver, and keeps them out while held.
pub(super) fn exclude() -> RwLockWriteGuard<'static, ()> {
    PINS.get().write().unwrap_or_else(PoisonError::into_inner)
}

/// Has the governors stop when the program exits, before the driver's own end: exit handlers run in
/// the opposite order of their registration, and the driver registered its own earlier.
pub(super) fn watch_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    ONCE.call_once(|| {
        // SAFETY: the handler does not unwind.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    // A thread may have been ended in the middle of a call; do not wait for it for ever.
    let mut tries = 0;
    let _alone = loop {
        match PINS.get().try_write() {
            Ok(alone) => break Some(alone),
            Err(_) if tries > 1000 => break None,
            Err(_) => {
                tries += 1;
                super::clock::sleep(100_000);
            }
        }
    };
    EXITING.store(true, Ordering::Relaxed);
    // Destructors that launch work must not wait at a gate that nobody will open.
    if let Some(runtime) = crate::process::existing() {
        for device in runtime.devices() {
            device.gate().stand_open();
            // And nobody will let a stream go that is held back.
            device.gate().lanes().iter().for_each(|lane| lane.let_go());
        }
    }
}
