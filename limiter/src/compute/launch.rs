//! The slow way of a launch: to a gate that may be closed, into a batch that may be full, of work that may not be
//! known.

use super::estimate::Estimate;
use super::fast_path::FAST_PATH;
use super::gate::{Gate, NoLease};
use super::lane::{self, Ahead, Lane, Launching};
use super::work::Launched;
use super::{clock, in_driver, is_capturing, unattended};
use crate::verdict::{LimiterFailure, Verdict};
use core::sync::atomic::Ordering;
use driver::cuda::CuResult;
use limiter_core::Guess;
use std::sync::Arc;

/// A launch on its way to the driver.
struct Launch {
    launched: Launched,
    stream: usize,
    gate: &'static Gate,
    /// `None`: the launch is not tracked.
    lane: Option<Arc<Lane>>,
    estimate: Option<&'static Estimate>,
    known: Option<u64>,
    /// The assumed duration, if the kind has no estimate.
    guess: Option<Guess>,
}

/// Launches on the slow path. `call` is called at most once; it is no type parameter, which would instantiate this code
/// for each driver function.
#[cold]
pub(super) fn launch_slowly(
    launched: Launched,
    stream: usize,
    current: &dyn Fn() -> Verdict<&'static Gate>,
    call: &mut dyn FnMut() -> CuResult,
) -> CuResult {
    let (gate, lane) = match lane::known_way(stream) {
        Some((gate, lane)) => (gate, Some(lane)),
        None => match lane::gate_of(stream, current) {
            Verdict::Limited(gate) if gate.is_active() => {
                (gate, lane::of_this_thread(gate, stream))
            }
            Verdict::Limited(_) | Verdict::Free => return call(),
            Verdict::Denied => return CuResult::NOT_PERMITTED,
        },
    };
    let estimate = lane::estimate_of(&launched);
    let (known, guess) = estimate.map_or((None, None), Estimate::known_or_guessed);
    let launch = Launch { launched, stream, gate, lane, estimate, known, guess };
    match launch.pass(call) {
        Ok((launching, behind)) => launch.make(launching, behind, call),
        Err(result) => result,
    }
}

impl Launch {
    /// Nanoseconds to charge: the estimate, or else the guess.
    fn expected_ns(&self) -> Option<u64> {
        self.known.or(self.guess.map(|guess| guess.ns))
    }

    fn is_collective(&self) -> bool {
        self.estimate.is_some_and(Estimate::is_collective)
    }

    /// Waits until it may go on; tells whether it does so behind the gate in its stream. `Err`: nothing limits it any
    /// more, and `call` has been called, or it may not go on.
    fn pass(
        &self,
        call: &mut dyn FnMut() -> CuResult,
    ) -> Result<(Option<Launching<'_>>, bool), CuResult> {
        let (gate, lane, may_block) = (self.gate, &self.lane, self.launched.work.may_block());
        let mut patience = lane::Patience::default();
        let mut in_vain = None;
        loop {
            if gate.is_unattended() {
                return Err(unattended::launch(gate, self.stream, call));
            }
            // Announced before the gate is read.
            let launching = lane.as_deref().map(Lane::launch_begins);
            if let Some(stream_gate) = gate.stream_gate() {
                stream_gate.block().goes_on();
            }
            let is_open = lane::enter(gate, self.stream, lane.as_ref());
            // Of work that is known, its stream may wait instead of this thread. What is not may have to be loaded
            // first: the driver waits with that for streams that are held, and other threads for the driver.
            let may_be_held = || {
                let is_governed = gate.life.governed.load(Ordering::Acquire);
                self.expected_ns().is_some() && !may_block && is_governed
            };
            if let Some(lane) = lane.as_deref().filter(|_| is_open || may_be_held()) {
                if FAST_PATH.has_captures() && is_capturing(self.stream) {
                    return Ok((launching, false));
                }
                match lane.goes_ahead(gate, may_block) {
                    Ahead::Go => return Ok((launching, true)),
                    Ahead::Full if is_open => {
                        drop(launching);
                        lane.nap_for_room(&mut in_vain, gate);
                        continue;
                    }
                    Ahead::Busy => {
                        drop(launching);
                        clock::sleep(lane::BUSY_NAP_NS);
                        continue;
                    }
                    Ahead::Full | Ahead::OnThread => {}
                }
            }
            if !is_open {
                drop(launching);
                self.wait_at_gate(call)?;
                continue;
            }
            let Some(lane) = lane.as_deref() else { return Ok((launching, false)) };
            let rings = gate.budget.rings();
            if !lane.take(self.expected_ns(), gate) && !patience.is_over() {
                drop(launching);
                lane.wait_for_room(gate, rings, &mut patience);
            } else if !self.is_collective() || gate.collective_begins() {
                return Ok((launching, false));
            }
        }
    }

    /// Sleeps until the gate opens. `Err`: see [`Self::pass`].
    fn wait_at_gate(&self, call: &mut dyn FnMut() -> CuResult) -> Result<(), CuResult> {
        let gate = self.gate;
        // The limit may have been removed meanwhile.
        if !gate.is_active() || is_capturing(self.stream) {
            return Err(call());
        }
        if let Some(lane) = &self.lane {
            let _ = lane.cover();
        }
        gate.wait().map_err(|no_lease| match no_lease {
            NoLease::Account => CuResult::NOT_PERMITTED,
            NoLease::Governor(error) => {
                let refused = format!("cannot start the thread that obtains GPU time: {error}");
                let passes = gate.ledger().lets_pass(&LimiterFailure(refused));
                if passes { call() } else { CuResult::OPERATING_SYSTEM }
            }
        })
    }

    /// Makes the driver call and counts the launch. `behind`: the stream waits for the gate.
    fn make(
        &self,
        launching: Option<Launching<'_>>,
        behind: bool,
        call: &mut dyn FnMut() -> CuResult,
    ) -> CuResult {
        let (gate, work) = (self.gate, self.launched.work);
        let Some(lane) = self.lane.as_deref() else {
            gate.unknown_work_begins();
            return call();
        };
        // No event may be recorded into a stream that is being captured. The capture may have begun while this thread
        // waited at the gate.
        if FAST_PATH.has_captures() && is_capturing(self.stream) {
            return call();
        }
        lane.look_if_asked();
        let counts = self.is_collective() && behind;
        let ends = counts && {
            lane.collective_begins();
            gate.collective_waits_for_gate()
        };
        let start =
            |estimate| Some((estimate, lane.start_sample(work, estimate, self.guess, gate)?));
        let sample = self.estimate.and_then(start);
        let begun = work.may_block().then(|| lane.call_begins());
        let result = if self.known.is_none() {
            gate.unknown_work_begins();
            in_driver::load(core::iter::once(gate), call)
        } else {
            call()
        };
        let waited = begun.is_some_and(|since| lane.call_ends(since));
        if !result.is_ok() {
            if counts {
                lane.collective_failed();
            }
            return result;
        }
        if let Some((estimate, started)) = sample {
            lane.finish_sample(started, estimate);
        }
        // Time within calls is counted while it passes.
        let ns = if waited { Some(0) } else { self.expected_ns() };
        let count = lane.count(ns);
        // From here on the governor sees the launch in the lane's count.
        drop(launching);
        lane.go_on(count, ns, ends, gate);
        result
    }
}
