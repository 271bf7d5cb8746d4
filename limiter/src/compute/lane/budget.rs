//! What a lane takes of the process's budget, and gives back.

use super::super::budget::{Budget, MOST_NS};
use super::super::{Gate, clock, undisturbing, within};
use super::Lane;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// How long a thread sleeps before it looks again: while its own work is under way, and while only others' is, which
/// others and the governor look after.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 500_000;
const OTHERS_NAP_NS: u64 = 50_000_000;
/// The same, where one thread looks after the others' for all.
const HELPERS_NAP_NS: u64 = 100_000;

/// Since when a launch waits and nothing was given back, and how often something had been.
#[derive(Default)]
pub(in crate::compute) struct Patience {
    since: u64,
    rings: u32,
}

/// Sees what is done of others' work.
fn help(gate: &Gate) {
    let Some(_pin) = gate.governors().try_enter() else { return };
    for lane in gate.lanes().iter().filter(|lane| lane.taken.is_any()) {
        lane.give_back_done(gate.budget());
    }
}

impl Lane {
    /// Takes what a launch of some estimated nanoseconds needs, unless the lane has it already; `None`: not known.
    /// `false`: too much is outstanding. To be called by the lane's thread.
    pub(in crate::compute) fn take(&self, ns: Option<u64>, gate: &Gate) -> bool {
        let launched = self.count.launched_ns.load(Relaxed);
        let most = self.count.most_ns.load(Relaxed);
        if ns.is_some_and(|ns| launched.saturating_add(ns) < most) {
            return true;
        }
        let budget = gate.budget();
        // What waits for something outside of the device does not keep it busy.
        if self.may_wait() || self.is_stalled(gate) {
            let piece = self.piece(ns.unwrap_or(0), budget);
            self.count.most_ns.store(launched.saturating_add(piece).saturating_add(1), Relaxed);
            return true;
        }
        let needed = ns.map_or(MOST_NS, |ns| self.piece(ns, budget));
        self.keep_needed(budget);
        if !budget.take(&self.taken, needed) {
            return false;
        }
        if ns.is_some() {
            self.count.most_ns.store(launched.saturating_add(needed).saturating_add(1), Relaxed);
        }
        true
    }

    /// What the lane takes at once for launches like one of so many nanoseconds. A new lane, or one of long
    /// launches, has batches of one.
    fn piece(&self, ns: u64, budget: &Budget) -> u64 {
        if self.batch.load(Relaxed) > 1 { budget.piece().max(ns) } else { ns }
    }

    /// Waits until something may have been given back. If nothing was for long, all of it is: what is outstanding
    /// may wait for what comes next. `rings`: how often that had happened before the thread tried. To be called by the lane's thread.
    pub(in crate::compute) fn wait_for_budget(
        &self,
        gate: &Gate,
        rings: u32,
        patience: &mut Patience,
    ) {
        let budget = gate.budget();
        let now = clock::now();
        if patience.since == 0 || patience.rings != rings {
            *patience = Patience { since: now, rings };
        }
        let waiting = self.has_unfinished_waits();
        let longest = if waiting {
            gate.stall().patience(now, budget.patience(), budget.taken_ns())
        } else {
            budget.patience()
        };
        if now.saturating_sub(patience.since) > longest {
            if waiting {
                self.waited_in_vain(gate, patience.since, now);
            }
            gate.lanes().iter().for_each(|lane| lane.give_all_back(budget));
            return;
        }
        let mut nap = OTHERS_NAP_NS;
        if self.taken.is_any() {
            undisturbing(|| self.try_to_cover() && self.is_done(self.recorded.load(Relaxed)));
            self.keep_needed(budget);
            nap = (self.outstanding_ns() / 2).clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS);
        }
        let helps = budget.may_help();
        if helps {
            help(gate);
            nap = nap.min(HELPERS_NAP_NS);
        }
        if budget.rings() == rings {
            budget.wait(rings, nap);
        }
        if helps {
            budget.helps_no_more();
        }
    }

    /// What is done needs nothing of the budget any more. To be called by the lane's thread.
    pub(super) fn keep_needed(&self, budget: &Budget) {
        budget.keep(&self.taken, self.needed_ns());
    }

    fn needed_ns(&self) -> u64 {
        let launched = self.count.launched_ns.load(Relaxed);
        let piece = self.count.most_ns.load(Relaxed).saturating_sub(launched);
        let unknown = self.unknown_until.load(Acquire) > self.done.load(Acquire);
        self.outstanding_ns() + piece + if unknown { MOST_NS } else { 0 }
    }

    /// Takes no further launch into account.
    pub(in crate::compute) fn give_all_back(&self, budget: &Budget) {
        self.count.most_ns.store(0, Relaxed);
        budget.keep(&self.taken, 0);
    }

    /// Gives back what is not needed any more, also where the thread is busy elsewhere. To be called by the
    /// governor, pinned.
    pub(in crate::compute) fn give_back_unneeded(&self, gate: &Gate) {
        let budget = gate.budget();
        if !self.taken.is_any() {
            return;
        }
        let activity = self.activity();
        if self.idle_since.swap(activity, Relaxed) == activity {
            let had = self.taken.ns();
            if !self.is_launching() {
                // It may go on at any moment, and then takes a piece anew.
                self.count.most_ns.store(0, Relaxed);
                if self.is_drained(gate) && self.activity() == activity {
                    budget.keep_of(&self.taken, had, 0);
                    return;
                }
            }
        }
        self.give_back_done(budget);
    }

    /// Gives back what is seen to be done. To be called by any thread, pinned.
    fn give_back_done(&self, budget: &Budget) {
        if !self.lost.load(Acquire) {
            let done = || self.is_done(self.recorded.load(Acquire));
            let _ = undisturbing(|| within(self.context, done));
        }
        // Before it is looked at whether the thread is about to launch: it takes more after it has said so.
        let had = self.taken.ns();
        if !self.is_launching() {
            budget.keep_of(&self.taken, had, self.needed_ns());
        }
    }
}
