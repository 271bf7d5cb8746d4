//! One device's part of a gang. [`crate::Gangs`] decides for all devices of the gang at once when it gets leases, and
//! uses these methods.

use crate::density::Sharing;
use crate::roster::{Session, Worker};
use crate::scheduler::Scheduler;
use crate::scheduler::decision::Longer;
use crate::spare;
use crate::tuning::SHORTEST_REST_NS;
use crate::turn;
use crate::types::{Grant, LeaseId, Paid, SessionId, WorkerId};

/// The lease that a gang that asks could get on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How long it could hold the device (ns). `None`: it cannot pay for a turn yet, or nothing is granted.
    pub(crate) length_ns: Option<u64>,
    /// The length of its turn, until which its lease is prolonged (ns).
    pub(crate) turn_ns: u64,
    /// Whether it is next, by its virtual deadline.
    pub(crate) is_next: bool,
    /// Whether it could begin now.
    pub(crate) is_free: bool,
}

impl Scheduler {
    /// Sets whether the session's leases are granted by [`Self::grant_until`].
    pub(crate) fn set_together(&mut self, session: SessionId, together: bool) {
        let own = self.roster.session_mut(session).filter(|own| own.together != together);
        let Some(own) = own else { return };
        own.together = together;
        own.account.order_mut().set_together(together);
        own.may_pay_sooner = [true; 2];
        self.rounds.look_again();
    }

    /// Whether a worker of the session fills the device by itself. Only workers that have used the device count, if
    /// there are any.
    pub(crate) fn is_filled_by(&self, session: SessionId) -> bool {
        let mut users = self.roster.users(session).peekable();
        users.peek().is_none() || users.any(|worker| worker.density.fills())
    }

    /// Whether a worker of the session is known to keep the device busy for longer than its guarantee, beside a worker
    /// that fills the device, belongs to a session that is not a gang, and wants the device or did so just now.
    pub(crate) fn is_crowded_for(&self, session: SessionId, now: u64) -> bool {
        let share = self.roster.account(session).map_or(0, |account| account.guaranteed_ppm());
        let fills_it = |(id, other): (WorkerId, &Worker)| {
            other.is_dense()
                && !self.roster.is_of_several(id)
                && self.roster.is_active(other.session, now)
        };
        self.roster.users(session).any(|worker| worker.density.assumed_ppm() > u64::from(share))
            && self.roster.workers().any(fills_it)
    }

    /// Whether everybody who wants the device holds several, and the session's reports count.
    pub(crate) fn is_only_for_gangs(&self, session: SessionId, now: u64) -> bool {
        let single =
            |(id, own): (SessionId, &Session)| !own.together && self.roster.is_active(id, now);
        let mut members = self.roster.members(session);
        !members.any(|(_, own)| own.density.is_distrusted()) && !self.roster.sessions().any(single)
    }

    /// Sets whether the session's ways to share are compared on this device. Returns the way in which it now shares.
    pub(crate) fn set_reference(&mut self, session: SessionId, yes: bool) -> Option<Sharing> {
        let own = self.roster.session_mut(session)?;
        own.is_reference = yes;
        self.roster.users(session).find_map(|worker| worker.density.sharing()).filter(|_| yes)
    }

    /// Makes the session share this device as its reference.
    pub(crate) fn share_as(&mut self, session: SessionId, sharing: Option<Sharing>) {
        self.roster.members_mut(session).for_each(|worker| worker.density.share(sharing));
    }

    /// Sets the longest rounds in which the session takes part.
    pub(crate) fn set_longest_round(&mut self, session: SessionId, round_ns: u64) {
        if let Some(own) = self.roster.session_mut(session) {
            own.account.order_mut().set_longest_round(round_ns);
        }
    }

    /// Whether a worker of the session holds a lease that others wait for.
    pub fn is_held_by(&self, session: SessionId) -> bool {
        self.roster.is_held_by(session)
    }

    /// Sets whether the session's workers take turns although they are sparse.
    pub(crate) fn set_among_dense(&mut self, session: SessionId, among_dense: bool) {
        let members = self.roster.members_mut(session);
        members.for_each(|worker| worker.density.set_among_dense(among_dense));
    }

    /// Whether another session holds a lease beside this one, or did so since its last report.
    pub(crate) fn is_shared_by(&self, session: SessionId) -> bool {
        let mut held = self.roster.members(session).filter_map(|(_, worker)| worker.held);
        held.any(|held| held.company.shared)
    }

    /// Notes that the session holds leases beside another one, here or on another of its devices.
    pub(crate) fn set_shared(&mut self, session: SessionId) {
        let held = self.roster.members_mut(session).filter_map(|worker| worker.held.as_mut());
        held.for_each(|held| held.company.shared = true);
    }

    /// The latest end of the leases that the session would have to wait for (ns).
    pub(crate) fn others_end_at(&self, session: SessionId) -> u64 {
        let others = self
            .roster
            .holding()
            .filter(|(_, own, held)| own.session != session && own.is_dense() && held.counts());
        others.map(|(_, _, held)| held.ends_at).max().unwrap_or(0)
    }

    /// The lease that the session could get now. `None`: none of its workers asks.
    pub(crate) fn offer(&mut self, session: SessionId, now: u64) -> Option<Offer> {
        self.revoke_overdue(now);
        let asking = self.roster.members(session).filter(|(_, own)| own.asks);
        let (worker, _) = asking.min_by_key(|(_, own)| own.served_at)?;
        self.roster.settle_asking(now);
        let way = self.way_to_pay(worker, session, now);
        let turn_ns = way.map_or(0, |(paid, _)| turn::longest(&self.roster, worker, paid, now));
        let length = way.map(|(_, ns)| ns.min(turn_ns)).filter(|_| !self.suspended);
        let is_next =
            way.is_some_and(|(paid, _)| !turn::is_others(&self.roster, session, paid, now));
        Some(Offer { length_ns: length, turn_ns, is_next, is_free: self.fits(worker) })
    }

    /// Grants leases of one turn with the same end to the workers of the session that ask and may hold now.
    pub(crate) fn grant_until(
        &mut self,
        session: SessionId,
        ends: (u64, u64),
        now: u64,
    ) -> Vec<Grant> {
        if ends.0.saturating_sub(now) < SHORTEST_REST_NS {
            return Vec::new();
        }
        let asking = self.roster.members(session).filter(|(_, own)| own.asks);
        let asking: Vec<WorkerId> = asking.map(|(id, _)| id).collect();
        let mut grants = Vec::new();
        for worker in asking {
            self.roster.settle(session, now);
            if self.fits(worker) {
                // A worker may join the others even if it could not begin by itself.
                let way = self.way_to_pay(worker, session, now);
                let paid = way.map_or(Paid::Own, |(paid, _)| paid);
                grants.extend(self.grant_until_end(worker, paid, ends, now));
            }
        }
        grants
    }

    /// How long each lease of the session could be prolonged, and until when its turn lasts. `None`: not at all.
    pub(crate) fn could_go_on(&mut self, session: SessionId, now: u64) -> Option<Vec<(u64, u64)>> {
        let leases = self.leases_of(session);
        let longer = |(worker, lease)| {
            let Longer { length_ns, turn_ends_at, .. } = self.longer(worker, lease, now)?;
            Some((length_ns, turn_ends_at))
        };
        leases.into_iter().map(longer).collect()
    }

    /// The leases of the session that others wait for.
    pub fn leases_of(&self, session: SessionId) -> Vec<(WorkerId, LeaseId)> {
        let held = self.roster.members(session).filter_map(|(id, own)| Some((id, own.held?)));
        held.filter(|(_, held)| held.counts()).map(|(id, held)| (id, held.lease)).collect()
    }

    /// Prolongs a lease until a moment.
    pub(crate) fn renew_until(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        ends: (u64, u64),
        now: u64,
    ) -> Option<Grant> {
        let (own, session) = self.roster.of(worker)?;
        let held = own.held.filter(|held| held.lease == lease && held.goes_on())?;
        let goes_on =
            ends.0.saturating_sub(now) >= SHORTEST_REST_NS && !session.frozen && !self.suspended;
        goes_on.then(|| self.prolong(worker, held.paid, ends, now))?
    }

    fn way_to_pay(&self, worker: WorkerId, session: SessionId, now: u64) -> Option<(Paid, u64)> {
        let may = |paid| paid == Paid::Own || spare::may_have(&self.roster, session, now);
        turn::way_to_pay(&self.roster, worker, false).find(|(paid, _)| may(*paid))
    }
}
