//! The scheduler of one device: its sessions and workers, and the calls by which the daemon adds, changes and removes
//! them. `decision` grants leases and `reports` charges them.

mod decision;
pub(crate) mod gang;
mod reports;
mod together;
pub(crate) mod view;

use limits::turns::Handover;
use limits::{ComputeLimit, Policy, Priority};

use crate::account::{Account, SavedBalance};
use crate::audit::Claim;
use crate::density::Class;
use crate::division::Division;
use crate::lease::Held;
use crate::preempt::{Next, anybody_waits};
use crate::roster::Roster;
use crate::rounds::Rounds;
use crate::trust::Trust;
use crate::types::{LeaseId, ScheduleError, SessionId, Way, WorkerId};
use crate::way::Choice;

/// Shares one device among sessions; see the crate's description.
#[derive(Debug, Default)]
pub struct Scheduler {
    roster: Roster,
    choice: Choice,
    trust: Trust,
    rounds: Rounds,
    division: Division,
    /// The session for which the device is reserved.
    reserved: Option<Reserved>,
    /// Whether nothing is granted.
    suspended: bool,
    /// Number of leases granted so far.
    leases: u64,
    /// Leases that were ended early and not yet returned by [`Self::to_stop`].
    stops: Vec<(WorkerId, LeaseId)>,
}

/// A reservation of the device for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reserved {
    session: SessionId,
    /// Until then others may have the device (ns).
    from: u64,
}

impl Scheduler {
    /// Makes sessions share the device in this way only, to compare the ways.
    pub fn share_only(&mut self, way: Way) {
        self.choice.only(way);
    }

    /// Adds a session with an empty account, or changes a known session's quota from now on. Savings and debts remain.
    /// If the session may have less than before, its leases end now, if they can be stopped, because they were granted
    /// for more.
    ///
    /// # Errors
    /// [`ScheduleError::NoShare`], [`ScheduleError::NotScheduled`].
    pub fn set_session(
        &mut self,
        session: SessionId,
        quota: ComputeLimit,
        now: u64,
    ) -> Result<(), ScheduleError> {
        if quota.policy == Policy::None {
            return Err(ScheduleError::NotScheduled);
        }
        if quota.share_ppm == 0 {
            return Err(ScheduleError::NoShare);
        }
        self.roster.settle(session, now);
        let Some(present) = self.roster.session_mut(session) else {
            self.roster.add(session, Account::new(quota, now));
            return Ok(());
        };
        let before = present.account.most_ppm();
        if *present.account.quota() != quota {
            self.choice.begin_anew();
        }
        present.account.set_quota(quota, now);
        if present.account.most_ppm() < before {
            self.stop_all_of(session, now);
        }
        Ok(())
    }

    /// Gives a new session the account that it had in an earlier scheduler, and what it has earned since `at`. Called
    /// after [`Self::set_session`].
    pub fn restore(&mut self, session: SessionId, left: SavedBalance, at: u64) {
        if let Some(session) = self.roster.session_mut(session) {
            session.account.restore(left, at);
        }
    }

    /// Removes a session's savings; debts remain. For a session that was not limited until now, and so has not been
    /// idle. Called after [`Self::set_session`].
    pub fn forget_savings(&mut self, session: SessionId) {
        if let Some(session) = self.roster.session_mut(session) {
            session.account.forget_savings();
        }
    }

    /// Sets a session's owner. If a session is found out, that also counts against the next sessions of its owner, so a
    /// new session is no fresh start.
    pub fn belongs_to(&mut self, session: SessionId, owner: u64, now: u64) {
        self.trust.belongs_to(&mut self.roster, session, owner, now);
    }

    /// Adds a worker to a session. A known worker keeps its state.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSession`].
    pub fn join(&mut self, worker: WorkerId, session: SessionId) -> Result<(), ScheduleError> {
        self.roster.session(session).ok_or(ScheduleError::UnknownSession(session))?;
        let distrusted = self.trust.is_found_out(session);
        if self.roster.join(worker, session)
            && let Some(worker) = self.roster.worker_mut(worker)
        {
            worker.density.distrust(distrusted);
        }
        Ok(())
    }

    /// Sets where a worker's gates are; initially they are on its threads.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn set_handover(
        &mut self,
        worker: WorkerId,
        handover: Handover,
    ) -> Result<(), ScheduleError> {
        let own = self.roster.worker_mut(worker).ok_or(ScheduleError::UnknownWorker(worker))?;
        own.handover = handover;
        own.density.lets_go(handover == Handover::InStream);
        Ok(())
    }

    /// Removes a worker. Its lease ends at once and is charged until now.
    pub fn leave(&mut self, worker: WorkerId, now: u64) {
        self.stop(worker, now);
        self.roster.leave(worker);
    }

    /// Removes the sessions that have no workers and owe nothing. Returns for each all time charged and the spare part
    /// of it (ns). A session that owes stays; otherwise leaving and returning would cancel the debt.
    pub fn forget_idle(&mut self, now: u64) -> Vec<(SessionId, u64, u64)> {
        let idle = self.roster.sessions().filter(|(_, session)| session.members.is_empty());
        let mut gone: Vec<SessionId> = idle.map(|(id, _)| id).collect();
        gone.sort_unstable();
        gone.retain(|&session| {
            self.roster.settle(session, now);
            self.roster.account(session).is_some_and(Account::is_settled_up)
        });
        let forgotten = |session| {
            let (charged_ns, spare_ns) = self.forget(session)?;
            Some((session, charged_ns, spare_ns))
        };
        gone.into_iter().filter_map(forgotten).collect()
    }

    /// Removes a session without workers, whatever it owes, for a caller that has no place for it. Returns all time
    /// charged and the spare part of it (ns).
    pub fn forget(&mut self, session: SessionId) -> Option<(u64, u64)> {
        let present = self.roster.session(session).filter(|own| own.members.is_empty())?;
        let charged = present.account.charged();
        let charged = (charged.all_ns, charged.spare_ns);
        self.roster.forget(session);
        self.trust.forget(session);
        Some(charged)
    }

    /// Ends all leases, charged until now, and drops all asks. For a caller that could not answer any worker for longer
    /// than leases last.
    pub fn dismiss_all(&mut self, now: u64) {
        let holding: Vec<WorkerId> = self.roster.holding().map(|(id, ..)| id).collect();
        holding.into_iter().for_each(|worker| self.stop(worker, now));
        let workers: Vec<WorkerId> = self.roster.workers().map(|(id, _)| id).collect();
        workers.into_iter().for_each(|worker| self.withdraw(worker, now));
    }

    /// Whether any worker holds a lease or asks.
    pub fn is_in_use(&self) -> bool {
        self.roster.any_asks() || self.roster.holding().next().is_some()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.roster.sessions().next().is_none()
    }

    /// The workers that hold a lease that is neither revoked nor passed, with their classes.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, Class)> {
        self.roster.holding().filter(|(_, _, held)| held.counts()).map(|(id, worker, _)| {
            (id, if worker.is_dense() { Class::Dense } else { Class::Sparse })
        })
    }

    /// Records that a worker wants the device. If it already holds a lease, the grant was lost or forgotten, and that
    /// lease ends now.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn ask(&mut self, worker: WorkerId, now: u64) -> Result<(), ScheduleError> {
        self.stop(worker, now);
        let (own, session) =
            self.roster.of_mut(worker).ok_or(ScheduleError::UnknownWorker(worker))?;
        if session.frozen {
            own.aside = true;
        } else {
            let session = own.session;
            self.roster.ask(worker, session, now);
        }
        Ok(())
    }

    /// Records that a worker no longer wants the device, or that its poll has ended. Ends no lease.
    pub fn withdraw(&mut self, worker: WorkerId, now: u64) {
        if self.roster.ask_no_more(worker)
            && let Some(worker) = self.roster.worker_mut(worker)
        {
            worker.active_until = Some(now);
        }
    }

    /// Freezes a session: it is granted nothing from now on. Its leases end now if they can be stopped (see
    /// [`Self::to_stop`]), and are not prolonged otherwise.
    ///
    /// The asks of its workers are kept aside. So for all decisions it is a session that does not ask, and others may
    /// use its time.
    pub fn freeze(&mut self, session: SessionId, now: u64) {
        let Some(state) = self.roster.session_mut(session).filter(|own| !own.frozen) else {
            return;
        };
        state.frozen = true;
        let asking = self.roster.members(session).filter(|(_, worker)| worker.asks);
        let asking: Vec<WorkerId> = asking.map(|(id, _)| id).collect();
        for worker in asking {
            self.withdraw(worker, now);
            if let Some(worker) = self.roster.worker_mut(worker) {
                worker.aside = true;
            }
        }
        self.stop_all_of(session, now);
    }

    /// Thaws a session: it is granted leases again. It asks anew like a session that was idle, but without savings: it
    /// was not idle by its own choice, yet the others should not pay for that. Debts remain.
    pub fn thaw(&mut self, session: SessionId, now: u64) {
        self.roster.settle(session, now);
        let Some(state) = self.roster.session_mut(session).filter(|own| own.frozen) else {
            return;
        };
        state.frozen = false;
        state.account.forget_savings();
        let aside = self.roster.members(session).filter(|(_, worker)| worker.aside);
        let aside: Vec<WorkerId> = aside.map(|(id, _)| id).collect();
        for worker in aside {
            // Cannot fail: a worker that leaves takes its ask along.
            let _ = self.ask(worker, now);
        }
    }

    /// Suspends the device: nothing is granted from now on, because the device is faulty or a process outside the
    /// sessions uses it. Leases end now if they can be stopped (see [`Self::to_stop`]), and are not prolonged
    /// otherwise.
    ///
    /// Workers keep asking. A gang that uses the device gets no leases on its other devices, and does not keep other
    /// sessions from those.
    pub fn suspend(&mut self, now: u64) {
        if core::mem::replace(&mut self.suspended, true) {
            return;
        }
        let holding: Vec<WorkerId> = self.roster.holding().map(|(id, ..)| id).collect();
        holding.into_iter().for_each(|worker| self.stop_early(worker, Next::InTurn, now));
    }

    /// Resumes the device: leases are granted again. Debts remain. Savings are dropped, because nobody could use them,
    /// and sessions that were idle meanwhile should not come first.
    pub fn resume(&mut self, now: u64) {
        if !core::mem::replace(&mut self.suspended, false) {
            return;
        }
        let sessions: Vec<SessionId> = self.roster.sessions().map(|(id, _)| id).collect();
        for session in sessions {
            self.roster.settle(session, now);
            self.forget_savings(session);
        }
    }

    /// Leases that their workers may keep from now on while they do not use them, because nobody else holds or waits,
    /// or may not any more. Each change is named once. To be called after every change, before [`Self::decide`] and after
    /// it.
    pub fn to_keep(&mut self, now: u64) -> Vec<(WorkerId, LeaseId, bool)> {
        let alone = self.roster.holding().count() == 1 && !anybody_waits(&self.roster, now);
        let stoppable = self.roster.holding().filter_map(|(id, worker, _)| {
            // A lease for which nobody has to wait costs nobody anything.
            let may = (alone || self.roster.overlaps(id)) && !self.roster.is_of_several(id);
            Some((id, worker.stoppable()?, may))
        });
        let changes = stoppable.filter(|(_, held, may)| held.may_keep != *may);
        let changes: Vec<(WorkerId, LeaseId, bool)> =
            changes.map(|(id, held, may)| (id, held.lease, may)).collect();
        for &(worker, _, may) in &changes {
            if let Some(held) = self.roster.held_mut(worker) {
                held.may_keep = may;
            }
        }
        changes
    }

    fn stop_all_of(&mut self, session: SessionId, now: u64) {
        let members: Vec<WorkerId> = self.roster.members(session).map(|(id, _)| id).collect();
        members.into_iter().for_each(|worker| self.stop_early(worker, Next::InTurn, now));
    }

    /// Ends a worker's lease early, if it can be stopped.
    fn stop_early(&mut self, worker: WorkerId, next: Next, now: u64) {
        let Some((own, session)) = self.roster.of_mut(worker) else { return };
        let low = session.account.quota().priority == Priority::Low;
        let can_stop = own.stoppable().is_some_and(|held| held.ends_at > now);
        if let Some(held) = own.held.as_mut().filter(|_| can_stop) {
            held.stop(low || next == Next::Preferred, now);
            self.stops.push((worker, held.lease));
        }
    }

    /// Ends the worker's lease and its ask. The lease's unreported time is charged as used.
    fn stop(&mut self, worker: WorkerId, now: u64) {
        self.roster.ask_no_more(worker);
        let Some(held) = self.roster.held(worker) else { return };
        self.settle_of(worker, now);
        let measured = held.unreported_ns(now);
        self.roster.charge(worker, measured, held.paid, false);
        let all = Claim { held_ns: measured, said_ns: measured, ..Claim::default() };
        self.claim(worker, held, Claim { charged_ns: measured, ..all }, now);
        self.roster.release(worker, now);
        self.settle_of(worker, now);
    }

    fn settle_of(&mut self, worker: WorkerId, now: u64) {
        if let Some(session) = self.roster.worker(worker).map(|own| own.session) {
            self.roster.settle(session, now);
        }
    }

    /// Takes down what is said of the time since the last report, unless others went on without this worker.
    fn claim(&mut self, worker: WorkerId, held: Held, claim: Claim, now: u64) {
        if let Some(own) = self.roster.worker(worker).filter(|_| !held.phase.revoked) {
            self.trust.claim(own, held, claim, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Paid, Told};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_session_whose_lease_ended_early_is_looked_at_anew() {
        let session = SessionId(1);
        let mut scheduler = Scheduler::default();
        scheduler.set_session(session, ComputeLimit::fixed(50_000), 0).unwrap();
        for worker in 1..=3 {
            scheduler.join(WorkerId(worker), session).unwrap();
        }
        let done = Told { held_ns: MS, estimated_ns: MS / 10, ..Told::UNUSED };
        let has = |scheduler: &mut Scheduler, worker, at| {
            scheduler.ask(WorkerId(worker), at).unwrap();
            let [grant] = scheduler.decide(at)[..] else { panic!("one is granted") };
            assert_eq!(grant.worker, WorkerId(worker));
            grant.lease
        };
        let lease = has(&mut scheduler, 2, 50 * MS);
        scheduler.report(WorkerId(2), lease, done, 51 * MS).unwrap();
        let lease = has(&mut scheduler, 1, 60 * MS);
        // While the first holds its lease, the time that it may have used is missing for the others.
        for worker in [2, 3] {
            scheduler.ask(WorkerId(worker), 68 * MS).unwrap();
            assert!(scheduler.decide(68 * MS).is_empty());
        }
        scheduler.roster.settle(session, 68 * MS);
        let account = &mut scheduler.roster.session_mut(session).unwrap().account;
        account.remember_wait(Paid::Own);
        account.remember_wait(Paid::Spare);
        assert!(account.not_before(Paid::Own) > 69 * MS);
        let done = Told { held_ns: 9 * MS, ..done };
        scheduler.report(WorkerId(1), lease, done, 69 * MS).unwrap();
        // It has used less. Among those that ask, the one that was never served is next.
        assert_eq!(scheduler.decide(69 * MS)[0].worker, WorkerId(3));
        let held = scheduler.roster.workers().filter(|(_, worker)| worker.held.is_some()).count();
        assert_eq!(scheduler.roster.session(session).unwrap().holding, held);
    }
}
