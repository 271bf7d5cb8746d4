//! A session's part of one device that it uses together with others. When it gets leases there is decided for all
//! of its devices at once: see [`crate::Gangs`].

use std::collections::BTreeSet;

use limits::turns::Handover;

use super::account::Paid;
use super::decision::SHORTEST_REST_NS;
use super::worker::Worker;
use super::{Grant, LeaseId, Scheduler, SessionId, WorkerId};

/// The device is kept for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    session: SessionId,
    /// Until then others may have it.
    from: u64,
}

/// What a session that asks could have of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// For how long it could hold the device. `None`: it cannot pay for a turn yet, or nothing is granted.
    pub length_ns: Option<u64>,
    /// How long its turn would be. Its lease is prolonged until then.
    pub turn_ns: u64,
    /// Whether it is next, by its virtual deadline.
    pub is_next: bool,
    /// Whether it could begin now.
    pub is_free: bool,
}

impl Scheduler {
    /// From now on the session's leases are granted by [`Self::grant_until`], or are not any more.
    pub fn set_together(&mut self, session: SessionId, together: bool) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.together == together {
            return;
        }
        state.together = together;
        let handover = if together { Handover::Together } else { Handover::default() };
        state.account.set_handover(handover);
        state.account.set_longest_round(u64::MAX);
        state.may_pay_sooner = [true; 2];
        self.rounds_at = 0;
    }

    /// How long the device's rounds are.
    pub fn round_ns(&self) -> u64 {
        self.round_ns
    }

    /// The session takes part in rounds of this length at most.
    pub fn set_longest_round(&mut self, session: SessionId, round_ns: u64) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.account.set_longest_round(round_ns);
        }
    }

    /// Keeps the device for a session from a moment on; `None`: for nobody.
    pub fn reserve(&mut self, session: Option<(SessionId, u64)>) {
        self.reserved = session.map(|(session, from)| Reserved { session, from });
    }

    /// Whether the session wants the device, or did so just now.
    pub fn is_wanted_by(&self, session: SessionId, now: u64) -> bool {
        self.is_active(session, now)
    }

    /// Whether a worker of the session holds a lease that others wait for.
    pub fn is_held_by(&self, session: SessionId) -> bool {
        self.any_holds(session)
            && self
                .members(session)
                .any(|(_, worker)| worker.held.is_some_and(|held| held.counts()))
    }

    /// Whether any worker of the session holds, with a revoked lease, too.
    pub(super) fn any_holds(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.holding > 0)
    }

    /// Whether a worker of the session fills the device, by itself; of those that have used it, if any has: each process
    /// of a session is known on all of its devices.
    pub fn is_filled_by(&self, session: SessionId) -> bool {
        let mut members = self.members_that_used_it(session).peekable();
        members.peek().is_none() || members.any(|worker| worker.density.fills())
    }

    fn members_that_used_it(&self, session: SessionId) -> impl Iterator<Item = &Worker> {
        let used = |worker: &&Worker| worker.held.is_some() || worker.charged_ns > 0;
        self.members(session).map(|(_, worker)| worker).filter(used)
    }

    /// Whether a worker of the session keeps the device busy for longer than it is guaranteed, as far as is known.
    pub fn needs_more_than_its_share(&self, session: SessionId) -> bool {
        let guaranteed = |state: &super::Session| u64::from(state.account.guaranteed_ppm());
        let share = self.sessions.get(&session).map_or(0, guaranteed);
        self.members_that_used_it(session).any(|worker| worker.density.assumed_ppm() > share)
    }

    /// Whether a worker that fills the device, of a session that uses it by itself, wants it or did so just now.
    pub fn has_dense_single(&self, now: u64) -> bool {
        self.workers.iter().any(|(&id, worker)| {
            worker.density.is_dense()
                && !self.is_of_several(id)
                && self.is_active(worker.session, now)
        })
    }

    /// The session's workers take turns although they are sparse, or do not.
    pub fn set_among_dense(&mut self, session: SessionId, among_dense: bool) {
        for worker in self.workers.values_mut().filter(|worker| worker.session == session) {
            worker.density.set_among_dense(among_dense);
        }
    }

    /// Whether another session holds beside this one, or did so since it reported.
    pub fn is_shared_by(&self, session: SessionId) -> bool {
        self.members(session).any(|(_, worker)| worker.held.is_some_and(|held| held.company.shared))
    }

    /// The session holds beside another one, here or on another of its devices.
    pub fn set_shared(&mut self, session: SessionId) {
        for worker in self.workers.values_mut().filter(|worker| worker.session == session) {
            if let Some(held) = &mut worker.held {
                held.company.shared = true;
            }
        }
    }

    /// When the leases of others end that the session would have to wait for.
    pub fn others_end_at(&self, session: SessionId) -> u64 {
        let others = self.holding.iter().filter_map(|id| self.workers.get(id));
        let others = others.filter(|other| other.session != session && other.density.is_dense());
        let ends = others.filter_map(|other| other.held.filter(|held| held.counts()));
        ends.map(|held| held.ends_at).max().unwrap_or(0)
    }

    /// What the session could have now. `None`: none of its workers asks.
    pub fn offer(&mut self, session: SessionId, now: u64) -> Option<Offer> {
        self.revoke_overdue(now);
        let worker = self.first_asking(session)?;
        let asking = self.asking.iter().filter_map(|id| self.session_of(*id).ok());
        for session in asking.collect::<BTreeSet<_>>() {
            self.settle(session, now);
        }
        let paid = self.way_to_pay(worker, session, now);
        let turn_ns = paid.map_or(0, |paid| self.longest_turn(worker, paid, now));
        let length = paid.and_then(|paid| self.length(worker, paid, false));
        let length = length.map(|ns| ns.min(turn_ns)).filter(|_| !self.suspended);
        let is_next = paid.is_some_and(|paid| !self.is_others_turn(session, paid, now));
        let is_free = self.fits(worker);
        Some(Offer { length_ns: length, turn_ns, is_next, is_free })
    }

    /// Grants leases, all until one moment of one turn, to the workers of the session that ask and may hold now.
    pub fn grant_until(
        &mut self,
        session: SessionId,
        (end, turn_ends_at): (u64, u64),
        now: u64,
    ) -> Vec<Grant> {
        let (length, turn) = (end.saturating_sub(now), turn_ends_at.saturating_sub(now));
        let asking: Vec<WorkerId> =
            self.members(session).map(|(id, _)| id).filter(|id| self.asking.contains(id)).collect();
        let mut grants = Vec::new();
        for worker in asking.into_iter().filter(|_| length >= SHORTEST_REST_NS) {
            self.settle(session, now);
            if !self.fits(worker) {
                continue;
            }
            // Who joins the others may do so although it could not begin by itself.
            let paid = self.way_to_pay(worker, session, now).unwrap_or(Paid::Own);
            grants.extend(self.grant_for(worker, paid, length, turn, now));
        }
        grants
    }

    /// For how long the session's lease could go on, and until when its turn lasts. `None`: not at all.
    pub fn could_go_on(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        now: u64,
    ) -> Option<(u64, u64)> {
        let longer = self.longer(worker, lease, now)?;
        Some((longer.length_ns, longer.turn_ends_at))
    }

    /// Prolongs a lease until a moment.
    pub fn renew_until(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        (end, turn_ends_at): (u64, u64),
        now: u64,
    ) -> Option<Grant> {
        let held = self.held(worker).filter(|held| held.lease == lease && held.goes_on())?;
        let length_ns = end.saturating_sub(now);
        (length_ns >= SHORTEST_REST_NS && !self.is_frozen(worker) && !self.suspended)
            .then(|| self.prolong(worker, held.paid, length_ns, turn_ends_at, now))?
    }

    /// The leases of the session that others wait for.
    pub fn leases_of(&self, session: SessionId) -> Vec<(WorkerId, LeaseId)> {
        let held = |(id, worker): (WorkerId, &Worker)| {
            worker.held.filter(|held| held.counts()).map(|held| (id, held.lease))
        };
        self.members(session).filter_map(held).collect()
    }

    /// The end of a lease.
    pub fn ends_at(&self, worker: WorkerId) -> Option<u64> {
        self.held(worker).map(|held| held.ends_at)
    }

    /// How long a worker may hold the device before it is another session's.
    pub(super) fn until_reserved(&self, worker: WorkerId, now: u64) -> u64 {
        let session = self.session_of(worker).ok();
        match self.reserved {
            Some(Reserved { session: other, from })
                if Some(other) != session && self.is_dense(worker) =>
            {
                from.saturating_sub(now)
            }
            _ => u64::MAX,
        }
    }

    /// Whether a worker's leases are granted together with those of other devices.
    pub(super) fn is_of_several(&self, worker: WorkerId) -> bool {
        let session = self.workers.get(&worker).and_then(|state| self.sessions.get(&state.session));
        session.is_some_and(|session| session.together)
    }

    fn first_asking(&self, session: SessionId) -> Option<WorkerId> {
        let asking = self.members(session).filter(|(id, _)| self.asking.contains(id));
        asking.min_by_key(|(_, worker)| worker.served_at).map(|(id, _)| id)
    }

    fn way_to_pay(&self, worker: WorkerId, session: SessionId, now: u64) -> Option<Paid> {
        [Paid::Own, Paid::Spare].into_iter().find(|&paid| {
            self.length(worker, paid, false).is_some()
                && (paid == Paid::Own || self.may_have_spare(session, now))
        })
    }

    /// Whether another session that asks and could begin comes first.
    fn is_others_turn(&self, session: SessionId, paid: Paid, now: u64) -> bool {
        let order = |session: SessionId| {
            let account = &self.sessions.get(&session)?.account;
            Some(match paid {
                Paid::Own => account.next_deadline(),
                Paid::Spare => account.virtual_time(Paid::Spare),
            })
        };
        let own = order(session);
        self.asking.iter().filter_map(|id| Some((id, self.workers.get(id)?))).any(|(id, other)| {
            let pays = |paid| self.length(*id, paid, false).is_some();
            let stronger = paid == Paid::Spare && pays(Paid::Own);
            other.session != session
                && other.density.is_dense()
                && !self.is_of_several(*id)
                && (stronger || pays(paid) && order(other.session) < own)
                && (paid == Paid::Own || stronger || self.may_have_spare(other.session, now))
        })
    }
}
