//! Reports: what is charged for them, and for time without one. The daemon passes each worker's report to
//! [`Scheduler::report`].

use crate::audit::Claim;
use crate::density::Interval;
use crate::lease::Held;
use crate::roster::Worker;
use crate::scheduler::Scheduler;
use crate::tuning::MESSAGE_NS;
use crate::types::{LeaseId, Paid, ScheduleError, SessionId, Told, WorkerId, share_of};

/// A report on a lease, as far as it is trusted.
struct Said {
    told: Told,
    /// The estimate, corrected by the known error of the worker's estimates (ns).
    calibrated_ns: u64,
    /// The use if the worker had the device to itself (ns).
    alone_ns: u64,
}

impl Said {
    fn new(told: Told, worker: &Worker) -> Self {
        let calibrated_ns = worker.density.calibrated(told.estimated_ns).min(told.held_ns);
        Self { told, calibrated_ns, alone_ns: told.estimated_ns.max(told.backlogged_ns) }
    }

    /// The interval from which the worker's class is learned. Time in which the lease was kept because nobody waited
    /// says nothing about the worker's use of the device.
    fn teach(&self, worker: &mut Worker, held: Held, now: u64) {
        let company = held.company;
        let worked_ns = if company.others > 0 { self.calibrated_ns } else { self.alone_ns };
        let held_ns = self.told.held_ns - self.told.idle_ns;
        let backlogged_ns = self.told.backlogged_ns.min(held_ns);
        let seen = Interval { held_ns, worked_ns, backlogged_ns, company };
        let busy = seen.backlogged_ns / 9 >= seen.held_ns / 10;
        if seen.company.others == 0 && !seen.company.shared && busy {
            worker.density.calibrate(seen.held_ns, self.told.estimated_ns);
        }
        worker.density.observe(seen, now);
    }
}

impl Scheduler {
    /// Records a worker's use of its lease since its last report. Returns whether it holds, or held, that lease: a late
    /// or repeated report changes nothing.
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
        let own = self.roster.worker(worker).ok_or(ScheduleError::UnknownWorker(worker))?;
        let Some(held) = own.held.filter(|held| held.lease == lease) else { return Ok(false) };
        let session = own.session;
        self.roster.settle(session, now);
        let measured = now.saturating_sub(held.told_at);
        let Some(own) = self.roster.worker_mut(worker) else { return Ok(false) };
        let said = Said::new(told.at_most(measured), own);
        let (used, claim) = self.used(worker, session, held, &said, now);
        if let Some(own) = self.roster.worker_mut(worker).filter(|_| !held.phase.revoked) {
            said.teach(own, held, now);
        }
        self.roster.charge(worker, used, held.paid, false);
        let own = self.roster.worker_mut(worker);
        let more = own.map_or(0, |own| own.density.launched(told.launches));
        if let Some(state) = self.roster.session_mut(session) {
            state.launches = state.launches.saturating_add(more);
        }
        self.claim(worker, held, claim, now);
        let company = self.roster.company(worker);
        let believed = !self.trust.is_found_out(session);
        if let Some(own) = self.roster.held_mut(worker) {
            own.told(company, now);
            own.idle = believed && said.told.held_ns > 0 && said.told.idle_ns == said.told.held_ns;
        }
        if told.done {
            if let Some(past) = now.checked_sub(held.ends_at)
                && !held.phase.passed
                && let Some(own) = self.roster.worker_mut(worker)
            {
                own.ran_past(past);
            }
            self.roster.release(worker, now);
        }
        self.roster.settle(session, now);
        Ok(true)
    }

    /// The charge for a report, and its claim for the audit.
    fn used(
        &self,
        worker: WorkerId,
        session: SessionId,
        held: Held,
        said: &Said,
        now: u64,
    ) -> (u64, Claim) {
        let measured = now.saturating_sub(held.told_at);
        let shared = held.company.shared;
        // Time that the report leaves out is silence.
        let silent = measured.saturating_sub(said.told.held_ns);
        let silent = silent.saturating_sub(MESSAGE_NS.min(measured / 4));
        let said_ns = match self.roster.worker(worker) {
            // A gang pays for what it keeps from others, whichever of its devices works; those that hold at once, for
            // their part each. What they say tells little: their work waits for other devices.
            Some(own)
                if self.roster.is_of_several(worker)
                    && (!shared || own.density.is_chosen_to_overlap()) =>
            {
                measured / (held.company.others + 1)
            }
            _ if shared => said.calibrated_ns.saturating_add(silent),
            _ => said.alone_ns.saturating_add(silent),
        };
        let charged_ns = if held.phase.revoked {
            // Others went on without this worker, so its report about that time does not count.
            held.unreported_ns(now)
        } else if self.trust.is_found_out(session) {
            measured
        } else {
            said_ns
        };
        let queued_ns = said.told.backlogged_ns;
        let wanted_ns = match self.roster.worker(worker) {
            Some(own) if !own.is_dense() => share_of(queued_ns, own.density.assumed_ppm()) / 2,
            _ => queued_ns,
        };
        let held_ns = measured;
        let claim =
            Claim { held_ns, said_ns, charged_ns, queued_ns, wanted_ns, ..Claim::default() };
        (charged_ns, claim)
    }

    /// Charges a worker's reported use of the device outside of leases, for work that its session's work on another
    /// device waited for. At most the time since its last lease counts.
    pub fn used_outside(&mut self, worker: WorkerId, used_ns: u64, now: u64) {
        let Some(own) = self.roster.worker(worker).filter(|own| own.held.is_none()) else {
            return;
        };
        let used = used_ns.min(now.saturating_sub(own.served_at));
        self.settle_of(worker, now);
        self.roster.charge(worker, used, Paid::Own, true);
        self.settle_of(worker, now);
    }

    /// Records how much work a worker had queued when its last lease ended. A program that waits for its results has
    /// varying amounts, so the recent maximum counts.
    pub fn has_queued(&mut self, worker: WorkerId, queued_ns: u64) {
        if let Some(own) = self.roster.worker_mut(worker) {
            own.queued_ns = queued_ns.max(own.queued_ns - own.queued_ns / 8);
        }
    }

    /// Records that a worker says that all work of its lease is done. Others continue at once. Its session pays until
    /// the report arrives, which is awaited like that of a stopped lease. Returns whether the worker holds the lease.
    pub fn ended(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> bool {
        let Some(own) = self.roster.worker_mut(worker) else { return false };
        let Some(held) = own.held.as_mut().filter(|held| held.lease == lease) else {
            return false;
        };
        let past = now.checked_sub(held.ends_at);
        if !held.end(now) {
            return false;
        }
        own.active_until = Some(now);
        past.into_iter().for_each(|past| own.ran_past(past));
        true
    }

    /// Takes back a grant that has not reached its worker: it was not used, and costs nothing.
    pub fn take_back(&mut self, worker: WorkerId, lease: LeaseId, now: u64) {
        if let Some(held) = self.roster.held_mut(worker).filter(|held| held.lease == lease) {
            held.told_at = now;
            self.stop(worker, now);
        }
    }

    /// Ends a lease without a report: all of the time until now is charged.
    pub fn end_unreported(&mut self, worker: WorkerId, lease: LeaseId, now: u64) {
        if self.roster.held(worker).is_some_and(|held| held.lease == lease) {
            self.stop(worker, now);
        }
    }
}
