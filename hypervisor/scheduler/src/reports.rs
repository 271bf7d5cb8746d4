//! Reports, and what is charged for the time that none covers.

use super::audit::Claim;
use super::density::Interval;
use super::worker::Held;
use super::{LeaseId, ScheduleError, Scheduler, Told, WorkerId, share_of};

impl Scheduler {
    /// The worker reports how it used its lease since its last report. Returns whether it holds, or
    /// held, that lease: a late or repeated report changes nothing.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn report(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        told: Told,
        now: u64,
    ) -> Result<bool, ScheduleError> {
        let session = self.session_of(worker)?;
        let Some(held) = self.held(worker).filter(|held| held.lease == lease) else {
            return Ok(false);
        };
        self.settle(session, now);
        let measured = now.saturating_sub(held.told_at);
        let done = told.done;
        let told = told.at_most(measured);
        let company = held.company;
        let tuning = self.tuning;
        let Some(state) = self.workers.get(&worker) else { return Ok(false) };
        let calibrated = state.density.calibrated(told.estimated_ns).min(told.held_ns);
        let alone = told.estimated_ns.max(told.backlogged_ns);
        let said = if company.shared { calibrated } else { alone };
        // Time that the report leaves out is silence.
        let silent = measured.saturating_sub(told.held_ns);
        let silent = silent.saturating_sub(tuning.message_ns.min(measured / 4));
        let used = match held {
            // Others went on without this worker, so its report about that time does not count.
            Held { revoked: true, .. } => held.unreported_ns(now),
            _ if self.is_found_out(session) => measured,
            // It keeps others off all of its devices, whichever of them works.
            _ if !company.shared && self.is_of_several(worker) => measured,
            _ => said.saturating_add(silent),
        };
        let Some(state) = self.workers.get_mut(&worker) else { return Ok(false) };
        let turn = state.takes_turns;
        let wanted = share_of(told.backlogged_ns, state.density.assumed_ppm());
        let claim = Claim {
            held_ns: measured,
            said_ns: said.saturating_add(silent),
            charged_ns: used,
            queued_ns: told.backlogged_ns,
            wanted_ns: if state.density.is_dense() { told.backlogged_ns } else { wanted / 2 },
            ..Claim::default()
        };
        if !held.revoked {
            let worked_ns = if company.others > 0 { calibrated } else { alone };
            // What was kept because nobody waited says nothing of how the device would be used.
            let held_ns = told.held_ns - told.idle_ns;
            let backlogged_ns = told.backlogged_ns.min(held_ns);
            let busy = backlogged_ns / 9 >= held_ns / 10;
            if company.others == 0 && !company.shared && busy {
                state.density.calibrate(held_ns, told.estimated_ns);
            }
            let seen = Interval { held_ns, worked_ns, backlogged_ns, company };
            state.density.observe(seen, now, &tuning);
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.charge(used, held.paid, turn);
        }
        if let Some(state) = self.workers.get_mut(&worker) {
            state.charged_ns = state.charged_ns.saturating_add(used);
        }
        if !held.revoked {
            self.claim(worker, held, claim, now);
        }
        self.told(worker, now);
        let believed = !self.is_found_out(session);
        if let Some(held) = self.workers.get_mut(&worker).and_then(|state| state.held.as_mut()) {
            held.idle = believed && told.held_ns > 0 && told.idle_ns == told.held_ns;
        }
        if done {
            if let Some(past) = now.checked_sub(held.ends_at)
                && !held.passed
                && let Some(state) = self.workers.get_mut(&worker)
            {
                state.ran_past(past.min(limits::turns::LONGEST_LEASE_NS));
            }
            self.release(worker, now);
        }
        self.settle(session, now);
        Ok(true)
    }

    /// The worker says that it used the device outside of leases, because work of its session on another device waited
    /// for it. No more counts than the time since its last lease.
    pub fn used_outside(&mut self, worker: WorkerId, used_ns: u64, now: u64) {
        let Some(state) = self.workers.get_mut(&worker).filter(|state| state.held.is_none()) else {
            return;
        };
        let used = used_ns.min(now.saturating_sub(state.served_at));
        state.charged_ns = state.charged_ns.saturating_add(used);
        let session = state.session;
        self.settle(session, now);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.charge_more(used, super::Paid::Own, true);
        }
        self.settle(session, now);
    }

    /// The worker says how much it had queued when its last lease ended. A program that waits for its results has now
    /// more of it and now less: what counts is the most lately.
    pub fn has_queued(&mut self, worker: WorkerId, queued_ns: u64) {
        if let Some(state) = self.workers.get_mut(&worker) {
            state.queued_ns = queued_ns.max(state.queued_ns - state.queued_ns / 8);
        }
    }

    /// The worker says that all work of its lease is done. Others go on at once. Its session pays
    /// until the report comes, which is awaited as that of a lease that was stopped. Returns whether
    /// the worker holds the lease.
    pub fn ended(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> bool {
        let Some(state) = self.workers.get_mut(&worker) else { return false };
        if let Some(held) = state.held.as_mut().filter(|held| held.lease == lease && held.runs_on) {
            (held.runs_on, held.ends_at) = (false, now);
        }
        let is_held = |held: &&mut Held| held.lease == lease && !held.revoked && !held.passed;
        let Some(held) = state.held.as_mut().filter(is_held) else { return false };
        let past = now.checked_sub(held.ends_at);
        if !held.stopped {
            held.ends_at = now;
        }
        held.passed = true;
        held.keeps_away(false, now);
        state.active_until = Some(now);
        if let Some(past) = past {
            state.ran_past(past.min(limits::turns::LONGEST_LEASE_NS));
        }
        true
    }

    /// A grant has not reached its worker: it was not used, and costs nothing.
    pub fn take_back(&mut self, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(state) = self.workers.get_mut(&worker)
            && let Some(held) = state.held.as_mut().filter(|held| held.lease == lease)
        {
            held.told_at = now;
            self.stop(worker, now);
        }
    }

    /// A lease ends without a report: all of the time until now is charged.
    pub fn end_unreported(&mut self, worker: WorkerId, lease: LeaseId, now: u64) {
        if self.held(worker).is_some_and(|held| held.lease == lease) {
            self.stop(worker, now);
        }
    }

    /// Begins a new interval of the worker's lease.
    pub(super) fn told(&mut self, worker: WorkerId, now: u64) {
        let company = self.company(worker);
        if let Some(held) = self.workers.get_mut(&worker).and_then(|state| state.held.as_mut()) {
            (held.told_at, held.company, held.kept_ns) = (now, company, 0);
        }
    }

    /// Ends the worker's lease and its ask. The lease's unreported time is charged as used.
    pub(super) fn stop(&mut self, worker: WorkerId, now: u64) {
        let Some(state) = self.workers.get(&worker) else { return };
        let (session, held, turn) = (state.session, state.held, state.takes_turns);
        self.asks_no_more(worker);
        self.forget_aside(worker);
        let Some(held) = held else { return };
        self.settle(session, now);
        let measured = held.unreported_ns(now);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.charge(measured, held.paid, turn);
        }
        if let Some(state) = self.workers.get_mut(&worker) {
            state.charged_ns = state.charged_ns.saturating_add(measured);
        }
        if !held.revoked {
            let all = Claim { held_ns: measured, said_ns: measured, ..Claim::default() };
            self.claim(worker, held, Claim { charged_ns: measured, ..all }, now);
        }
        self.release(worker, now);
        self.settle(session, now);
    }

    /// Ends the worker's lease. Its use has been charged before.
    pub(super) fn release(&mut self, worker: WorkerId, now: u64) {
        let held = self.holding.remove(&worker);
        if let Some(state) = self.workers.get_mut(&worker) {
            if let Some(session) = self.sessions.get_mut(&state.session).filter(|_| held) {
                session.holding = session.holding.saturating_sub(1);
                session.may_pay_sooner = [true; 2];
            }
            state.held = None;
            state.served_at = now;
            state.active_until = Some(now);
        }
    }
}
