//! A lease in use: from the opening of the gate until all work is done. The governor makes one [`Tenure`] per lease.

use super::super::account::Account;
use super::super::clock;
use super::super::gate::Gate;
use super::super::lanes::LaneList;
use super::super::together::CATCH_UP_NS;
use super::POLL_NS;
use core::sync::atomic::Ordering;
use core::time::Duration;
use limiter_core::{Lease, LeaseUtilization, Neighbours, Tenure as Holding, Totals, Usage};

/// How often the budget is checked while threads wait for it.
const BUDGET_NS: u64 = 300_000;
/// With gates in streams: how long before the end of a lease progress is watched, and how often. The last batch then
/// ends at a known time after the one before it.
const SEE_PROGRESS_NS: u64 = 2_000_000;
const PROGRESS_NS: u64 = 100_000;
/// The shortest time that a gate in streams is open: a device may be late to see that it is.
const LEAST_OPEN_NS: u64 = 500_000;

/// The use of one lease.
pub(super) struct Tenure {
    pub(super) gate: &'static Gate,
    pub(super) holding: Holding,
    /// Estimated nanoseconds of the work that was done before the lease began.
    done_before_ns: u64,
    /// The last measurement of launch durations.
    measured: Option<Measured>,
    /// The count of limit changes that the lease reflects.
    changes: u32,
    /// The progress when work was last seen to be done, and when that was.
    progressed: (u64, u64),
}

/// See [`Tenure::measure`].
#[derive(Clone, Copy)]
struct Measured {
    at: u64,
    launches: u64,
    estimated_ns: u64,
    /// Whether there has always been work since then.
    busy: bool,
}

impl Tenure {
    /// `before`: what had been launched when the lease was requested. `left`: work of the previous lease is not done.
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
        gate.lanes().iter().for_each(|lane| lane.probes.looks.forget());
        let (launches, done_before_ns) = gate.lanes().done_launches();
        let measured = Measured { at: now, launches, estimated_ns: done_before_ns, busy: true };
        let progressed = (gate.lanes().progress(), now);
        Self {
            gate,
            holding: Holding::new(now, lease, usage),
            done_before_ns,
            measured: Some(measured),
            changes: limit_changes(gate),
            progressed,
        }
    }

    /// Traces what the program is charged.
    pub(super) fn tell_use(&self, when: &str) {
        tracing::trace!("device {}: {:?}{when}", self.gate.ledger().uuid(), self.holding.used);
    }

    /// Since when some lane has always had work under way. Queries every lane, so that the progress of each is
    /// recorded.
    pub(super) fn busy_since(&self, lanes: &LaneList) -> Option<u64> {
        // Query every lane: the minimum needs all of them.
        let governors = self.gate.governors();
        lanes.iter().filter_map(|lane| lane.busy_since(governors, self.holding.usage.at())).min()
    }

    /// Measures how long launches take, before this check is counted. `busy_since`: since when there always was work.
    /// Not measured beside other sessions, whose time it may be, nor on devices that are used together, which wait for
    /// each other.
    pub(super) fn measure(&mut self, now: u64, busy_since: Option<u64>) {
        let gate = self.gate;
        // Short leases of gates in streams have no more, and batches there are exact.
        let least_ns = if gate.stream_gate().is_some() { 1_000_000 } else { 3_000_000 };
        let (launches, estimated_ns) = gate.lanes().done_launches();
        let begins = Measured { at: now, launches, estimated_ns, busy: true };
        let since = self.measured.get_or_insert(begins);
        let apart = !gate.is_shared() && gate.collectives.set().is_none();
        since.busy &= apart && busy_since.is_some_and(|since| since <= self.holding.usage.at());
        let ns = now.saturating_sub(since.at);
        // Launches of removed lanes are missing from the sums.
        let done =
            (launches.checked_sub(since.launches), estimated_ns.checked_sub(since.estimated_ns));
        let (Some(launches), Some(estimated_ns)) = done else {
            self.measured = None;
            return;
        };
        if ns >= least_ns && launches > 0 {
            gate.seen.launch_times.add(launches, estimated_ns, ns, since.busy);
            self.measured = Some(begins);
        }
    }

    /// Counts the time since the last check. `busy_since`: since when there always was work.
    pub(super) fn look(&mut self, now: u64, busy_since: Option<u64>) {
        let gate = self.gate;
        // No other session can use the device during a stall.
        let stalls = gate.seen.stall.lasts(|| gate.lanes().progress());
        let busy_since = if stalls { Some(0) } else { busy_since };
        gate.look(now, |totals| self.holding.look(now, totals, busy_since));
    }

    /// Counts the time since the last check during a drain. `waits`: all of the work may have been waiting.
    pub(super) fn look_at_the_rest(&mut self, now: u64, waits: bool) {
        let gate = self.gate;
        let waits = waits && !gate.seen.stall.lasts(|| gate.lanes().progress());
        let shared = gate.is_shared();
        gate.look(now, |totals| self.holding.look_at_the_rest(now, totals, waits, shared));
    }

    /// Keeps the gate open until the lease ends or the program no longer uses it.
    pub(super) fn hold(
        &mut self,
        account: &mut Account,
        utilization: &mut LeaseUtilization,
        neighbours: &mut Neighbours,
    ) {
        loop {
            let now = clock::now();
            if now >= self.holding.lease.end {
                return;
            }
            self.sleep(self.next_look(now));
            let now = clock::now();
            // Use without a limit is not charged to a lease.
            if self.is_stopped() || self.has_caught_up() || !self.gate.is_active() {
                return;
            }
            let lanes = self.gate.lanes();
            self.gate.tell_collectives();
            lanes.release_overdue(now);
            let Some(inside) = self.gate.inside(&lanes) else {
                // A sample is being taken, which is short.
                clock::sleep(POLL_NS);
                continue;
            };
            let activity = lanes.activity();
            let goes_on = self.holding.goes_on(activity);
            let busy_since = self.busy_since(&lanes);
            let shared = self.gate.is_shared();
            let works =
                goes_on && !shared && lanes.iter().any(|lane| lane.probes.looks.found_work());
            self.measure(now, busy_since);
            let was_kept = self.holding.is_kept;
            self.look(now, if works { Some(0) } else { busy_since });
            if goes_on {
                if let Some(gate) = self.gate.stream_gate().filter(|_| was_kept) {
                    gate.block().goes_on();
                }
                for lane in lanes.iter() {
                    // Beside another session, work may be waiting for that session's work.
                    if shared { lane.probes.looks.forget_all() } else { lane.ask() }
                }
            } else if lanes.are_drained(self.gate) {
                let idle_ns = self.holding.idles(now, self.gate.device_lanes.totals());
                let in_stream = self.gate.stream_gate().is_some();
                let is_over = idle_ns >= self.holding.patience(in_stream, utilization);
                if is_over && !self.keeps(&lanes, activity, idle_ns, was_kept) {
                    return;
                }
            }
            drop(inside);
            // Under other limits the lease may be too long.
            let changed = core::mem::replace(&mut self.changes, limit_changes(self.gate));
            let changed = changed != self.changes && self.holding.lease.id.is_none();
            if changed || self.holding.is_to_be_renewed(now) {
                self.remove_abandoned();
                utilization.add(self.holding.used);
                self.renew(account, neighbours, changed.then_some(now));
            }
            self.tell_end(now);
        }
    }

    /// Asks for the lease to go on. `changed`: the limits have then, and it may have nothing left of what it was
    /// granted.
    fn renew(&mut self, account: &mut Account, neighbours: &mut Neighbours, changed: Option<u64>) {
        self.tell_use("");
        let (lease, used) = (self.holding.lease, self.holding.take_used());
        let mut renewed = account.renew(lease, used);
        if let Some(now) = changed.filter(|_| renewed == lease) {
            renewed.end = now;
        }
        self.holding.renewed(clock::now(), renewed, changed.is_some());
        self.gate.tell_open(renewed.end.saturating_add(CATCH_UP_NS));
        self.gate.tenure.note(&renewed, neighbours);
    }

    /// Called when the lease has not been used for `idle_ns`: whether it is kept because no other session waits. Tells
    /// the daemon so, unless something was launched since the activity was `before`.
    fn keeps(&mut self, lanes: &LaneList, before: u64, idle_ns: u64, was_kept: bool) -> bool {
        let Some(gate) = self.gate.stream_gate() else { return false };
        let is_kept = self.holding.keeps(idle_ns, was_kept, self.may_be_kept());
        let Some(lease) = self.holding.lease.id.filter(|_| is_kept) else { return false };
        if !was_kept {
            // The next launch sees the request.
            lanes.iter().for_each(|lane| lane.ask());
        }
        gate.block().rests(lease);
        // A launch that does not see this yet is seen here.
        if lanes.activity() != before || !lanes.are_drained(self.gate) {
            gate.block().goes_on();
        }
        true
    }

    /// Whether no other session waits for the lease.
    fn may_be_kept(&self) -> bool {
        let gate = self.gate.stream_gate();
        self.holding.lease.id.zip(gate).is_some_and(|(lease, gate)| gate.block().may_keep(lease))
    }

    /// Publishes how much may be launched ahead: the time that the lease has left if it is this process's alone (other
    /// processes of the session use the same lease), and at most twice what has been done under it, because estimates
    /// may be wrong.
    pub(super) fn tell_end(&self, now: u64) {
        let gate = self.gate;
        let apart = !gate.ledger().is_used_by_siblings(now);
        let (_, done_ns) = gate.lanes().done_launches();
        let ahead = done_ns.saturating_sub(self.done_before_ns).saturating_mul(2);
        let end = self.holding.lease.end.min(now.saturating_add(ahead));
        gate.tenure.end.store(if apart { end } else { now }, Ordering::Relaxed);
    }

    /// Keeps the gate open until something has begun, so that streams and waiting threads are not starved by leases
    /// that end before they see the open gate. `before`: what had begun before the gate was opened.
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
        self.holding.lease.id.zip(gate).is_some_and(|(lease, gate)| gate.block().is_stopped(lease))
    }

    /// Sleeps until `until`, or until the lease is ended early. While threads wait for the budget, returns what is done
    /// to it.
    fn sleep(&mut self, until: u64) {
        let gate = self.gate;
        loop {
            let now = clock::now();
            let left = until.saturating_sub(now).max(1);
            if let Some(stream_gate) = gate.stream_gate() {
                let rings = stream_gate.block().rings();
                let ends_soon = self.holding.lease.end.saturating_sub(now) < SEE_PROGRESS_NS;
                if ends_soon {
                    self.see_progress(now);
                    gate.tell_collectives();
                }
                if !self.is_stopped() && !gate.budget.is_wanted() {
                    let most = if ends_soon { left.min(PROGRESS_NS) } else { left };
                    stream_gate.block().wait(rings, Duration::from_nanos(most));
                    // A late end of an earlier lease has closed the gate.
                    if stream_gate.block().rings() != rings {
                        let _ = stream_gate.open(self.holding.lease.id);
                    }
                }
            } else {
                gate.budget.sleep_unless_wanted(left);
            }
            let left = until.saturating_sub(clock::now());
            let is_other = self.is_stopped() || self.holding.is_kept && !self.may_be_kept();
            if left == 0 || is_other || self.changes != limit_changes(gate) {
                return;
            }
            if gate.budget.is_wanted() {
                clock::sleep(left.min(BUDGET_NS));
                self.give_back_unneeded();
            }
        }
    }

    /// Records when work was last seen to be done; returns the progress and that time.
    pub(super) fn see_progress(&mut self, now: u64) -> (u64, u64) {
        let done = self.gate.lanes().progress();
        if done != self.progressed.0 {
            self.progressed = (done, now);
        }
        self.progressed
    }

    /// When the governor checks again (ns).
    fn next_look(&self, now: u64) -> u64 {
        let in_stream = self.gate.stream_gate().is_some();
        if in_stream && self.gate.collectives.catch_up() {
            now.saturating_add(POLL_NS).min(self.holding.next())
        } else {
            self.holding.sleeps_until(now, in_stream)
        }
    }

    /// Returns what lanes have taken of the budget and do not need.
    pub(super) fn give_back_unneeded(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let Some(_pin) = gate.governors().try_enter() else { return };
        lanes.iter().for_each(|lane| lane.give_back_unneeded(gate));
    }

    /// Destroys the events of lanes whose threads have ended and whose work is done.
    pub(super) fn remove_abandoned(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let gone: Vec<_> = lanes.iter().filter(|lane| lane.is_abandoned()).collect();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let governors = gate.governors();
        let Some(_pin) = governors.try_enter().filter(|_| !gone.is_empty()) else { return };
        gate.tell_collectives();
        for lane in gone.iter().filter(|lane| lane.is_over(gate)) {
            lane.give_all_back(&gate.budget);
            gate.device_lanes.retire(lane);
            lane.destroy_events();
        }
    }
}

/// How often the session's limits have changed.
fn limit_changes(gate: &Gate) -> u32 {
    gate.ledger().page().map_or(0, |page| page.limit_changes.load(Ordering::Acquire))
}
