//! What a lane takes of the process's budget ([`super::super::budget`]), and returns.

use super::super::budget::{Budget, PAIR_NS, UNKNOWN_NS};
use super::super::{Gate, clock, within};
use super::{Lane, MOST_ENTRIES};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use limiter_core::tuning::LEAST_OUTSTANDING_NS;

/// How long a thread sleeps between checks: while its own work is under way, and while only other threads' work is,
/// which those threads and the governor check.
const SHORTEST_NAP_NS: u64 = 30_000;
const LONGEST_NAP_NS: u64 = 2_000_000;
const OTHERS_NAP_NS: u64 = 50_000_000;
/// [`OTHERS_NAP_NS`] of the one thread that checks the others' work.
const HELPERS_NAP_NS: u64 = 100_000;

/// How long a launch has waited without progress: since when (ns), and a number that changes with progress.
#[derive(Default)]
pub(in crate::compute) struct Patience {
    since: u64,
    progress: u64,
    is_over: bool,
}

impl Patience {
    /// Whether the launch has waited in vain.
    pub(in crate::compute) const fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Records progress of other lanes, and returns what they no longer need.
fn help(gate: &Gate) {
    let Some(_pin) = gate.governors().try_enter() else { return };
    for lane in gate.lanes().iter().filter(|lane| lane.taken.is_any()) {
        lane.give_back_done(&gate.budget);
    }
}

impl Lane {
    /// Takes budget for a launch of `ns` estimated nanoseconds (`None`: unknown), unless the lane already has enough.
    /// `false`: too much is outstanding. Called by the lane's thread.
    pub(in crate::compute) fn take(&self, ns: Option<u64>, gate: &Gate) -> bool {
        let launched = self.count.launched_ns.load(Relaxed);
        let most = self.count.most_ns.load(Relaxed);
        if ns.is_some_and(|ns| launched.saturating_add(ns) < most) {
            return true;
        }
        let budget = &gate.budget;
        self.see_progress();
        let room = gate.room_ns(clock::now());
        // One launch may be queued behind another, or the device would be idle between long ones.
        let room = if self.under_way() <= 1 { room.max(PAIR_NS) } else { room };
        let piece = self.piece(ns.unwrap_or(0), room, budget);
        let stalled = self.is_stalled(gate);
        if !stalled && !self.has_place(1) {
            return false;
        }
        // Work that waits for something outside of the device does not keep it busy.
        if stalled || self.may_wait() {
            if !stalled && self.outstanding_ns() >= room.min(PAIR_NS) {
                return false;
            }
            self.count.most_ns.store(launched.saturating_add(piece).saturating_add(1), Relaxed);
            return true;
        }
        self.keep_needed(budget);
        let Some(_) = ns else { return budget.take(&self.taken, UNKNOWN_NS, LEAST_OUTSTANDING_NS) };
        if !budget.take(&self.taken, piece, room) {
            return false;
        }
        self.count.most_ns.store(launched.saturating_add(piece).saturating_add(1), Relaxed);
        true
    }

    /// Whether `launches` more may be outstanding.
    pub(super) fn has_place(&self, launches: u32) -> bool {
        self.under_way() + u64::from(launches) <= MOST_ENTRIES
    }

    /// What the lane takes at once for a launch of `ns` nanoseconds. New lanes, and lanes of long launches, have
    /// batches of one.
    fn piece(&self, ns: u64, room: u64, budget: &Budget) -> u64 {
        if self.pace.batch() > 1 { budget.piece(room).max(ns) } else { ns }
    }

    /// Waits until there may be room. Without progress for long, stops waiting, because outstanding work may wait for
    /// what follows. `rings`: [`Budget::rings`] before the thread tried. Called by the lane's thread.
    pub(in crate::compute) fn wait_for_room(
        &self,
        gate: &Gate,
        rings: u32,
        patience: &mut Patience,
    ) {
        let budget = &gate.budget;
        let now = clock::now();
        let progress = self.progress().wrapping_add(rings.into());
        if patience.since == 0 || patience.progress != progress {
            *patience = Patience { since: now, progress, is_over: false };
        }
        let waited = now.saturating_sub(patience.since);
        let waiting = self.has_unfinished_waits();
        let longest = if waiting {
            let outstanding = budget.taken_ns().max(self.outstanding_ns());
            gate.seen.stall.patience(now, budget.patience(), outstanding)
        } else {
            budget.patience()
        };
        if waited > longest {
            if waiting {
                self.waited_in_vain(gate, patience.since, now);
            } else if !self.has_unknown() {
                gate.took_at_least(self.outstanding_ns(), waited);
            }
            gate.lanes().iter().for_each(|lane| lane.give_all_back(budget));
            let launched = self.count.launched_ns.load(Relaxed);
            self.count
                .most_ns
                .store(launched.saturating_add(budget.piece(LEAST_OUTSTANDING_NS)), Relaxed);
            patience.is_over = true;
            return;
        }
        if self.under_way() > 0 {
            let is_done = self.cover() && self.is_done(self.batches.recorded());
            if is_done && self.under_way() == 0 {
                return;
            }
            self.is_waited_for(gate);
            clock::sleep((self.outstanding_ns() / 8).clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS));
            return;
        }
        let mut nap = OTHERS_NAP_NS;
        let helps = budget.may_help();
        if helps {
            help(gate);
            nap = nap.min(HELPERS_NAP_NS);
        }
        if budget.rings() == rings {
            if let Some(stream_gate) = gate.stream_gate().filter(|_| !budget.is_wanted()) {
                stream_gate.block().ring();
            }
            budget.wait(rings, nap);
        }
        if helps {
            budget.helps_no_more();
        }
    }

    /// Returns the budget of work that is done. Called by the lane's thread.
    pub(super) fn keep_needed(&self, budget: &Budget) {
        budget.keep(&self.taken, self.needed_ns());
    }

    fn needed_ns(&self) -> u64 {
        let launched = self.count.launched_ns.load(Relaxed);
        let piece = self.count.most_ns.load(Relaxed).saturating_sub(launched);
        self.outstanding_ns() + piece + if self.has_unknown() { UNKNOWN_NS } else { 0 }
    }

    /// Whether work of unknown duration may not be done.
    pub(super) fn has_unknown(&self) -> bool {
        self.calls.unknown_until.load(Acquire) > self.batches.done()
    }

    /// Returns all of the lane's budget; its next launch takes some anew.
    pub(in crate::compute) fn give_all_back(&self, budget: &Budget) {
        self.count.most_ns.store(0, Relaxed);
        budget.keep(&self.taken, 0);
    }

    /// Returns unneeded budget, even if the thread is busy elsewhere. Called by the governor, pinned.
    pub(in crate::compute) fn give_back_unneeded(&self, gate: &Gate) {
        let budget = &gate.budget;
        if !self.taken.is_any() {
            return;
        }
        let activity = self.activity();
        if self.probes.idle_since.swap(activity, Relaxed) == activity {
            let had = self.taken.ns();
            if !self.is_launching() {
                // The thread may continue at any moment, and then takes a new piece.
                self.count.most_ns.store(0, Relaxed);
                if self.is_drained(gate) && self.activity() == activity {
                    budget.keep_of(&self.taken, had, 0);
                    return;
                }
            }
        }
        self.give_back_done(budget);
    }

    /// Returns the budget of work that is known to be done. Called by any thread, pinned.
    fn give_back_done(&self, budget: &Budget) {
        if !self.life.is_lost() {
            let _ = within(self.context, || self.see_progress());
        }
        // Read before checking whether the thread launches: a thread takes more only after it has announced its launch.
        let had = self.taken.ns();
        if !self.is_launching() {
            budget.keep_of(&self.taken, had, self.needed_ns());
        }
    }
}
