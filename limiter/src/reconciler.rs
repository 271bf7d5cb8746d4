//! The reconciler: one thread in a process, for what no call of the program tells of.
//!
//! It starts with the first context on a device that is accounted. It asks the driver and NVML,
//! which may take milliseconds, and holds no lock meanwhile that a call of the program waits for. It
//! does not keep a process from ending: its exit waits a moment for the reconciler to be out of the
//! driver, and does not let it in again.

use crate::clock;
use crate::memory::{oversubscribe, reconcile};
use crate::{driver_calls, own_thread, process, report};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32};
use core::time::Duration;
use rustix::thread::{Timespec, futex};
use std::time::Instant;

/// How often the reconciler looks by itself.
const PERIOD: Duration = Duration::from_secs(1);
/// How often it looks at most when it is rung for, and when it makes sure of what it has seen.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How often it looks whether frees that were put off can be carried out.
const FREES: Duration = Duration::from_millis(5);
/// How long the process's exit waits for the reconciler to leave the driver, in steps of 0.1 ms.
const PATIENCE: u32 = 5000;

/// The bell: nobody needs to be woken, or there is no reconciler; the reconciler is about; it sleeps.
static BELL: AtomicU32 = AtomicU32::new(RUNG);
const RUNG: u32 = 0;
const QUIET: u32 = 1;
const ASLEEP: u32 = 2;

/// Whether this process has a reconciler.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Where the reconciler is.
static WHERE: AtomicU32 = AtomicU32::new(OUTSIDE);
const OUTSIDE: u32 = 0;
const IN_DRIVER: u32 = 1;
const KEPT_OUT: u32 = 2;
/// The process whose reconciler has to be stopped: a forked child has none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// In a forked child: the reconciler stayed with the parent.
pub(crate) fn after_fork() {
    STARTED.store(false, Relaxed);
    BELL.store(RUNG, Relaxed);
    WHERE.store(OUTSIDE, Relaxed);
}

/// Starts the reconciler, unless it runs.
pub(crate) fn start() {
    if STARTED.swap(true, AcqRel) {
        return;
    }
    watch_exit();
    driver_calls::library::keep();
    if let Err(error) = own_thread::start("sluice-keeper", keep) {
        STARTED.store(false, Release);
        report::once(format_args!(
            "the thread that finds out what the driver takes by itself cannot be started: {error}; such memory is not charged"
        ));
    }
}

/// Has the reconciler look soon.
#[inline]
pub(crate) fn ring() {
    if BELL.load(Relaxed) != RUNG && BELL.swap(RUNG, AcqRel) == ASLEEP {
        let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
    }
}

fn keep() {
    // This thread asks and frees while other threads may be capturing.
    in_driver(driver_calls::never_disturb);
    let (mut looked, mut wanted) = (None::<Instant>, false);
    loop {
        wanted |= BELL.swap(QUIET, AcqRel) == RUNG;
        let since = looked.map_or(PERIOD, |looked| looked.elapsed());
        if since >= PERIOD || (wanted && since >= DEBOUNCE) {
            wanted = in_driver(look);
            looked = Some(Instant::now());
        }
        if in_driver(|| oversubscribe::carry_out_frees(0)) {
            std::thread::sleep(FREES);
        } else if wanted {
            std::thread::sleep(DEBOUNCE);
        } else {
            wait();
        }
    }
}

/// Looks at each device. `true`: look again soon.
fn look() -> bool {
    let Some(runtime) = process::existing() else { return false };
    runtime.devices().filter(|device| reconcile(device)).count() > 0
}

/// Sleeps for a period, or until rung for.
fn wait() {
    if BELL.compare_exchange(QUIET, ASLEEP, AcqRel, Acquire).is_ok() {
        let period = Timespec { tv_sec: PERIOD.as_secs() as i64, tv_nsec: 0 };
        let _ = futex::wait(&BELL, futex::Flags::PRIVATE, ASLEEP, Some(&period));
    }
}

/// Runs driver calls, unless the process is about to end; then this thread has nothing more to do.
fn in_driver<R>(calls: impl FnOnce() -> R) -> R {
    if WHERE.compare_exchange(OUTSIDE, IN_DRIVER, SeqCst, SeqCst).is_err() {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    let result = calls();
    let _ = WHERE.compare_exchange(IN_DRIVER, OUTSIDE, SeqCst, SeqCst);
    result
}

/// Exit handlers run in the opposite order of their registration, and the driver registered its own
/// earlier.
fn watch_exit() {
    // Not a `Once`, which a forked child may find taken by a thread that it does not have.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    PROCESS.store(std::process::id(), Relaxed);
    if !WATCHED.swap(true, AcqRel) {
        // SAFETY: the handler does not unwind.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    if PROCESS.load(Relaxed) != std::process::id() || !STARTED.load(Acquire) {
        return;
    }
    let mut tries = 0;
    while WHERE.compare_exchange(OUTSIDE, KEPT_OUT, SeqCst, SeqCst).is_err() && tries < PATIENCE {
        tries += 1;
        clock::sleep(100_000);
    }
    WHERE.store(KEPT_OUT, SeqCst);
}
