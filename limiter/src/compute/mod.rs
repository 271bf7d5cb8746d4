//! Limits a session's GPU time. Launches pass a gate; one governor thread per device obtains leases and opens and
//! closes the gate. The hooks call [`launch()`] and [`passes`].
//!
//! The path of a launch: the thread looks up its lane for the stream, checks that the gate is open and that the lane's
//! batch is not full, and calls the driver. Most launches need nothing more. At the end of a batch the lane records an
//! event. At most as much work is outstanding as the lease has time left, so little is outstanding when the gate
//! closes. Beyond that, and at a closed gate, the thread waits. The device's governor obtains the next lease, from the
//! daemon or from the session's own account, and opens the gate.

#![warn(clippy::too_many_lines)]

mod account;
mod behind;
mod budget;
mod captures;
mod daemon;
mod demand;
mod estimate;
pub(crate) mod fast_path;
mod follow;
mod gate;
mod governor;
mod hold;
mod in_driver;
mod kinds;
mod lane;
mod lanes;
mod launch;
mod looks;
mod presence;
mod sampler;
mod stream_gate;
mod together;
mod unattended;
mod waits;
mod words;
mod work;

pub(crate) use behind::{event_comes_after, no_stream_has_a_gate};
pub(crate) use captures::{capture_begins, capture_ends};
pub(crate) use daemon::Source;
use fast_path::FAST_PATH;
pub(crate) use follow::follow_limits;
pub(crate) use gate::Gate;
pub(crate) use hold::driver_starts;
pub(crate) use in_driver::load;
pub(crate) use unattended::settle;
pub(crate) use waits::{
    comes_from_outside, events_are_the_devices_own, wait_for_event, wait_outside,
};
pub(crate) use words::green_context_is_made;
pub(crate) use work::{Launched, Work};

use crate::clock;
use crate::driver_calls::{self, undisturbing, within};
use crate::exit_guard::Visits;
use crate::verdict::Verdict;
use core::ffi::c_uint;
use core::sync::atomic::{AtomicBool, Ordering};
use driver::cuda::{CAPTURE_STATUS_NONE, CuResult, STREAM_LEGACY, STREAM_PER_THREAD, Stream};

/// Whether this process has ever made a lane. Lanes remain when a limit is removed.
static HAS_LANES: AtomicBool = AtomicBool::new(false);

/// Sets whether launches have to be checked; `None`: not known yet, so the next launch finds out.
pub(crate) fn set_gated(gated: Option<bool>) {
    FAST_PATH.set_gated(gated);
}

/// Like [`set_gated`], with the answer of `ask`. Repeats until the answer is stable, because threads may do this at the
/// same time for different devices.
pub(crate) fn set_gated_by(ask: impl Fn() -> Option<bool>) {
    let mut gated = ask();
    loop {
        set_gated(gated);
        let now = ask();
        if now == gated {
            return;
        }
        gated = now;
    }
}

/// Whether launches go straight to the driver, with nothing to check or record.
#[inline]
pub(crate) fn is_ungated() -> bool {
    FAST_PATH.is_ungated()
}

/// Whether there may be lanes.
fn has_lanes() -> bool {
    HAS_LANES.load(Ordering::SeqCst)
}

/// Resets all state in a forked child, which has no governor. Lanes inherited from the parent must not pass their
/// gates.
pub(crate) fn after_fork(gates: impl Iterator<Item = &'static Gate>) {
    gates.for_each(Gate::abandon);
    set_gated(None);
    HAS_LANES.store(false, Ordering::Relaxed);
    in_driver::after_fork();
    captures::after_fork();
    kinds::after_fork();
    hold::after_fork();
    behind::after_fork();
    words::after_fork();
    stream_gate::after_fork();
}

/// Runs a call that launches work into a stream, once the process may use the device. `current` returns the gate of the
/// current context's device.
#[inline]
pub(crate) fn launch(
    launched: impl Into<Launched>,
    stream: Stream,
    per_thread: bool,
    current: impl Fn() -> Verdict<&'static Gate>,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    if FAST_PATH.is_ungated() {
        return call();
    }
    let launched = launched.into();
    let stream = named(stream, per_thread);
    // A captured launch runs later, and is charged with the launch of its graph.
    if FAST_PATH.has_captures() && is_capturing(stream) {
        return call();
    }
    if lane::pass(stream, launched.work) {
        call()
    } else {
        let mut call = Some(call);
        let mut once = || call.take().map_or(CuResult::UNKNOWN, |call| call());
        launch::launch_slowly(launched, stream, &current, &mut once)
    }
}

/// Whether the launch may go straight to the driver with nothing to do afterwards, as most launches may; counts it if
/// so. Does not panic.
#[inline]
pub(crate) fn passes(work: Work, stream: Stream, per_thread: bool) -> bool {
    !FAST_PATH.has_captures() && lane::pass(named(stream, per_thread), work)
}

/// Resolves a null stream, so that equal handles mean the same kind of stream in every thread and driver function.
#[inline]
fn named(stream: Stream, per_thread: bool) -> usize {
    match stream as usize {
        0 if per_thread => STREAM_PER_THREAD,
        0 => STREAM_LEGACY,
        handle => handle,
    }
}

/// Whether a stream is being captured. Also true for the legacy default stream during the capture of another stream: an
/// event must not be recorded there either.
fn is_capturing(stream: usize) -> bool {
    let mut status: c_uint = CAPTURE_STATUS_NONE;
    !driver_calls::stream_is_capturing(stream as Stream, &raw mut status).is_ok()
        || status != CAPTURE_STATUS_NONE
}

/// Called before a stream is destroyed; afterwards nothing is recorded into it.
pub(crate) fn stream_ends(
    governors: &Visits,
    gates: impl Iterator<Item = &'static Gate>,
    stream: Stream,
) {
    if !has_lanes() {
        return;
    }
    let _alone = governors.exclude();
    for gate in gates {
        for lane in gate.lanes().iter() {
            lane.stream_ends(stream as usize);
        }
    }
}

/// Called after a context has been made; a green context counts by its own handle.
pub(crate) fn context_is_made(context: usize) {
    FAST_PATH.note_context(context);
}

/// Called if destroying a context failed.
pub(crate) fn context_stays(gate: &Gate, context: usize) {
    for lane in gate.lanes().iter() {
        lane.context_stays(context);
    }
}

/// Called before a context is destroyed; afterwards its events are not queried.
pub(crate) fn context_ends(gate: &Gate, context: usize) {
    if context != 0 && has_lanes() {
        let _alone = gate.governors().exclude();
        for lane in gate.lanes().iter() {
            lane.context_ends(context);
        }
    }
}

/// Called after a context has been destroyed.
pub(crate) fn context_ended(gate: &Gate, context: usize) {
    if context == 0 {
        return;
    }
    if has_lanes() {
        for lane in gate.lanes().iter() {
            lane.context_ended(context);
        }
        stream_gate::context_ended(context);
        behind::context_ended(context);
    }
    words::context_ended(context);
}
