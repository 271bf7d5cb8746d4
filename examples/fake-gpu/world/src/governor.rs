//! A process's limiter on one device: what its governor does at each moment.
//!
//! Checks, renewals, patience, use, outstanding work and the back-off from a daemon that is gone are `limiter-core`'s;
//! the own account is the page's ledger. How a governor waits for an answer, and what it does around a drain, is
//! modelled here after `governor` and `account` of the limiter, which need threads and the driver.

use limiter_core::tuning::LONGEST_LOOK_NS;
use limiter_core::{Absence, Lease, Tenure, Usage, Used};
use limits::turns;
use scheduler::{Grant, LeaseId, Told};
use session::ledger::{Ledger, Turn};

use crate::node::{Answer, Event, Kind, Message, MessageKind, Phase};
use crate::scenario::Words;
use crate::world::World;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
/// As in the limiter: how long a request may stay open, how much later its answer may come, and how long an answer that
/// is due at once may take.
pub(crate) const POLL_NS: u64 = 15 * MS;
const GRACE_NS: u64 = 20 * MS;
const AT_ONCE_NS: u64 = 25 * MS;
/// How often a waiting governor checks whether it is still wanted.
const LOOK_NS: u64 = 10 * MS;
/// How often the use by work that still runs is reported.
const TELL_NS: u64 = 10 * MS;
/// How often a drain checks whether all work is done.
const DRAIN_LOOK_NS: u64 = 30 * US;
/// How long a collective is stuck before other devices are called.
const STUCK_SOON_NS: u64 = 2 * MS;
/// How long work may stand still while a thread waits at the gate, before it is assumed to wait for that thread: at
/// first, and if that was so recently.
const STUCK_NS: u64 = 1_000 * MS;
const STUCK_AGAIN_NS: u64 = 50 * MS;
/// How long the daemon takes to see a change of a gate page.
pub(crate) const PAGE_NS: u64 = 50 * US;

impl World {
    /// A governor wakes up.
    pub(crate) fn govern(&mut self, g: usize) {
        match self.governors[g].phase {
            Phase::Idle | Phase::Dead => {}
            Phase::Asking | Phase::Renewing => self.lost(g),
            Phase::Own | Phase::Withheld => self.look_around(g),
            Phase::Open => self.look(g),
            Phase::Draining => self.drain(g),
        }
    }

    /// Work has arrived at a gate.
    pub(crate) fn want(&mut self, g: usize) {
        if self.governors[g].phase == Phase::Idle && self.governors[g].is_wanted() {
            self.ask(g);
        }
    }

    /// Asks for a lease: the daemon, or the own account if the daemon is gone.
    fn ask(&mut self, g: usize) {
        let now = self.now;
        if self.governors[g].absence.is_some() {
            return self.begin_own(g);
        }
        let governor = &mut self.governors[g];
        governor.phase = Phase::Asking;
        governor.before = governor.totals;
        let burst = burst_ns(governor.in_stream, self.sessions[governor.tenant].quota);
        let message = Message {
            call: governor.call + 1,
            kind: MessageKind::Ask,
            report: governor.report.take(),
            outside_ns: governor.outside_ns + governor.own_ns.min(burst),
            queued_ns: governor.queued_ns,
        };
        (governor.outside_ns, governor.own_ns) = (0, 0);
        self.send(g, message);
        self.arm(g, now + POLL_NS + GRACE_NS);
    }

    fn send(&mut self, g: usize, message: Message) {
        self.governors[g].call = message.call;
        let way = self.way();
        if self.daemon.is_some() {
            self.plan(self.now + way, Event::Arrives(g, message));
        } else if message.kind != MessageKind::Tell {
            self.plan(self.now + way, Event::Answers(g, message.call, Answer::Lost));
        }
    }

    /// The daemon could not be reached, or has not answered in time.
    fn lost(&mut self, g: usize) {
        let now = self.now;
        let governor = &mut self.governors[g];
        let absence = governor.absence.get_or_insert(Absence::begin(now));
        absence.fails(now, false);
        // Ignore a late answer.
        governor.call += 1;
        match governor.phase {
            Phase::Asking => {
                if governor.gate_open {
                    // The daemon has opened the gate, but its answer does not come: the lease is returned.
                    governor.gate_open = false;
                }
                self.begin_own(g);
            }
            Phase::Renewing => {
                // Sent when the daemon answers again; otherwise all of the lease would count as used.
                let told = governor.told.take();
                governor.report = told.map(|(lease, told)| (lease, Told { done: true, ..told }));
                let lease = match self.try_own(g) {
                    Some(length) => Lease { shared: true, ..Lease::own(now, length, false) },
                    None => Lease { id: None, ..Lease::own(now, 0, false) },
                };
                self.renewed(g, lease);
            }
            _ => {}
        }
    }

    /// An answer has arrived.
    pub(crate) fn answered(&mut self, g: usize, call: u64, answer: Answer) {
        let now = self.now;
        if self.governors[g].call != call {
            // The caller had hung up, so a grant is returned.
            if let Answer::Granted(grant, opened) = answer {
                let gate = self.governors[g].gate();
                let holds = self.governors[g].tenure.as_ref().is_some_and(|t| t.lease.id.is_some());
                if !holds {
                    self.governors[g].gate_open &= self.governors[g].tenure.is_some();
                }
                self.give_back(gate, grant.lease, opened.is_some());
            }
            return;
        }
        match (self.governors[g].phase, answer) {
            (Phase::Asking | Phase::Renewing, Answer::Lost) => self.lost(g),
            (Phase::Asking, Answer::NotYet(withheld)) => {
                if withheld {
                    self.governors[g].phase = Phase::Withheld;
                    self.arm(g, now + LOOK_NS);
                } else if self.governors[g].is_wanted() {
                    self.ask(g);
                } else {
                    self.rest(g);
                }
            }
            (Phase::Asking, Answer::Granted(grant, opened)) => {
                let begun = opened.unwrap_or(now);
                match self.believed(g, grant, begun) {
                    Some(lease) => self.begin(g, lease),
                    None => {
                        let gate = self.governors[g].gate();
                        self.governors[g].gate_open = false;
                        self.give_back(gate, grant.lease, opened.is_some());
                        // Time that the own account granted meanwhile does not count against the daemon.
                        let only =
                            self.ledger(g, |ledger, _| ledger.is_granted_elsewhere_only(now));
                        let absence = &mut self.governors[g].absence;
                        absence.get_or_insert(Absence::begin(now)).fails(now, only);
                        self.begin_own(g);
                    }
                }
            }
            (Phase::Renewing, Answer::Renewed(renewed)) => {
                let present = self.governors[g].tenure.as_ref().map(|tenure| tenure.lease);
                let renewed = renewed.and_then(|grant| self.believed(g, grant, now));
                if let Some(lease) = renewed.or(present) {
                    self.renewed(g, lease);
                }
            }
            _ => {}
        }
    }

    /// Checks a grant; `None` if it is not trusted.
    fn believed(&mut self, g: usize, grant: Grant, begun: u64) -> Option<Lease> {
        let now = self.now;
        let several = self.is_of_several(g);
        let allowed = self.ledger(g, |ledger, _| ledger.allowed_elsewhere(now));
        let length = allowed.min(grant.length_ns.min(turns::LONGEST_LEASE_NS));
        let (id, end) = (Some(grant.lease.0), begun + length);
        let Grant { shared, overlaps, .. } = grant;
        let own = Lease::own(begun, 0, several);
        (allowed >= MS).then_some(Lease { end, id, shared, overlaps, ..own })
    }

    /// Begins a lease: the gate is opened, or already was.
    fn begin(&mut self, g: usize, lease: Lease) {
        let now = self.now;
        let left = !self.governors[g].begun.is_empty();
        let governor = &mut self.governors[g];
        governor.shared = governor.neighbours.note(&lease, now);
        let totals = if lease.begun < now { governor.before } else { governor.totals };
        let usage = if left && lease.begun == now {
            Usage::with_rest(lease.begun, totals)
        } else {
            Usage::new(lease.begun, totals)
        };
        // Work that was called for continues under the lease.
        governor.outside_ns +=
            governor.busy_from.map_or(0, |from| lease.begun.saturating_sub(from));
        let tenure = Tenure::new(now, lease, usage);
        let at = tenure.sleeps_until(now, governor.in_stream);
        governor.tenure = Some(tenure);
        governor.phase = Phase::Open;
        if is_closed(governor.closed, lease) {
            return self.close(g);
        }
        governor.gate_open = true;
        self.arm(g, at);
        self.pump(g);
        self.mark_work(g);
    }

    /// The governor checks the program while the gate is open.
    fn look(&mut self, g: usize) {
        let now = self.now;
        self.mark_work(g);
        let governor = &mut self.governors[g];
        let gate = governor.gate();
        let Some(tenure) = governor.tenure.as_mut() else { return };
        if now >= tenure.lease.end || is_closed(governor.closed, tenure.lease) {
            return self.close(g);
        }
        let was_kept = tenure.is_kept;
        let goes_on = tenure.goes_on(governor.activity);
        tenure.look(now, governor.totals, governor.busy_from);
        let page = self.pages.entry(gate).or_default();
        if goes_on {
            page.rests = None;
        } else if governor.held.is_empty() && governor.begun.is_empty() {
            let idle_ns = tenure.idles(now, governor.totals);
            if idle_ns >= tenure.patience(governor.in_stream, &governor.utilization) {
                let id = tenure.lease.id.map(LeaseId).filter(|_| governor.in_stream);
                let may_be_kept = id.is_some() && page.may_keep == id;
                let kept = governor.in_stream && tenure.keeps(idle_ns, was_kept, may_be_kept);
                if !kept {
                    return self.close(g);
                }
                page.rests = id;
            }
        }
        if tenure.is_to_be_renewed(now) {
            return self.renew(g);
        }
        let at = tenure.sleeps_until(now, governor.in_stream);
        self.arm(g, at);
    }

    /// Asks to extend the lease.
    fn renew(&mut self, g: usize) {
        let now = self.now;
        let governor = &mut self.governors[g];
        let Some(tenure) = governor.tenure.as_mut() else { return };
        governor.utilization.add(tenure.used);
        let (lease, used) = (tenure.lease, tenure.take_used());
        match lease.id.map(LeaseId) {
            Some(id) => {
                let report = Some((id, told(governor.words, used, false)));
                governor.phase = Phase::Renewing;
                governor.told = report;
                let message = Message {
                    call: governor.call + 1,
                    kind: MessageKind::Renew(id),
                    report,
                    outside_ns: 0,
                    queued_ns: governor.queued_ns,
                };
                self.note_elsewhere(g, used);
                self.send(g, message);
                self.arm(g, now + AT_ONCE_NS);
            }
            None => {
                let charge = used.alone();
                governor.own_ns += charge;
                let turn = self.ledger(g, |ledger, slot| ledger.renew_lease(slot, now, charge));
                let back = self.daemon_is_back(g);
                let renewed = match turn {
                    Turn::Granted(length) if !back => Lease { end: now + length, ..lease },
                    _ => lease,
                };
                self.renewed(g, renewed);
            }
        }
    }

    /// Records the extended lease.
    fn renewed(&mut self, g: usize, lease: Lease) {
        let now = self.now;
        let governor = &mut self.governors[g];
        governor.phase = Phase::Open;
        governor.shared = governor.neighbours.note(&lease, now);
        let Some(tenure) = governor.tenure.as_mut() else { return };
        tenure.renewed(now, lease, false);
        if now >= lease.end || is_closed(governor.closed, lease) {
            return self.close(g);
        }
        let at = tenure.sleeps_until(now, governor.in_stream);
        self.arm(g, at);
        self.pump(g);
    }

    /// Closes the gate.
    pub(crate) fn close(&mut self, g: usize) {
        let now = self.now;
        let governor = &mut self.governors[g];
        governor.gate_open = false;
        governor.phase = Phase::Draining;
        if let Some(tenure) = governor.tenure.as_mut() {
            tenure.look(now, governor.totals, governor.busy_from);
        }
        self.pages.entry((governor.worker, governor.device)).or_default().rests = None;
        governor.closed_at = now;
        governor.told_at = now;
        self.pump(g);
        self.mark_work(g);
        if self.governors[g].begun.is_empty() {
            self.drained(g);
        } else {
            self.look_at_the_rest_later(g);
        }
    }

    /// Work has ended, or none was under way: tells the daemon if all is done.
    pub(crate) fn drained(&mut self, g: usize) {
        let governor = &self.governors[g];
        if governor.phase != Phase::Draining || !governor.begun.is_empty() {
            return;
        }
        let lease = governor.tenure.as_ref().and_then(|tenure| tenure.lease.id);
        if let Some(lease) = lease.filter(|_| governor.in_stream) {
            self.plan(self.now + PAGE_NS, Event::Ended(g, LeaseId(lease)));
        }
        let at = self.now + self.dice.up_to(DRAIN_LOOK_NS);
        self.arm(g, at);
    }

    /// The governor checks whether the remaining work is done.
    fn drain(&mut self, g: usize) {
        let now = self.now;
        let governor = &mut self.governors[g];
        let done = governor.begun.is_empty();
        let stuck = governor.begun.iter().all(|begun| matches!(begun.work.kind, Kind::Value(_)));
        let patience = if governor.dependent { STUCK_AGAIN_NS } else { STUCK_NS };
        if !done && stuck && governor.is_wanted() && now >= governor.closed_at + patience {
            self.glimpse(g);
        }
        let governor = &mut self.governors[g];
        if !done && now < governor.told_at + TELL_NS {
            self.call_others(g);
            return self.look_at_the_rest_later(g);
        }
        governor.told_at = now;
        self.mark_work(g);
        let governor = &mut self.governors[g];
        let Some(tenure) = governor.tenure.as_mut() else { return };
        let waits = governor.begun.iter().all(|begun| matches!(begun.work.kind, Kind::Value(_)));
        tenure.look_at_the_rest(now, governor.totals, waits && !done, governor.shared);
        if done {
            tenure.usage.drained(governor.totals);
        }
        governor.utilization.add(tenure.used);
        let (lease, used) = (tenure.lease, tenure.take_used());
        if done {
            governor.tenure = None;
        }
        match lease.id.map(LeaseId) {
            Some(id) => {
                let report = Some((id, told(governor.words, used, done)));
                if done {
                    governor.report = report;
                    governor.queued_ns = governor.held_ns;
                } else {
                    self.tell(g, report);
                }
                self.note_elsewhere(g, used);
            }
            None => {
                let charge = used.alone();
                governor.own_ns += charge;
                self.ledger(g, |ledger, slot| match done {
                    true => ledger.end_lease(slot, now, charge),
                    false => _ = ledger.renew_lease(slot, now, charge),
                });
                self.ring(g);
            }
        }
        if !done {
            return self.look_at_the_rest_later(g);
        }
        if self.governors[g].is_wanted() {
            self.ask(g);
        } else {
            self.rest(g);
        }
    }

    /// Plans the next check of remaining work: when it is stuck, or when its use is to be reported.
    fn look_at_the_rest_later(&mut self, g: usize) {
        if self.governors[g].phase == Phase::Draining {
            let every = if self.is_of_several(g) { STUCK_SOON_NS } else { TELL_NS };
            self.arm(g, self.now + every);
        }
    }

    /// No lease is wanted: sends unsent reports.
    fn rest(&mut self, g: usize) {
        let governor = &mut self.governors[g];
        governor.phase = Phase::Idle;
        let report = governor.report.take();
        self.disarm(g);
        if report.is_some() {
            self.tell(g, report);
        }
    }

    pub(crate) fn tell(&mut self, g: usize, report: Option<(LeaseId, Told)>) {
        let governor = &mut self.governors[g];
        let (call, kind) = (governor.call, MessageKind::Tell);
        let queued_ns = governor.queued_ns;
        let outside_ns = core::mem::take(&mut governor.outside_ns);
        self.send(g, Message { call, kind, report, outside_ns, queued_ns });
    }

    /// Asks the session's own account.
    fn begin_own(&mut self, g: usize) {
        let now = self.now;
        let turn = self.ledger(g, |ledger, slot| ledger.begin_lease(slot, now));
        match turn {
            Turn::Granted(length) => self.begin(g, Lease::own(now, length, false)),
            Turn::In(wait) => {
                self.governors[g].phase = Phase::Own;
                self.arm(g, now + wait.clamp(1, LOOK_NS));
            }
        }
    }

    fn try_own(&mut self, g: usize) -> Option<u64> {
        let now = self.now;
        match self.ledger(g, |ledger, slot| ledger.begin_lease(slot, now)) {
            Turn::Granted(length) => Some(length),
            Turn::In(_) => None,
        }
    }

    /// A governor that waits for its own account, or for a withheld device, checks again.
    fn look_around(&mut self, g: usize) {
        if !self.governors[g].is_wanted() {
            self.ledger(g, |ledger, slot| ledger.stop_waiting(slot));
            return self.rest(g);
        }
        self.daemon_is_back(g);
        self.ask(g);
    }

    /// Tries to reach a daemon that was gone, if that is due. Returns whether leases come from the daemon.
    fn daemon_is_back(&mut self, g: usize) -> bool {
        let (now, there) = (self.now, self.daemon.is_some());
        let absence = &mut self.governors[g].absence;
        match absence {
            Some(lost) if lost.is_over(now) && !there => lost.fails(now, false),
            Some(lost) if lost.is_over(now) => *absence = None,
            _ => {}
        }
        absence.is_none()
    }

    /// Wakes the session's other processes after the end of a lease of its own account.
    fn ring(&mut self, g: usize) {
        let (tenant, device) = (self.governors[g].tenant, self.governors[g].device);
        for other in 0..self.governors.len() {
            let sibling = &self.governors[other];
            if other != g
                && (sibling.tenant, sibling.device, sibling.phase) == (tenant, device, Phase::Own)
            {
                self.arm(other, self.now);
            }
        }
    }

    /// Records in the page what was used under a daemon's lease.
    fn note_elsewhere(&mut self, g: usize, used: Used) {
        let (now, shared) = (self.now, self.governors[g].shared);
        let sure = if shared { used.estimated_ns.min(used.held_ns) } else { used.alone() };
        self.ledger(g, |ledger, slot| {
            ledger.used_elsewhere(slot, now, used.needed_ns(), used.alone(), sure);
        });
    }

    fn ledger<T>(&mut self, g: usize, call: impl FnOnce(&mut Ledger<'_>, usize) -> T) -> T {
        let governor = &self.governors[g];
        let pages = &mut self.sessions[governor.tenant].pages;
        let page = pages.entry(governor.device).or_insert_with(session::layout::PageLayout::blank);
        call(&mut Ledger::new(page), governor.slot)
    }

    /// Records in the page until when the device may be working for the process, in case it dies.
    fn mark_work(&self, g: usize) {
        let governor = &self.governors[g];
        let open_ns = if governor.gate_open { LONGEST_LOOK_NS } else { 0 };
        let until = self.now + governor.totals.outstanding_ns + open_ns;
        let page = self.sessions[governor.tenant].pages.get(&governor.device);
        if let Some(slot) = page.and_then(|page| page.slots.get(governor.slot)) {
            slot.work_was_seen(slot.work(), until, false);
        }
    }

    fn is_of_several(&self, g: usize) -> bool {
        self.processes[self.governors[g].process].governors.len() > 1
    }
}

/// Whether the daemon has ended a lease early.
fn is_closed(closed: Option<LeaseId>, lease: Lease) -> bool {
    closed.is_some_and(|closed| lease.id == Some(closed.0))
}

/// The most that the daemon saves up for a session (ns).
fn burst_ns(in_stream: bool, quota: limits::ComputeLimit) -> u64 {
    let handover = if in_stream { turns::Handover::InStream } else { turns::Handover::OnThread };
    turns::burst_ns(quota.guaranteed_ppm(), handover)
}

/// A report, falsified as the session's `words` say.
fn told(words: Words, used: Used, done: bool) -> Told {
    let Used { held_ns, estimated_ns, backlogged_ns, idle_ns, launches } = used;
    match words {
        Words::True => Told { held_ns, estimated_ns, backlogged_ns, idle_ns, launches, done },
        Words::Idle => {
            let (estimated_ns, backlogged_ns, idle_ns) = (0, 0, held_ns);
            Told { held_ns, estimated_ns, backlogged_ns, idle_ns, launches, done }
        }
        Words::Half => {
            let (estimated_ns, backlogged_ns) = (estimated_ns / 2, backlogged_ns / 2);
            Told { held_ns, estimated_ns, backlogged_ns, idle_ns, launches, done }
        }
    }
}
