//! Grants leases and prolongs them.

use limits::turns;
use limits::units::PPM_ONE;

use super::account::Paid;
use super::worker::{Company, Held, Worker};
use super::{Grant, Handover, LeaseId, Scheduler, SessionId, WorkerId};

/// How a lease could go on.
pub(super) struct Longer {
    pub(super) paid: Paid,
    pub(super) length_ns: u64,
    pub(super) turn_ends_at: u64,
}

/// The shortest lease, and the shortest prolongation of one.
pub(super) const SHORTEST_REST_NS: u64 = turns::SHORTEST_TURN_NS / 2;

impl Scheduler {
    /// Grants what can be granted now. To be called after every change and when
    /// [`Self::next_deadline`] is reached.
    pub fn decide(&mut self, now: u64) -> Vec<Grant> {
        self.revoke_overdue(now);
        self.suspect(now);
        self.judge(now);
        self.divide_among_owners(now);
        self.set_rounds(now);
        self.stop_turns(now);
        let mut grants = Vec::new();
        let asking = self.worth_a_look(now);
        // Guaranteed time goes first; spare time is what is left.
        for paid in [Paid::Own, Paid::Spare] {
            for worker in self.candidates(&asking, paid, now) {
                grants.extend(self.grant(worker, paid, now));
            }
        }
        self.notice_who_waits(now);
        grants
    }

    /// The worker has just reported and asks for its lease to go on. `None`: the worker has to stop
    /// when the lease ends, drain, report and ask anew.
    pub fn renew(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> Option<Grant> {
        let Longer { paid, length_ns, turn_ends_at } = self.longer(worker, lease, now)?;
        self.prolong(worker, paid, length_ns, turn_ends_at, now)
    }

    /// How a lease could go on.
    pub(super) fn longer(&mut self, worker: WorkerId, lease: LeaseId, now: u64) -> Option<Longer> {
        self.revoke_overdue(now);
        self.suspect(now);
        self.set_rounds(now);
        let session = self.session_of(worker).ok()?;
        let held = self.held(worker).filter(|held| held.lease == lease && held.goes_on())?;
        if self.is_frozen(worker) || !self.fits(worker) {
            return None;
        }
        self.settle(session, now);
        let (paid, length) = [Paid::Own, Paid::Spare]
            .into_iter()
            .find_map(|paid| Some((paid, self.length(worker, paid, true)?)))?;
        if paid == Paid::Spare && !self.may_have_spare(session, now) {
            return None;
        }
        let waiting = self.strongest_waiting(worker, self.tuning.message_ns, now);
        let turn_ends_at = match (waiting, paid) {
            // No worker waits, or only for spare time: another turn.
            (None, _) | (Some(Paid::Spare), Paid::Own) => {
                now.saturating_add(self.longest_turn(worker, paid, now))
            }
            // Spare time ends when a worker waits for guaranteed time.
            (Some(Paid::Own), Paid::Spare) => return None,
            // Each gets one turn. A lease that began on the other budget was no such turn.
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

    /// Prolongs the lease that a worker holds.
    pub(super) fn prolong(
        &mut self,
        worker: WorkerId,
        paid: Paid,
        length_ns: u64,
        turn_ends_at: u64,
        now: u64,
    ) -> Option<Grant> {
        let session = self.session_of(worker).ok()?;
        let held = self.held(worker)?;
        if paid == Paid::Spare {
            self.reach_spare(session);
        }
        let ends_at = now.saturating_add(length_ns);
        if self.workers.get(&worker).is_some_and(Worker::joins_turns) {
            let mean = self.mean_virtual_time();
            self.sessions.get_mut(&session)?.account.join_turns(mean);
        }
        let state = self.workers.get_mut(&worker)?;
        state.takes_turns = state.density.is_dense();
        state.held = Some(Held { paid, ends_at, turn_ends_at, ..held });
        Some(self.granted(worker, held.lease, length_ns, self.company(worker)))
    }

    /// When [`Self::decide`] has something to do without a new event: a session has earned enough,
    /// or a lease that others wait for is over. `None`: only an event can change something.
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        if self.asking.is_empty() {
            return None;
        }
        let holders = self.holding.iter().filter_map(|&id| self.held(id));
        let overdue = holders
            .filter(|held| !held.revoked)
            .flat_map(|held| [Some(held.overdue_at(&self.tuning)), held.passes_at(&self.tuning)]);
        let overdue = overdue.flatten();
        let ready = self.sessions.values().filter(|session| session.asking > 0);
        let ready = ready.filter_map(|session| {
            let later = |paid| {
                let known = Some(session.account.not_before(paid)).filter(|&at| at > now);
                let ready = || session.account.ready_at(paid);
                known.or_else(ready).filter(|&at| at > now && at < u64::MAX)
            };
            later(Paid::Own).into_iter().chain(later(Paid::Spare)).min()
        });
        let times =
            overdue.chain(ready).chain(self.suspicion_ends_at()).chain(self.turn_ends_at(now));
        times.filter(|&at| at > now).min()
    }

    /// The workers that ask, without those that certainly have to go on waiting, in the order of their sessions. One of
    /// a session that has to go on waiting as a whole stands for it: its account is brought up to now.
    fn worth_a_look(&self, now: u64) -> Vec<(SessionId, WorkerId)> {
        let taken = self.is_taken();
        let look = |id: &WorkerId| {
            let worker = self.workers.get(id).filter(|worker| worker.asks)?;
            let waits = taken && worker.density.is_dense() || self.is_kept_away(*id);
            (!waits).then_some((worker.session, *id))
        };
        let mut asking = Vec::new();
        for session in self.sessions.values().filter(|one| one.asking > 0 && !one.together) {
            let account = &session.account;
            let waits = account.not_before(Paid::Own).min(account.not_before(Paid::Spare)) > now;
            let mut worth = session.members.iter().filter_map(look);
            let several = session.members.len() > 1;
            if !waits || several && (session.holding > 0 || session.may_pay_sooner != [false; 2]) {
                // While it waits, others of its members may join those that hold.
                asking.extend(worth);
            } else if several {
                asking.extend(worth.next());
            }
        }
        asking.sort_unstable();
        asking
    }

    /// Whether a dense worker holds the device.
    fn is_taken(&self) -> bool {
        let holding = self.holding.iter().filter_map(|id| self.workers.get(id));
        let mut counting = holding.filter(|worker| worker.held.is_some_and(|held| held.counts()));
        counting.any(|worker| worker.density.is_dense())
    }

    /// Those of `asking`, which is in the order of sessions, that can pay and would fit, in the order in which they are
    /// served.
    fn candidates(
        &mut self,
        asking: &[(SessionId, WorkerId)],
        paid: Paid,
        now: u64,
    ) -> Vec<WorkerId> {
        let mut candidates: Vec<(u128, u64, SessionId, WorkerId)> = Vec::new();
        let joins = |id: &WorkerId| self.workers.get(id).is_some_and(Worker::joins_turns);
        let mean =
            if asking.iter().any(|(_, id)| joins(id)) { self.mean_virtual_time() } else { 0 };
        let mut looked_at = None;
        for &(session, worker) in asking {
            // What holds for a whole session is looked at once.
            let may_pay = match looked_at {
                Some((looked, may_pay)) if looked == session => may_pay,
                _ => self.may_pay(session, paid, now),
            };
            looked_at = Some((session, may_pay));
            if !may_pay || !self.workers.get(&worker).is_some_and(|worker| worker.asks) {
                continue;
            }
            let fits = self.length(worker, paid, false).is_some();
            let Some(asks) = self.workers.get_mut(&worker) else { continue };
            let served_at = asks.served_at;
            let Some(state) = self.sessions.get_mut(&session) else { continue };
            let account = &mut state.account;
            if fits {
                // Sparse workers take no turns and may use their share faster than dense ones.
                if asks.joins_turns() {
                    account.join_turns(mean);
                    asks.takes_turns = true;
                }
                let order = match paid {
                    Paid::Own => account.next_deadline(),
                    Paid::Spare => account.virtual_time(Paid::Spare),
                };
                candidates.push((order, served_at, session, worker));
            } else if !account.can_pay(paid, false, 0) {
                account.remember_wait(paid);
            }
        }
        if paid == Paid::Spare && !candidates.is_empty() {
            let missing = self.sessions_that_miss_their_share();
            candidates.retain(|(_, _, session, _)| missing.iter().all(|other| other == session));
        }
        candidates.sort_unstable();
        candidates.into_iter().map(|(.., worker)| worker).collect()
    }

    /// Whether any worker of a session that asks may be able to pay. Brings its account up to now, unless that is known.
    fn may_pay(&mut self, session: SessionId, paid: Paid, now: u64) -> bool {
        let Some(state) = self.sessions.get_mut(&session) else { return false };
        if state.members.len() == 1 && state.account.not_before(paid) > now {
            return false;
        }
        if paid == Paid::Spare && !state.account.quota().takes_spare() {
            state.remember_wait(paid);
            return false;
        }
        self.settle(session, now);
        // Beside a member that holds, others need less.
        if self.is_held_by(session) {
            return true;
        }
        let Some(state) = self.sessions.get_mut(&session) else { return false };
        let can_pay = state.account.can_pay(paid, false, 0);
        if !can_pay {
            state.remember_wait(paid);
        }
        can_pay
    }

    /// Grants a candidate its lease, unless an earlier grant excludes it.
    fn grant(&mut self, worker: WorkerId, paid: Paid, now: u64) -> Option<Grant> {
        let session = self.session_of(worker).ok()?;
        if !self.fits(worker) || paid == Paid::Spare && !self.may_have_spare(session, now) {
            return None;
        }
        let length_ns = self.length(worker, paid, false)?;
        let turn_ns = self.longest_turn(worker, paid, now);
        let length_ns = if self.is_free(worker, now) { length_ns } else { length_ns.min(turn_ns) };
        let length_ns = length_ns.min(self.until_reserved(worker, now));
        if length_ns < SHORTEST_REST_NS {
            return None;
        }
        self.grant_for(worker, paid, length_ns, turn_ns, now)
    }

    /// Grants a worker that asks a lease of some length.
    pub(super) fn grant_for(
        &mut self,
        worker: WorkerId,
        paid: Paid,
        length_ns: u64,
        turn_ns: u64,
        now: u64,
    ) -> Option<Grant> {
        let session = self.session_of(worker).ok()?;
        if paid == Paid::Own && self.is_dense(worker) {
            let account = &mut self.sessions.get_mut(&session)?.account;
            self.virtual_now = account.virtual_time(Paid::Own);
            account.turn_begins();
        }
        if paid == Paid::Spare {
            self.reach_spare(session);
        }
        self.leases += 1;
        let lease = LeaseId(self.leases);
        let company = self.company(worker);
        let ends_at = now.saturating_add(length_ns);
        self.asks_no_more(worker);
        if self.holding.insert(worker) {
            self.sessions.get_mut(&session)?.holding += 1;
        }
        let state = self.workers.get_mut(&worker)?;
        state.takes_turns = state.density.is_dense();
        state.held = Some(Held {
            lease,
            paid,
            granted_at: now,
            told_at: now,
            ends_at,
            turn_ends_at: now.saturating_add(turn_ns),
            company,
            revoked: false,
            stopped: false,
            passed: false,
            runs_on: false,
            may_keep: false,
            idle: false,
            keeps_since: None,
            kept_ns: 0,
        });
        self.tell_company(worker, session);
        Some(self.granted(worker, lease, length_ns, company))
    }

    /// Moves the virtual time of spare time up to that of the session that is granted some.
    fn reach_spare(&mut self, session: SessionId) {
        let Some(state) = self.sessions.get(&session) else { return };
        self.spare_now = self.spare_now.max(state.account.virtual_time(Paid::Spare));
    }

    fn granted(&self, worker: WorkerId, lease: LeaseId, length_ns: u64, company: Company) -> Grant {
        let alone = company.others == 0 && !company.shared;
        let exclusive = alone && self.is_suspected(worker);
        Grant { worker, lease, length_ns, shared: company.shared, exclusive }
    }

    /// Adds the newcomer to the co-holders of those that hold already.
    fn tell_company(&mut self, newcomer: WorkerId, session: SessionId) {
        let Some(density) = self.workers.get(&newcomer).map(|worker| worker.density) else {
            return;
        };
        for id in self.holding.iter().filter(|&&id| id != newcomer) {
            if let Some(other) = self.workers.get_mut(id)
                && let Some(held) = other.held.as_mut().filter(|held| !held.passed)
            {
                if held.counts() {
                    held.company.add(&density);
                }
                held.company.shared |= other.session != session;
            }
        }
    }

    /// Whether this worker may hold beside the present holders.
    pub(super) fn fits(&self, worker: WorkerId) -> bool {
        if self.suspended {
            return false;
        }
        // A suspected worker has to begin alone. One that holds already may go on: its co-holders
        // are not prolonged.
        let alone = self.is_suspected(worker) && self.held(worker).is_none();
        let excluded =
            || self.present(worker).any(|(_, other, _)| alone || other.density.is_dense());
        !(self.is_kept_away(worker) || self.is_dense(worker) && excluded())
    }

    pub(super) fn is_dense(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.density.is_dense())
    }

    /// Whether a lease may be longer than its worker's turn: nobody waits, and who comes to wait need
    /// not do so for longer than the turn.
    fn is_free(&self, worker: WorkerId, now: u64) -> bool {
        let Some(state) = self.workers.get(&worker) else { return false };
        state.handover == Handover::InStream
            && state.density.is_dense()
            && !state.density.is_suspected()
            && self.strongest_waiting(worker, self.tuning.message_ns, now).is_none()
    }

    /// How long a lease the worker can pay for, as of the last settlement. `None`: it cannot pay
    /// for long enough to start a lease, or to go on with one.
    pub(super) fn length(&self, worker: WorkerId, paid: Paid, going_on: bool) -> Option<u64> {
        let session = self.workers.get(&worker)?.session;
        let account = &self.sessions.get(&session)?.account;
        // Beside a member that holds, a sparse worker may start before it can pay for a whole turn.
        let joins = !self.is_dense(worker) && self.is_held_by(session);
        let kept_ns = match paid {
            Paid::Own => self.kept_for_a_turn(worker, session),
            Paid::Spare => 0,
        };
        if !account.can_pay(paid, going_on || joins, kept_ns) {
            return None;
        }
        let length = account.affordable_ns(paid, self.drain_ppm(worker, session), kept_ns);
        let length = length.min(turns::LONGEST_LEASE_NS);
        (length >= SHORTEST_REST_NS).then_some(length)
    }

    /// Guaranteed time that a sparse worker must not use. It is kept for the turn of a dense worker
    /// of the same session that was served longer ago: that one has to wait for other sessions as
    /// well.
    fn kept_for_a_turn(&self, worker: WorkerId, session: SessionId) -> u64 {
        let Some(state) = self.workers.get(&worker).filter(|state| !state.density.is_dense())
        else {
            return 0;
        };
        let since = state.held.map_or(state.served_at, |held| held.granted_at);
        let waits = self
            .members(session)
            .any(|(_, other)| other.density.is_dense() && other.asks && other.served_at < since);
        let account = self.sessions.get(&session).map(|session| &session.account);
        account.filter(|_| waits).map_or(0, |account| account.entry_ns())
    }

    /// What the session will use of a lease's time, if this worker and the session's present
    /// holders hold.
    fn drain_ppm(&self, worker: WorkerId, session: SessionId) -> u64 {
        if self.is_dense(worker) {
            return PPM_ONE.into();
        }
        let mut sum = 0u64;
        for (id, member) in self.members(session) {
            if id == worker || member.held.is_some() {
                let density = if member.density.is_dense() {
                    PPM_ONE.into()
                } else {
                    member.density.assumed_ppm()
                };
                sum = sum.saturating_add(density);
            }
        }
        sum.min(PPM_ONE.into())
    }

    /// Turns are for dense workers, which exclude each other. A sparse worker's lease only has a
    /// maximum: others may have to wait for its end if the worker turns out to be dense.
    pub(super) fn longest_turn(&self, worker: WorkerId, paid: Paid, now: u64) -> u64 {
        match paid {
            Paid::Spare => self.spare_turn(worker, now),
            Paid::Own if self.is_suspected(worker) => self.own_turn(worker),
            Paid::Own if self.is_dense(worker) => self.beside_others(worker, self.turn(worker)),
            Paid::Own => turns::LONGEST_LEASE_NS,
        }
    }

    /// The length of a turn's lease. Work that runs past the lease's end belongs to the turn. While
    /// sparse workers hold as well, the lease is longer by as much as they slow this worker down:
    /// otherwise a session with a small share would not get its share.
    fn beside_others(&self, worker: WorkerId, turn: u64) -> u64 {
        let Some(state) = self.workers.get(&worker) else { return turn };
        let alone = self.present(worker).next().is_none();
        let rate = if alone { PPM_ONE.into() } else { state.density.crowded_ppm().max(1) };
        let stretched = turn.saturating_mul(PPM_ONE.into()) / rate;
        let turn = stretched.clamp(turn, turns::LONGEST_LEASE_NS.max(turn));
        // With the work that runs past the lease.
        let lease = turn.saturating_sub(state.overrun_ns);
        lease.max(turns::SHORTEST_TURN_NS).min(turn)
    }

    /// How much time a worker is to use in its turn. A worker that holds is not at the beginning of
    /// a turn: for it, a turn's full length counts.
    fn turn(&self, worker: WorkerId) -> u64 {
        let session = self.session_of(worker).ok().and_then(|session| self.sessions.get(&session));
        match session {
            Some(session) if self.held(worker).is_none() => session.account.next_turn_ns(),
            _ => self.own_turn(worker),
        }
    }

    /// How much time a worker would use in a turn that it has to itself.
    pub(super) fn own_turn(&self, worker: WorkerId) -> u64 {
        let session = self.workers.get(&worker).and_then(|state| self.sessions.get(&state.session));
        session.map_or(0, |session| session.account.full_turn_ns())
    }

    /// The strongest claim among the dense workers that could have a turn if this dense worker let
    /// go of the device. A worker whose poll ended within `linger_ns` counts as asking.
    pub(super) fn strongest_waiting(
        &self,
        worker: WorkerId,
        linger_ns: u64,
        now: u64,
    ) -> Option<Paid> {
        if !self.is_dense(worker) {
            return None;
        }
        let lingers = |other: &Worker| {
            other.held.is_none_or(|held| held.passed) && other.was_active_within(linger_ns, now)
        };
        let waiting = self.workers.iter().filter(|&(&id, other)| {
            id != worker && other.density.is_dense() && (other.asks || lingers(other))
        });
        let claim = |(_, other): (&WorkerId, &Worker)| {
            let account = &self.sessions.get(&other.session)?.account;
            let ready = |paid| {
                account.not_before(paid) <= now
                    && account.ready_at(paid).is_some_and(|at| at <= now)
            };
            let spare = || ready(Paid::Spare) && !self.yields_to(other.session, worker);
            if ready(Paid::Own) { Some(Paid::Own) } else { spare().then_some(Paid::Spare) }
        };
        let mut strongest = None;
        for claim in waiting.filter_map(claim) {
            if claim == Paid::Own {
                return Some(claim);
            }
            strongest = Some(claim);
        }
        strongest
    }

    pub(super) fn revoke_overdue(&mut self, now: u64) {
        for id in &self.holding {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            let Some(held) = worker.held.as_mut().filter(|held| !held.revoked) else { continue };
            if held.passes_at(&self.tuning).is_some_and(|at| at <= now) {
                (held.passed, held.runs_on) = (true, true);
            }
            if held.overdue_at(&self.tuning) <= now {
                // Its gate may have been opened for it, and nobody be there to close it.
                if worker.handover == Handover::InStream && !held.stopped {
                    self.stops.push((*id, held.lease));
                }
                held.revoked = true;
            }
        }
    }
}
