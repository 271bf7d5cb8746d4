//! Decisions: grants leases, prolongs them, and ends them early. The daemon calls [`Scheduler::decide`] after every
//! change.

use limits::turns::Handover;

use crate::density::Company;
use crate::lease::Held;
use crate::preempt::{has_to_stop, strongest_waiting};
use crate::roster::Worker;
use crate::scheduler::{Reserved, Scheduler};
use crate::spare;
use crate::trust::note_who_waits;
use crate::tuning::{MESSAGE_NS, SHORTEST_REST_NS};
use crate::turn;
use crate::types::{Grant, LeaseId, Paid, SessionId, WorkerId};

/// How a lease could be prolonged.
pub(super) struct Longer {
    pub(super) paid: Paid,
    pub(super) length_ns: u64,
    pub(super) turn_ends_at: u64,
}

impl Scheduler {
    /// Grants what can be granted now. Called after every change, and when [`Self::next_deadline`] is reached.
    pub fn decide(&mut self, now: u64) -> Vec<Grant> {
        self.revoke_overdue(now);
        if !self.suspended {
            self.choice.set(&mut self.roster, now);
        }
        self.trust.judge(&mut self.roster, now);
        self.division.set(&mut self.roster, now);
        self.rounds.set(&mut self.roster, now);
        self.stop_turns(now);
        let mut grants = Vec::new();
        let asking = self.worth_a_look(now);
        // Guaranteed time goes first; spare time is the rest.
        for paid in [Paid::Own, Paid::Spare] {
            for worker in self.candidates(&asking, paid, now) {
                grants.extend(self.grant(worker, paid, now));
            }
        }
        note_who_waits(&mut self.roster, now);
        grants
    }

    /// Prolongs a worker's lease, after its report. `None`: the worker has to stop when the lease ends, drain, report
    /// and ask anew.
    pub fn renew(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> Option<Grant> {
        let Longer { paid, length_ns, turn_ends_at } = self.longer(worker, lease, now)?;
        self.prolong(worker, paid, (now.saturating_add(length_ns), turn_ends_at), now)
    }

    /// How a lease could be prolonged; `None`: not at all.
    pub(super) fn longer(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> Option<Longer> {
        self.revoke_overdue(now);
        self.rounds.set(&mut self.roster, now);
        let (own, state) = self.roster.of(worker)?;
        let session = own.session;
        let held = own.held.filter(|held| held.lease == lease && held.goes_on())?;
        if state.frozen || !self.fits(worker) {
            return None;
        }
        self.roster.settle(session, now);
        let (paid, length) = turn::way_to_pay(&self.roster, worker, true).next()?;
        if paid == Paid::Spare && !spare::may_have(&self.roster, session, now) {
            return None;
        }
        let waiting = strongest_waiting(&self.roster, worker, MESSAGE_NS, now);
        let turn_ends_at = match (waiting, paid) {
            // No worker waits, or only for spare time: another turn.
            (None, _) | (Some(Paid::Spare), Paid::Own) => {
                now.saturating_add(turn::longest(&self.roster, worker, paid, now))
            }
            // Spare time ends when a worker waits for guaranteed time.
            (Some(Paid::Own), Paid::Spare) => return None,
            // Each session gets one turn. A lease that began on the other budget was no such turn.
            (Some(_), _) if paid == held.paid => held.turn_ends_at,
            (Some(_), _) => return None,
        };
        let length_ns = if waiting.is_none() && self.is_free(worker, now) {
            length
        } else {
            length.min(turn_ends_at.saturating_sub(now))
        };
        let length_ns = length_ns.min(self.until_reserved(worker, now));
        (length_ns >= SHORTEST_REST_NS).then_some(Longer { paid, length_ns, turn_ends_at })
    }

    /// Prolongs the lease that a worker holds, until the given end and for the given turn.
    pub(super) fn prolong(
        &mut self,
        worker: WorkerId,
        paid: Paid,
        (ends_at, turn_ends_at): (u64, u64),
        now: u64,
    ) -> Option<Grant> {
        let (own, _) = self.roster.of(worker)?;
        let (session, held) = (own.session, own.held?);
        let mean = own.joins_turns().then(|| self.roster.mean_virtual_time());
        if paid == Paid::Spare {
            self.roster.reach_spare(session);
        }
        let (own, session) = self.roster.of_mut(worker)?;
        if let Some(mean) = mean {
            session.account.order_mut().join_turns(mean);
        }
        own.takes_turns = own.is_dense();
        own.held = Some(Held { paid, ends_at, turn_ends_at, ..held });
        let company = self.roster.company(worker);
        Some(self.granted(worker, held.lease, ends_at.saturating_sub(now), company))
    }

    /// When [`Self::decide`] has something to do without a new event (ns): a session has earned enough, or a lease that
    /// others wait for is over. `None`: only an event can change something.
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        let choice = self.choice.next_at(&self.roster).filter(|_| !self.suspended);
        let others = self.next_deadline_of_leases(now);
        choice.into_iter().chain(others).filter(|&at| at > now).min()
    }

    fn next_deadline_of_leases(&self, now: u64) -> Option<u64> {
        if !self.roster.any_asks() {
            return None;
        }
        let waited_for = self.roster.holding().filter(|(_, _, held)| !held.phase.revoked);
        let overdue = waited_for.flat_map(|(_, worker, held)| {
            let turn_ends = worker.stoppable().map(|held| held.turn_ends_at.min(held.ends_at));
            [Some(held.overdue_at()), held.passes_at(), turn_ends]
        });
        let ready = self.roster.sessions().filter(|(_, session)| session.asking > 0);
        let ready = ready.flat_map(|(_, session)| {
            let account = &session.account;
            [Paid::Own, Paid::Spare].map(|paid| {
                let known = Some(account.not_before(paid)).filter(|&at| at > now);
                known.or_else(|| account.ready_at(paid)).filter(|&at| at < u64::MAX)
            })
        });
        let times = overdue.chain(ready).flatten();
        times.filter(|&at| at > now).min()
    }

    /// The leases that end now, before the granted time. Each is returned once. Their workers have to be told at once;
    /// they report as usual. Called with [`Self::decide`], after every change.
    pub fn to_stop(&mut self, now: u64) -> Vec<(WorkerId, LeaseId)> {
        self.stop_turns(now);
        core::mem::take(&mut self.stops)
    }

    /// Ends the leases that others should not wait for. Those of a session that holds several devices end together.
    fn stop_turns(&mut self, now: u64) {
        let stoppable = self.roster.holding().filter(|(_, own, _)| own.stoppable().is_some());
        let stoppable: Vec<WorkerId> = stoppable.map(|(id, ..)| id).collect();
        if !self.roster.any_asks() || stoppable.is_empty() {
            return;
        }
        self.roster.settle_asking(now);
        for id in stoppable {
            let Some((own, session)) = self.roster.of(id) else { continue };
            let Some(held) = own.stoppable().filter(|held| held.ends_at > now) else { continue };
            if !session.together
                && let Some(next) = has_to_stop(&self.roster, (id, own.session), held, now)
            {
                self.stop_early(id, next, now);
            }
        }
    }

    pub(super) fn revoke_overdue(&mut self, now: u64) {
        let stops = &mut self.stops;
        self.roster.for_each_holder(|id, worker| {
            if let Some(held) = &mut worker.held
                && held.revoke_if_overdue(now)
                && worker.handover == Handover::InStream
            {
                // Its gate may have been opened, and nobody may be left to close it.
                stops.push((id, held.lease));
            }
        });
    }

    /// The workers that ask, without those that certainly have to wait, in the order of their sessions. If a whole
    /// session has to wait, one worker represents it, and its account is settled as of now.
    fn worth_a_look(&self, now: u64) -> Vec<(SessionId, WorkerId)> {
        // A dense worker holds the device.
        let taken = self.roster.holding().any(|(_, own, held)| held.counts() && own.is_dense());
        let waits = |own: &Worker| taken && own.is_dense();
        let mut asking = Vec::new();
        let sessions = self.roster.sessions();
        for (id, session) in sessions.filter(|(_, own)| own.asking > 0 && !own.together) {
            let account = &session.account;
            let can_wait = account.not_before(Paid::Own).min(account.not_before(Paid::Spare)) > now;
            let members = self.roster.members(id);
            let mut worth =
                members.filter(|(_, own)| own.asks && !waits(own)).map(|(member, _)| (id, member));
            let several = session.members.len() > 1;
            let sooner = session.holding > 0 || session.may_pay_sooner != [false; 2];
            if !can_wait || several && sooner {
                // While one waits, other members may join the current holders.
                asking.extend(worth);
            } else if several {
                asking.extend(worth.next());
            }
        }
        asking.sort_unstable();
        asking
    }

    /// The workers of `asking` (in the order of sessions) that can pay and would fit, in the order in which they are
    /// served.
    fn candidates(
        &mut self,
        asking: &[(SessionId, WorkerId)],
        paid: Paid,
        now: u64,
    ) -> Vec<WorkerId> {
        let joins =
            |&(_, id): &(_, WorkerId)| self.roster.worker(id).is_some_and(Worker::joins_turns);
        let mean = if asking.iter().any(joins) { self.roster.mean_virtual_time() } else { 0 };
        let mut candidates: Vec<(u128, u64, SessionId, WorkerId)> = Vec::new();
        for members in asking.chunk_by(|(one, _), (other, _)| one == other) {
            // Checks that concern a whole session are made once.
            let session = members.first().filter(|(session, _)| self.may_pay(*session, paid, now));
            for &(session, worker) in members.iter().filter(|_| session.is_some()) {
                let fits = turn::length(&self.roster, worker, paid, false).is_some();
                let Some((own, state)) = self.roster.of_mut(worker) else { continue };
                let account = &mut state.account;
                if own.asks && fits {
                    // Sparse workers take no turns and may use their share faster than dense ones.
                    if own.joins_turns() {
                        account.order_mut().join_turns(mean);
                        own.takes_turns = true;
                    }
                    candidates.push((account.order().place(paid), own.served_at, session, worker));
                } else if own.asks && !account.can_pay(paid, false, 0) {
                    account.remember_wait(paid);
                }
            }
        }
        if paid == Paid::Spare && !candidates.is_empty() {
            let missing = spare::sessions_that_miss_their_share(&self.roster);
            candidates.retain(|(_, _, session, _)| missing.iter().all(|other| other == session));
        }
        candidates.sort_unstable();
        candidates.into_iter().map(|(.., worker)| worker).collect()
    }

    /// Whether any worker of a session that asks may be able to pay. Settles its account, unless the answer is known.
    fn may_pay(&mut self, session: SessionId, paid: Paid, now: u64) -> bool {
        let Some(state) = self.roster.session_mut(session) else { return false };
        if state.members.len() == 1 && state.account.not_before(paid) > now {
            return false;
        }
        if paid == Paid::Spare && !state.account.quota().takes_spare() {
            state.remember_wait(paid);
            return false;
        }
        self.roster.settle(session, now);
        // Beside a member that holds a lease, others need less.
        if self.roster.is_held_by(session) {
            return true;
        }
        let Some(state) = self.roster.session_mut(session) else { return false };
        let can_pay = state.account.can_pay(paid, false, 0);
        if !can_pay {
            state.remember_wait(paid);
        }
        can_pay
    }

    /// Grants a candidate its lease, unless an earlier grant excludes it.
    fn grant(&mut self, worker: WorkerId, paid: Paid, now: u64) -> Option<Grant> {
        let session = self.roster.worker(worker)?.session;
        let may = paid == Paid::Own || spare::may_have(&self.roster, session, now);
        if !self.fits(worker) || !may {
            return None;
        }
        let length_ns = turn::length(&self.roster, worker, paid, false)?;
        let turn_ns = turn::longest(&self.roster, worker, paid, now);
        let length_ns = if self.is_free(worker, now) { length_ns } else { length_ns.min(turn_ns) };
        let length_ns = length_ns.min(self.until_reserved(worker, now));
        if length_ns < SHORTEST_REST_NS {
            return None;
        }
        let ends = (now.saturating_add(length_ns), now.saturating_add(turn_ns));
        self.grant_until_end(worker, paid, ends, now)
    }

    /// Grants a worker that asks a lease until the given end, and for the given turn.
    pub(super) fn grant_until_end(
        &mut self,
        worker: WorkerId,
        paid: Paid,
        ends: (u64, u64),
        now: u64,
    ) -> Option<Grant> {
        let (own, _) = self.roster.of(worker)?;
        let (session, dense) = (own.session, own.is_dense());
        match paid {
            Paid::Own if dense => self.roster.begin_turn(session),
            Paid::Own => {}
            Paid::Spare => self.roster.reach_spare(session),
        }
        self.leases += 1;
        let lease = LeaseId(self.leases);
        let company = self.roster.company(worker);
        self.roster.hold(worker, Held::new((lease, paid), company, now, ends));
        Some(self.granted(worker, lease, ends.0.saturating_sub(now), company))
    }

    fn granted(&self, worker: WorkerId, lease: LeaseId, length_ns: u64, company: Company) -> Grant {
        let (shared, overlaps) = (company.shared, self.roster.overlaps(worker));
        Grant { worker, lease, length_ns, shared, overlaps }
    }

    /// Whether this worker may hold a lease beside the current holders.
    pub(super) fn fits(&self, worker: WorkerId) -> bool {
        if self.suspended {
            return false;
        }
        let Some(own) = self.roster.worker(worker) else { return true };
        !(own.is_dense() && self.roster.present(worker).any(Worker::is_dense))
    }

    /// Whether a lease may be longer than its worker's turn: no other session waits, and one that comes later need not
    /// wait for longer than the turn.
    fn is_free(&self, worker: WorkerId, now: u64) -> bool {
        let Some(own) = self.roster.worker(worker) else { return false };
        own.handover == Handover::InStream
            && own.is_dense()
            && strongest_waiting(&self.roster, worker, MESSAGE_NS, now).is_none()
    }

    /// How long a worker may hold the device before it is reserved for another session (ns).
    fn until_reserved(&self, worker: WorkerId, now: u64) -> u64 {
        let own = self.roster.worker(worker).filter(|own| own.is_dense());
        match (self.reserved, own) {
            (Some(Reserved { session, from }), Some(own)) if session != own.session => {
                from.saturating_sub(now)
            }
            _ => u64::MAX,
        }
    }
}
