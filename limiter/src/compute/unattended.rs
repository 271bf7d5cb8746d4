//! Launches of a process that is ending.
//!
//! Its governor no longer enters the driver, so nobody opens the gate. Destructors and exit handlers may still launch,
//! for as long as they like. Each such launch obtains a lease of the session's own account by itself, waits for its
//! work, and is charged by the clock.

use super::gate::Gate;
use super::{clock, driver_calls, undisturbing};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use driver::cuda::{CuResult, Stream};
use session::ledger::Turn;

/// How often a launch checks whether it may proceed or is done: at first, and later.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 2_000_000;
/// How long to wait for the work, which may itself wait for what its program does next.
const PATIENCE_NS: u64 = 2_000_000_000;

thread_local! {
    /// Whether the thread is within such a launch, for calls back from the driver.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Guard of the one launch at a time: two would be charged for the same time, and neither for all of it.
struct Turnstile<'gate>(&'gate AtomicBool);

impl Drop for Turnstile<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
        let _ = WITHIN.try_with(|within| within.set(false));
    }
}

fn naps() -> impl Iterator<Item = u64> {
    core::iter::successors(Some(SHORTEST_NAP_NS), |ns| Some((ns * 2).min(LONGEST_NAP_NS)))
}

/// Waits until no other thread launches; `None`: the calling thread is already within such a launch.
fn enter(gate: &Gate) -> Option<Turnstile<'_>> {
    let entered = WITHIN.try_with(|within| within.replace(true)).unwrap_or(false);
    if entered {
        return None;
    }
    let busy = &gate.life.launches_unattended;
    naps().find(|&ns| {
        !busy.swap(true, Ordering::Acquire) || {
            clock::sleep(ns);
            false
        }
    });
    Some(Turnstile(busy))
}

/// Launches when the session's own account has time. `call` is called at most once.
pub(super) fn launch(gate: &Gate, stream: usize, call: &mut dyn FnMut() -> CuResult) -> CuResult {
    let Some(_alone) = enter(gate) else { return call() };
    let ledger = gate.ledger();
    let slot = ledger.membership().slot();
    let begun = loop {
        if !gate.is_active() {
            return call();
        }
        if ledger.page().is_some_and(|page| page.holders.load(Ordering::Relaxed) > 0) {
            ledger.reap();
        }
        let now = clock::now();
        let turn = ledger.open().map(|mut opened| opened.begin_lease(slot, now));
        if let Some(refused) = ledger.broken() {
            return if ledger.lets_pass(refused) { call() } else { CuResult::NOT_PERMITTED };
        }
        match turn {
            Some(Turn::Granted(_)) => break now,
            Some(Turn::In(ns)) => clock::sleep(ns.clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS)),
            None => clock::sleep(LONGEST_NAP_NS),
        }
    };
    gate.unknown_work_begins();
    let result = call();
    let is_done =
        || undisturbing(|| driver_calls::stream_query(stream as Stream)) != CuResult::NOT_READY;
    let done = naps().find_map(|ns| {
        let (done, late) = (is_done(), clock::now().saturating_sub(begun) > PATIENCE_NS);
        if done || late {
            return Some(done);
        }
        clock::sleep(ns);
        None
    });
    let now = clock::now();
    if let Some(mut opened) = ledger.open() {
        opened.end_lease(slot, now, now.saturating_sub(begun));
    }
    if let Some(own) = ledger.own_slot() {
        let seen = own.work();
        own.work_was_seen(seen, now, done != Some(true));
    }
    result
}

/// Called before the process ends. If all of its work is done, its lease ends now and nothing more is charged.
pub(crate) fn settle(gate: &Gate) {
    let ledger = gate.ledger();
    let Some(slot) = ledger.own_slot() else { return };
    if slot.holding.load(Ordering::Relaxed) != 1 {
        return;
    }
    let lanes = gate.lanes();
    let Some(_inside) = gate.inside(&lanes) else { return };
    let Some(_pin) = gate.governors().try_enter() else { return };
    let seen = slot.work();
    if undisturbing(|| lanes.iter().all(|lane| lane.is_drained(gate))) {
        let now = clock::now();
        slot.work_was_seen(seen, now, false);
        if let Some(mut opened) = ledger.open() {
            // Charges by the clock what came after the governor's last report.
            opened.end_lease(ledger.membership().slot(), now, u64::MAX);
        }
    }
}
