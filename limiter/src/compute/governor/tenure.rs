//! The time from the opening of the gate until all work is done.

use super::super::account::{Account, Lease};
use super::super::clock;
use super::super::gate::Gate;
use super::super::lane::Lane;
use super::super::lanes::LaneList;
use super::super::together::CATCH_UP_NS;
use super::super::usage::{Totals, Usage, Used};
use super::super::work::SPREAD;
use super::{LeaseUtilization, Neighbours, POLL_NS};
use core::sync::atomic::Ordering;

/// How often the governor looks whether the program still uses its lease: every 3 to 5 ms, in no rhythm that a
/// program could have.
const LEAST_LOOK_NS: u64 = 3_000_000;
const LOOK_SPREAD_NS: u64 = 2_000_000;
const FIRST_LOOK_NS: u64 = 1_000_000;
pub(in crate::compute) const LONGEST_LOOK_NS: u64 = LEAST_LOOK_NS + LOOK_SPREAD_NS;
/// The same where looking costs next to nothing.
const SHORTEST_LOOK_NS: u64 = 500_000;
/// For how long a program may not use its lease, where that costs others nothing, and where it does.
const PATIENCE_NS: u64 = 25_000_000;
const IMPATIENCE_NS: u64 = 4_000_000;
/// The same where others use the device as well, and a handover is cheap.
const LITTLE_PATIENCE_NS: u64 = 2_000_000;
/// For how long a program may not use a lease that nobody else waits for: the daemon says when somebody does.
const KEEP_NS: u64 = 250_000_000;
const LEAST_BEFORE_NS: u64 = 500_000;
/// How often it looks after the budget while threads wait for it.
const BUDGET_NS: u64 = 300_000;
/// So long before a lease between gates in streams ends its progress is watched, and how often: what then runs ends by
/// a known time after the batch before it.
const SEE_PROGRESS_NS: u64 = 2_000_000;
const PROGRESS_NS: u64 = 100_000;
/// For how long a gate in streams is open at least: a device may come late to see that it is.
const LEAST_OPEN_NS: u64 = 500_000;

/// See the module.
pub(super) struct Tenure {
    pub(super) gate: &'static Gate,
    pub(super) lease: Lease,
    pub(super) usage: Usage,
    /// What has not been told to the account.
    pub(super) used: Used,
    /// When it began, and the estimated time of what had been done before.
    begun: u64,
    done_before_ns: u64,
    /// When to ask for the lease to go on.
    renew_at: Option<u64>,
    /// What was done when launches were last measured, and when that was.
    measured: Option<Measured>,
    /// The changes of the session's limits that the lease knows of.
    changes: u32,
    /// What had been done when something was last seen to be, and when that was.
    progressed: (u64, u64),
    /// It is not used, and kept because nobody else waits for it.
    is_kept: bool,
}

/// See [`Tenure::measure`].
#[derive(Clone, Copy)]
struct Measured {
    at: u64,
    launches: u64,
    estimated_ns: u64,
    /// Ever since there was work.
    busy: bool,
}

impl Tenure {
    /// `before`: what had been launched when the lease was asked for. `left`: work of the lease before is not done.
    pub(super) fn new(
        gate: &'static Gate,
        lease: Lease,
        before: Option<Totals>,
        left: bool,
    ) -> Self {
        let now = clock::now();
        let (begun, totals) = match before {
            Some(totals) => (lease.begun, totals),
            None => (now, gate.look(now, |totals| totals)),
        };
        let usage = if left { Usage::with_rest(begun, totals) } else { Usage::new(begun, totals) };
        gate.lanes().iter().for_each(|lane| lane.forget_question());
        let (used, renew_at) = (Used::default(), renewal(now, &lease));
        let (launches, done_before_ns) = gate.lanes().done_launches();
        let measured = Measured { at: now, launches, estimated_ns: done_before_ns, busy: true };
        let progressed = (gate.lanes().progress(), now);
        let begun = now;
        Self {
            gate,
            lease,
            usage,
            used,
            begun,
            done_before_ns,
            renew_at,
            measured: Some(measured),
            changes: limit_changes(gate),
            progressed,
            is_kept: false,
        }
    }

    /// For whoever looks for what a program is charged.
    pub(super) fn tell_use(&self, when: &str) {
        tracing::trace!("device {}: {:?}{when}", self.gate.ledger().uuid(), self.used);
    }

    /// Since when some lane has had work under way all the time. Each is asked, so that each one's progress is seen.
    pub(super) fn busy_since(&self, lanes: &LaneList) -> Option<u64> {
        // Each is asked: the least of them needs all.
        let governors = self.gate.governors();
        lanes.iter().filter_map(|lane| lane.busy_since(governors, self.usage.at())).min()
    }

    /// Sees how long launches take, before this look is counted; `busy_since`: so long there always was work. Beside
    /// others it may be theirs, and together with other devices work waits for those.
    pub(super) fn measure(&mut self, now: u64, busy_since: Option<u64>) {
        let gate = self.gate;
        // Short leases of gates in streams have no more, and batches there tell exactly.
        let least_ns = if gate.stream_gate().is_some() { 1_000_000 } else { 3_000_000 };
        let (launches, estimated_ns) = gate.lanes().done_launches();
        let begins = Measured { at: now, launches, estimated_ns, busy: true };
        let since = self.measured.get_or_insert(begins);
        let apart = !gate.is_shared() && gate.collectives().set().is_none();
        since.busy &= apart && busy_since.is_some_and(|since| since <= self.usage.at());
        let ns = now.saturating_sub(since.at);
        // Where a lane is gone its launches are as well.
        let done =
            (launches.checked_sub(since.launches), estimated_ns.checked_sub(since.estimated_ns));
        let (Some(launches), Some(estimated_ns)) = done else {
            self.measured = None;
            return;
        };
        if ns >= least_ns && launches > 0 {
            gate.launch_times().add(launches, estimated_ns, ns, since.busy);
            self.measured = Some(begins);
        }
    }

    /// Counts the time since the last look; `busy_since`: so long there always was work.
    pub(super) fn look(&mut self, now: u64, busy_since: Option<u64>) {
        let gate = self.gate;
        // Nobody else can use the device meanwhile.
        let stalls = gate.stall().lasts(|| gate.lanes().progress());
        let busy_since = if stalls { Some(0) } else { busy_since };
        let used = gate.look(now, |totals| self.usage.until(now, totals, busy_since));
        self.used += if core::mem::take(&mut self.is_kept) { used.after_idle() } else { used };
    }

    /// The same while what is left is being done. Where no other session uses the device that is all of the
    /// time, whatever the work was taken to need, unless all of it may have been waiting.
    pub(super) fn look_at_the_rest(&mut self, now: u64, waits: bool) {
        let gate = self.gate;
        let waits = waits && !gate.stall().lasts(|| gate.lanes().progress());
        let busy_since = (!waits).then_some(0);
        let used = gate.look(now, |totals| self.usage.until(now, totals, busy_since));
        self.used += if gate.is_shared() || waits { used } else { Used::busy(used.held_ns) };
    }

    /// Keeps the gate open until the lease ends or the program has stopped using it.
    pub(super) fn hold(
        &mut self,
        account: &mut Account,
        utilization: &mut LeaseUtilization,
        neighbours: &mut Neighbours,
    ) {
        let mut before = None;
        let mut idle_since = None;
        loop {
            let now = clock::now();
            if now >= self.lease.end {
                return;
            }
            let next = self.lease.end.min(self.renew_at.unwrap_or(u64::MAX));
            self.sleep(now.saturating_add(self.until_look(now)).min(next));
            let now = clock::now();
            // What a program does while nothing limits it is no use of a lease.
            if self.is_stopped() || self.has_caught_up() || !self.gate.is_active() {
                return;
            }
            let lanes = self.gate.lanes();
            self.gate.tell_collectives();
            lanes.release_overdue(now);
            let Some(inside) = self.gate.inside(&lanes) else {
                // A sample is being taken. It is short.
                clock::sleep(POLL_NS);
                continue;
            };
            let activity = lanes.activity();
            let goes_on = before.replace(activity) != Some(activity);
            let busy_since = self.busy_since(&lanes);
            let shared = self.gate.is_shared();
            let works = goes_on && !shared && lanes.iter().any(|lane| lane.found_work());
            self.measure(now, busy_since);
            let was_kept = self.is_kept;
            self.look(now, if works { Some(0) } else { busy_since });
            if goes_on {
                idle_since = None;
                if let Some(gate) = self.gate.stream_gate().filter(|_| was_kept) {
                    gate.goes_on();
                }
                let look = if shared { Lane::forget_looks } else { Lane::ask };
                lanes.iter().for_each(|lane| look(lane));
            } else if lanes.are_drained(self.gate) {
                self.usage.drained(self.gate.device_lanes().totals());
                let since = *idle_since.get_or_insert(now);
                let idle_ns = now.saturating_sub(since);
                let is_over = idle_ns >= self.patience_with_idleness(utilization);
                if is_over && !self.keeps(&lanes, activity, idle_ns, was_kept) {
                    return;
                }
            }
            drop(inside);
            // Under other limits it may be too long.
            let changed = core::mem::replace(&mut self.changes, limit_changes(self.gate));
            let changed = changed != self.changes && self.lease.id.is_none();
            if changed || self.renew_at.is_some_and(|at| now >= at) {
                self.remove_abandoned();
                utilization.add(self.used);
                self.tell_use("");
                let used = core::mem::take(&mut self.used);
                let renewed = match account.renew(self.lease, used) {
                    // It has nothing left of what it was granted.
                    renewed if changed && renewed == self.lease => Lease { end: now, ..renewed },
                    renewed => renewed,
                };
                let goes_on = changed || renewed.end > self.lease.end;
                self.renew_at = if goes_on { renewal(clock::now(), &renewed) } else { None };
                self.lease = renewed;
                self.gate.tell_open(renewed.end.saturating_add(CATCH_UP_NS));
                self.gate.set_shared(neighbours.note(&renewed));
            }
            self.tell_end(now);
        }
    }

    /// How long the program may not use its lease. Holding on costs nothing where others use the device as well, or
    /// nobody does: what is not used is not charged. Where a handover is cheap there is little to be won by it.
    fn patience_with_idleness(&self, utilization: &LeaseUtilization) -> u64 {
        let in_stream = self.gate.stream_gate().is_some();
        match self.lease {
            // It pays by the clock, unless others use the device as well.
            Lease { of_several: true, shared: false, .. } => IMPATIENCE_NS,
            // The other devices may wait for what it does next.
            Lease { id: None, .. } | Lease { of_several: true, .. } => PATIENCE_NS,
            Lease { shared: true, .. } if in_stream => LITTLE_PATIENCE_NS,
            _ if in_stream => SHORTEST_LOOK_NS,
            Lease { shared: true, .. } => PATIENCE_NS,
            _ if utilization.is_sparse() => PATIENCE_NS,
            _ => IMPATIENCE_NS,
        }
    }

    /// The lease has not been used for so long: whether it is kept all the same, because nobody else waits for it. Says so
    /// to the daemon, unless something has been launched meanwhile: since there was so much activity.
    fn keeps(&mut self, lanes: &LaneList, before: u64, idle_ns: u64, was_kept: bool) -> bool {
        let Some(gate) = self.gate.stream_gate() else { return false };
        if !was_kept {
            // It was not needed: what the program leaves idle is what is in between.
            self.used.idle_ns = self.used.idle_ns.saturating_add(idle_ns);
        }
        self.is_kept = idle_ns < KEEP_NS && self.may_be_kept();
        let Some(lease) = self.lease.id.filter(|_| self.is_kept) else { return false };
        if !was_kept {
            // The next launch takes note of it.
            lanes.iter().for_each(|lane| lane.ask());
        }
        gate.rests(lease);
        // A launch that does not see that yet is seen here.
        if lanes.activity() != before || !lanes.are_drained(self.gate) {
            gate.goes_on();
        }
        true
    }

    /// Whether nobody else waits for the lease.
    fn may_be_kept(&self) -> bool {
        let gate = self.gate.stream_gate();
        self.lease.id.zip(gate).is_some_and(|(lease, gate)| gate.may_keep(lease))
    }

    /// Tells how much may be launched ahead: what the lease has left, if all of it is this process's (a sibling uses
    /// the same lease's time), and no more than twice what has been done under it. The estimates may be wrong.
    pub(super) fn tell_end(&self, now: u64) {
        let gate = self.gate;
        let apart = !gate.ledger().is_used_by_siblings(now);
        let (_, done_ns) = gate.lanes().done_launches();
        let ahead = done_ns.saturating_sub(self.done_before_ns).saturating_mul(2);
        gate.lease_ends_at(if apart { self.lease.end.min(now.saturating_add(ahead)) } else { now });
    }

    /// Keeps streams, and threads that wait, from never going on because each lease is over before they have seen that
    /// the gate is open. `before`: what had begun before it was opened.
    pub(super) fn let_something_begin(&self, before: u64) {
        let gate = self.gate;
        let until = clock::now().saturating_add(LEAST_OPEN_NS);
        let waits = || {
            let lanes = gate.lanes();
            let comes = || lanes.are_launching() || lanes.iter().any(|lane| lane.awaits_gate());
            lanes.begun() == before && (gate.is_wanted() || comes())
        };
        while waits() && !self.is_stopped() && clock::now() < until {
            clock::sleep(POLL_NS);
        }
    }

    /// Whether the daemon has ended the lease early.
    pub(super) fn is_stopped(&self) -> bool {
        let gate = self.gate.stream_gate();
        self.lease.id.zip(gate).is_some_and(|(lease, gate)| gate.is_stopped(lease))
    }

    /// Sleeps until a moment, or until the lease is ended early. While threads wait for what others have taken of the
    /// budget, sees to it that what is done is given back.
    fn sleep(&mut self, until: u64) {
        let gate = self.gate;
        loop {
            let now = clock::now();
            let left = until.saturating_sub(now).max(1);
            if let Some(stream_gate) = gate.stream_gate() {
                let rings = stream_gate.rings();
                let ends_soon = self.lease.end.saturating_sub(now) < SEE_PROGRESS_NS;
                if ends_soon {
                    self.see_progress(now);
                    gate.tell_collectives();
                }
                if !self.is_stopped() && !gate.budget().is_wanted() {
                    stream_gate.sleep(rings, if ends_soon { left.min(PROGRESS_NS) } else { left });
                    // A late end of an earlier lease has closed the gate.
                    if stream_gate.rings() != rings {
                        let _ = stream_gate.open(self.lease.id);
                    }
                }
            } else {
                gate.budget().sleep_unless_wanted(left);
            }
            let left = until.saturating_sub(clock::now());
            let is_other = self.is_stopped() || self.is_kept && !self.may_be_kept();
            if left == 0 || is_other || self.changes != limit_changes(gate) {
                return;
            }
            if gate.budget().is_wanted() {
                clock::sleep(left.min(BUDGET_NS));
                self.give_back_unneeded();
            }
        }
    }

    /// Remembers when something was last seen to be done. Returns the number, and when that was.
    pub(super) fn see_progress(&mut self, now: u64) -> (u64, u64) {
        let done = self.gate.lanes().progress();
        if done != self.progressed.0 {
            self.progressed = (done, now);
        }
        self.progressed
    }

    /// How long to wait for the next look. The first ones come soon: more may be launched then. Where looking costs next
    /// to nothing, a lease that others may wait for is looked at often.
    fn until_look(&self, now: u64) -> u64 {
        if self.gate.stream_gate().is_some() && self.gate.collectives().catch_up() {
            POLL_NS
        } else if self.gate.stream_gate().is_some() && !self.is_kept {
            SHORTEST_LOOK_NS
        } else {
            until_look(now).min(now.saturating_sub(self.begun).max(FIRST_LOOK_NS))
        }
    }

    /// What lanes have taken of the budget and do not need is given back.
    pub(super) fn give_back_unneeded(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let Some(_pin) = gate.governors().try_enter() else { return };
        lanes.iter().for_each(|lane| lane.give_back_unneeded(gate));
    }

    /// Gives back the events of lanes whose threads have ended and whose work is done.
    pub(super) fn remove_abandoned(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let gone: Vec<_> = lanes.iter().filter(|lane| lane.is_abandoned()).collect();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let governors = gate.governors();
        let Some(_pin) = governors.try_enter().filter(|_| !gone.is_empty()) else { return };
        gate.tell_collectives();
        for lane in gone.iter().filter(|lane| lane.is_over(gate)) {
            lane.give_all_back(gate.budget());
            gate.device_lanes().retire(lane);
            lane.destroy_events();
        }
    }
}

/// How often the session's limits have changed.
fn limit_changes(gate: &Gate) -> u32 {
    gate.ledger().page().map_or(0, |page| page.limit_changes.load(Ordering::Acquire))
}

/// When to ask for more of a lease: at its half. As much as it has left may be outstanding, and a lease that goes on
/// is not to look as if it ended.
fn renewal(now: u64, lease: &Lease) -> Option<u64> {
    let early = lease.end.saturating_sub(now) / 2;
    (early >= LEAST_BEFORE_NS).then_some(lease.end - early)
}

/// How long to wait for the next look.
fn until_look(now: u64) -> u64 {
    let mixed = now.wrapping_mul(SPREAD) >> 32;
    LEAST_LOOK_NS + mixed * LOOK_SPREAD_NS / (1 << 32)
}
