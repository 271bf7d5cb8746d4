//! Keeps the governor out of the driver while a stream is held or code is loaded.
//!
//! A thread that loads code holds the driver's lock until no stream is held. A governor that then entered the driver
//! could not release the stream. So each side announces what it is about to do before it checks the other.

use super::clock;
use super::gate::Gate;
use super::lanes::LaneList;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use driver::cuda::CuResult;

/// Number of calls under way that load code.
static LOADING: AtomicU32 = AtomicU32::new(0);

/// Guard of a call that loads code.
struct Loading;

impl Drop for Loading {
    fn drop(&mut self) {
        LOADING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// In a forked child no code is being loaded.
pub(super) fn after_fork() {
    LOADING.store(0, Ordering::Relaxed);
}

/// Runs a call that may load code, while the governors of `gates` are outside of the driver.
pub(crate) fn load(
    gates: impl Iterator<Item = &'static Gate>,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    LOADING.fetch_add(1, Ordering::SeqCst);
    let _loading = Loading;
    gates.for_each(Gate::see_governor_out);
    call()
}

/// Whether the governor is in the driver, or about to be.
#[derive(Default)]
pub(super) struct InDriver(AtomicBool);

/// Guard of the governor's time in the driver.
pub(super) struct Inside<'gate>(&'gate AtomicBool);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl InDriver {
    fn enter(&self) -> Inside<'_> {
        self.0.store(true, Ordering::SeqCst);
        Inside(&self.0)
    }

    pub(super) fn is_now(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Gate {
    /// Whether the calling thread, which has announced it, may hold a stream: the governor follows a lease, so it will
    /// see the hold, and is outside of the driver, where a thread that waits for the stream could block it.
    pub(super) fn may_hold_back(&self) -> bool {
        let is_followed = self.lease().is_some() && !self.life.stands_open.load(Ordering::SeqCst);
        is_followed && !self.in_driver.is_now()
    }

    /// Lets the governor enter the driver, and keeps threads from holding streams meanwhile. `None`: the governor has
    /// to stay outside, because a stream is held or code is being loaded.
    pub(super) fn inside(&self, lanes: &LaneList) -> Option<Inside<'_>> {
        let inside = self.in_driver.enter();
        let closed = self.stream_closed_at().is_some();
        let held = || closed && lanes.iter().any(|lane| lane.may_be_held());
        let loads = || self.stream_gate().is_some() && LOADING.load(Ordering::SeqCst) > 0;
        (!loads() && !lanes.hold_back() && !held()).then_some(inside)
    }

    /// Waits until the governor is outside of the driver. The caller has announced that it loads code.
    fn see_governor_out(&self) {
        const STEP_NS: u64 = 30_000;
        // At the end of the process the governor is kept out of the driver, so it is not in there.
        while self.is_for_streams() && self.in_driver.is_now() && !self.is_unattended() {
            clock::sleep(STEP_NS);
        }
    }
}
