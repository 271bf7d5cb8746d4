//! Who opens gates is not in the driver while a stream is held or code is loaded.
//!
//! A thread that loads code keeps the driver's lock until no stream is held. So each side says what it is about to do
//! before it looks at the other.

use super::clock;
use super::gate::Gate;
use super::lanes::LaneList;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use driver::cuda::CuResult;

/// Calls that load code.
static LOADING: AtomicU32 = AtomicU32::new(0);

/// Such a call is under way until this is dropped.
struct Loading;

impl Drop for Loading {
    fn drop(&mut self) {
        LOADING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// In a forked child nothing is loaded.
pub(super) fn after_fork() {
    LOADING.store(0, Ordering::Relaxed);
}

/// Runs a call that may load code. Whoever opens gates is not in the driver meanwhile.
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

/// The governor is in the driver until this is dropped.
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
    /// Whether the governor will see that a stream is held back, as the calling thread has just said: it
    /// follows a lease, and is not in the driver, where whoever waits for that stream may be in its way.
    pub(super) fn may_hold_back(&self) -> bool {
        let is_followed = self.lease().is_some() && !self.life.stands_open.load(Ordering::SeqCst);
        is_followed && !self.in_driver.is_now()
    }

    /// Keeps threads from holding a stream back as long as the governor is in the driver; `None`: one of
    /// them does, or a stream is held at the closed gate, or code is being loaded, and the governor has to stay outside.
    pub(super) fn inside(&self, lanes: &LaneList) -> Option<Inside<'_>> {
        let inside = self.in_driver.enter();
        let closed = self.stream_closed_at().is_some();
        let held = || closed && lanes.iter().any(|lane| lane.may_be_held());
        let loads = || self.stream_gate().is_some() && LOADING.load(Ordering::SeqCst) > 0;
        (!loads() && !lanes.hold_back() && !held()).then_some(inside)
    }

    /// Code is about to be loaded, as has been said: waits until the governor is outside of the driver.
    fn see_governor_out(&self) {
        const STEP_NS: u64 = 30_000;
        // A governor that the end of the process keeps out of the driver is not in there.
        while self.is_for_streams() && self.in_driver.is_now() && !self.is_unattended() {
            clock::sleep(STEP_NS);
        }
    }
}
