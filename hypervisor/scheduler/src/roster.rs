//! The sessions and workers of a device, and which of them ask for it or hold it. All modules of the scheduler take it
//! as an argument.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use limits::turns::{self, Handover, Mean};

use crate::account::{Account, Untold};
use crate::density::{Company, Density};
use crate::lease::Held;
use crate::tuning::WANTS_OVER_NS;
use crate::types::{Paid, SessionId, WorkerId, share_of};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) account: Account,
    pub(crate) members: Vec<WorkerId>,
    /// Number of members that ask.
    pub(crate) asking: usize,
    /// Number of members that hold a lease, including revoked ones.
    pub(crate) holding: usize,
    /// Whether the remembered time at which it can pay (guaranteed, spare) may be too late: a lease has ended since,
    /// which may have used less than assumed, or turns have become cheaper.
    pub(crate) may_pay_sooner: [bool; 2],
    /// The owner, if the caller has set one.
    pub(crate) owner: Option<u64>,
    /// Whether its leases are granted together with those on other devices.
    pub(crate) together: bool,
    /// Whether the ways to share are compared here, for all of these devices.
    pub(crate) is_reference: bool,
    /// The part of the recent time for which it wanted the device.
    pub(crate) wants: Mean,
    /// Number of its launches that are completed.
    pub(crate) launches: u64,
    /// Whether it is granted nothing; the asks of its workers are kept aside.
    pub(crate) frozen: bool,
}

impl Session {
    /// Remembers until when the session cannot pay. Called if it cannot pay now.
    pub(crate) fn remember_wait(&mut self, paid: Paid) {
        self.account.remember_wait(paid);
        self.may_pay_sooner[paid as usize] = false;
    }
}

/// A process on the device.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    pub(crate) session: SessionId,
    pub(crate) density: Density,
    pub(crate) handover: Handover,
    pub(crate) held: Option<Held>,
    /// Whether it asks.
    pub(crate) asks: bool,
    /// Whether it would ask if its session were not frozen.
    pub(crate) aside: bool,
    /// All time charged to it (ns).
    pub(crate) charged_ns: u64,
    /// Whether its last lease was a turn.
    pub(crate) takes_turns: bool,
    /// When its last lease ended (ns).
    pub(crate) served_at: u64,
    /// When it last stopped asking or holding (ns).
    pub(crate) active_until: Option<u64>,
    /// How long its work usually runs past the end of a lease (ns).
    pub(crate) overrun_ns: u64,
    /// How much work it has queued when its leases end (ns).
    pub(crate) queued_ns: u64,
}

impl Worker {
    pub(crate) fn is_dense(&self) -> bool {
        self.density.is_dense()
    }

    /// Whether it holds a lease that others wait for.
    pub(crate) fn counts(&self) -> bool {
        self.held.is_some_and(|held| held.counts())
    }

    /// Whether its next lease is a turn and its last one was not.
    pub(crate) fn joins_turns(&self) -> bool {
        self.is_dense() && !self.takes_turns
    }

    /// Learns from a lease that lasted until its end, and whose work was done `overrun_ns` later.
    pub(crate) fn ran_past(&mut self, overrun_ns: u64) {
        let overrun_ns = overrun_ns.min(turns::LONGEST_LEASE_NS);
        self.overrun_ns = self.overrun_ns / 4 * 3 + overrun_ns / 4;
    }

    /// Whether it asked or held a lease in the last `ns`.
    pub(crate) fn was_active_within(&self, ns: u64, now: u64) -> bool {
        self.active_until.is_some_and(|until| until.saturating_add(ns) > now)
    }

    /// Whether it wants the device, or did so in the last `ns`.
    pub(crate) fn is_active_within(&self, ns: u64, now: u64) -> bool {
        self.held.is_some() || self.asks || self.was_active_within(ns, now)
    }

    /// Its lease, if it can be ended early: its gates are in its streams.
    pub(crate) fn stoppable(&self) -> Option<Held> {
        self.held.filter(|held| held.goes_on() && self.handover == Handover::InStream)
    }
}

/// The sessions and workers of a device.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Hash maps: no decision may depend on their order.
    sessions: FxHashMap<SessionId, Session>,
    workers: FxHashMap<WorkerId, Worker>,
    /// The workers that ask.
    asking: BTreeSet<WorkerId>,
    /// The workers that hold a lease, including revoked ones.
    holding: BTreeSet<WorkerId>,
    /// The virtual time that turns and spare time have reached.
    virtual_now: u128,
    spare_now: u128,
}

impl Roster {
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(&id, session)| (id, session))
    }

    pub(crate) fn sessions_mut(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.sessions.iter_mut().map(|(&id, session)| (id, session))
    }

    pub(crate) fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    pub(crate) fn session_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&session)
    }

    pub(crate) fn account(&self, session: SessionId) -> Option<&Account> {
        self.sessions.get(&session).map(|session| &session.account)
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.workers.iter().map(|(&id, worker)| (id, worker))
    }

    pub(crate) fn worker(&self, worker: WorkerId) -> Option<&Worker> {
        self.workers.get(&worker)
    }

    pub(crate) fn worker_mut(&mut self, worker: WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(&worker)
    }

    pub(crate) fn held(&self, worker: WorkerId) -> Option<Held> {
        self.worker(worker).and_then(|worker| worker.held)
    }

    pub(crate) fn held_mut(&mut self, worker: WorkerId) -> Option<&mut Held> {
        self.worker_mut(worker).and_then(|worker| worker.held.as_mut())
    }

    /// A worker with its session.
    pub(crate) fn of(&self, worker: WorkerId) -> Option<(&Worker, &Session)> {
        let own = self.workers.get(&worker)?;
        Some((own, self.sessions.get(&own.session)?))
    }

    pub(crate) fn of_mut(&mut self, worker: WorkerId) -> Option<(&mut Worker, &mut Session)> {
        let own = self.workers.get_mut(&worker)?;
        let session = self.sessions.get_mut(&own.session)?;
        Some((own, session))
    }

    pub(crate) fn members(
        &self,
        session: SessionId,
    ) -> impl Iterator<Item = (WorkerId, &Worker)> + Clone {
        let members = self.sessions.get(&session).map_or(&[][..], |session| &session.members);
        members.iter().filter_map(|&id| Some((id, self.workers.get(&id)?)))
    }

    pub(crate) fn workers_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.workers.values_mut()
    }

    pub(crate) fn members_mut(&mut self, session: SessionId) -> impl Iterator<Item = &mut Worker> {
        self.workers.values_mut().filter(move |worker| worker.session == session)
    }

    /// The workers that ask, with their sessions.
    pub(crate) fn asking(&self) -> impl Iterator<Item = (WorkerId, &Worker, &Session)> {
        self.asking.iter().filter_map(|&id| self.of(id).map(|(own, session)| (id, own, session)))
    }

    /// The workers that hold a lease, including revoked ones.
    pub(crate) fn holding(&self) -> impl Iterator<Item = (WorkerId, &Worker, Held)> {
        self.holding.iter().filter_map(|&id| {
            let worker = self.workers.get(&id)?;
            Some((id, worker, worker.held?))
        })
    }

    pub(crate) fn any_asks(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Calls `each` for every worker that holds a lease.
    pub(crate) fn for_each_holder(&mut self, mut each: impl FnMut(WorkerId, &mut Worker)) {
        for &id in &self.holding {
            if let Some(worker) = self.workers.get_mut(&id) {
                each(id, worker);
            }
        }
    }

    /// The workers other than `except` that hold a lease that others wait for.
    pub(crate) fn present(&self, except: WorkerId) -> impl Iterator<Item = &Worker> {
        self.holding()
            .filter(move |(id, _, held)| *id != except && held.counts())
            .map(|(_, worker, _)| worker)
    }

    /// Whether a worker's leases are granted together with those on other devices.
    pub(crate) fn is_of_several(&self, worker: WorkerId) -> bool {
        self.of(worker).is_some_and(|(_, session)| session.together)
    }

    /// The workers of the session that have used the device: each process of a session is known on all of its devices.
    pub(crate) fn users(&self, session: SessionId) -> impl Iterator<Item = &Worker> + Clone {
        let members = self.members(session).map(|(_, worker)| worker);
        members.filter(|own| own.held.is_some() || own.charged_ns > 0)
    }

    /// Whether the session wants the device, or did so just now.
    pub(crate) fn is_active(&self, session: SessionId, now: u64) -> bool {
        self.members(session).any(|(_, worker)| worker.is_active_within(turns::PERIOD_NS, now))
    }

    /// Whether a worker of the session holds a lease that others wait for.
    pub(crate) fn is_held_by(&self, session: SessionId) -> bool {
        self.session(session).is_some_and(|session| session.holding > 0)
            && self.members(session).any(|(_, worker)| worker.counts())
    }

    /// Whether nobody has to wait for the worker's lease: neither it nor another one that wants the device takes turns.
    pub(crate) fn overlaps(&self, worker: WorkerId) -> bool {
        let dense = |id: &WorkerId| self.workers.get(id).is_some_and(Worker::is_dense);
        !dense(&worker) && !self.holding.iter().chain(&self.asking).any(dense)
    }

    /// The worker's co-holders.
    pub(crate) fn company(&self, worker: WorkerId) -> Company {
        let session = self.worker(worker).map(|worker| worker.session);
        let mut company = Company::default();
        self.present(worker).for_each(|other| company.add(&other.density));
        // The remaining work of a lease that has passed is done in a moment.
        company.shared = self.holding().any(|(id, other, held)| {
            id != worker && Some(other.session) != session && !held.is_apart()
        });
        company
    }

    /// Adds a session, which joins those that take turns.
    pub(crate) fn add(&mut self, session: SessionId, mut account: Account) {
        account.order_mut().join_turns(self.mean_virtual_time());
        account.order_mut().join_spare(self.spare_now);
        let added = Session {
            account,
            members: Vec::new(),
            asking: 0,
            holding: 0,
            may_pay_sooner: [false; 2],
            owner: None,
            together: false,
            is_reference: false,
            wants: Mean { ppm: 0, weight_ns: WANTS_OVER_NS },
            launches: 0,
            frozen: false,
        };
        self.sessions.insert(session, added);
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Adds a worker to a known session. Returns whether the worker is new.
    pub(crate) fn join(&mut self, worker: WorkerId, session: SessionId) -> bool {
        let is_new = !self.workers.contains_key(&worker);
        if is_new && let Some(own) = self.sessions.get_mut(&session) {
            own.members.push(worker);
            self.workers.insert(worker, Worker { session, ..Worker::default() });
        }
        is_new
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        if let Some(gone) = self.workers.remove(&worker)
            && let Some(session) = self.sessions.get_mut(&gone.session)
        {
            session.members.retain(|member| *member != worker);
        }
    }

    /// Records that a worker asks. If its session was idle, it joins those that take turns.
    pub(crate) fn ask(&mut self, worker: WorkerId, session: SessionId, now: u64) {
        if !self.is_active(session, now) {
            let (mean, spare_now) = (self.mean_virtual_time(), self.spare_now);
            if let Some(session) = self.sessions.get_mut(&session) {
                session.account.order_mut().join_turns(mean);
                session.account.order_mut().join_spare(spare_now);
            }
        }
        if self.asking.insert(worker)
            && let Some((own, session)) = self.of_mut(worker)
        {
            own.asks = true;
            session.asking += 1;
        }
    }

    /// Records that the worker no longer asks. Returns whether it asked.
    pub(crate) fn ask_no_more(&mut self, worker: WorkerId) -> bool {
        let asked = self.asking.remove(&worker);
        if let Some((own, session)) = self.of_mut(worker) {
            (own.asks, own.aside) = (false, false);
            session.asking -= usize::from(asked);
        }
        asked
    }

    /// Records that a worker that asked now holds a lease.
    pub(crate) fn hold(&mut self, worker: WorkerId, held: Held) {
        self.ask_no_more(worker);
        let is_new = self.holding.insert(worker);
        let Some((own, state)) = self.of_mut(worker) else { return };
        state.holding += usize::from(is_new);
        own.takes_turns = own.is_dense();
        own.held = Some(held);
        let (session, density) = (own.session, own.density);
        self.tell_company(worker, session, &density);
    }

    /// Adds the newcomer to the co-holders of the current holders.
    fn tell_company(&mut self, newcomer: WorkerId, session: SessionId, density: &Density) {
        self.for_each_holder(|id, other| {
            let other_session = other.session != session;
            if let Some(held) = other.held.as_mut().filter(|held| !held.phase.passed)
                && id != newcomer
            {
                if held.counts() {
                    held.company.add(density);
                }
                held.company.shared |= other_session;
            }
        });
    }

    /// Ends the worker's lease. Its use has been charged before.
    pub(crate) fn release(&mut self, worker: WorkerId, now: u64) {
        let held = self.holding.remove(&worker);
        let Some((own, session)) = self.of_mut(worker) else { return };
        if held {
            session.holding -= 1;
            session.may_pay_sooner = [true; 2];
        }
        (own.held, own.served_at, own.active_until) = (None, now, Some(now));
    }

    /// Settles a session's account as of now.
    pub(crate) fn settle(&mut self, session: SessionId, now: u64) {
        let untold = self.untold(session, now);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.settle(now, untold);
        }
    }

    /// Settles the accounts of all sessions that ask.
    pub(crate) fn settle_asking(&mut self, now: u64) {
        let asking: Vec<SessionId> =
            self.sessions().filter(|(_, own)| own.asking > 0).map(|(id, _)| id).collect();
        asking.into_iter().for_each(|session| self.settle(session, now));
    }

    fn untold(&self, session: SessionId, now: u64) -> Untold {
        let mut untold = Untold::default();
        let Some(session) = self.sessions.get(&session).filter(|session| session.holding > 0)
        else {
            return untold;
        };
        for worker in session.members.iter().filter_map(|member| self.workers.get(member)) {
            let Some(held) = worker.held else { continue };
            let elapsed = held.unreported_ns(now);
            untold.longest_ns = untold.longest_ns.max(elapsed);
            let used = if held.phase.revoked {
                elapsed
            } else {
                share_of(elapsed, worker.density.assumed_ppm())
            };
            untold.all_ns = untold.all_ns.saturating_add(used);
            if held.paid == Paid::Own {
                untold.own_ns = untold.own_ns.saturating_add(used);
            }
        }
        untold
    }

    /// Charges a worker's session, which has been settled. `more`: the charge is for time that was reported before.
    pub(crate) fn charge(&mut self, worker: WorkerId, ns: u64, paid: Paid, outside: bool) {
        let Some((own, session)) = self.of_mut(worker) else { return };
        own.charged_ns = own.charged_ns.saturating_add(ns);
        let charge = if outside { Account::charge_more } else { Account::charge };
        charge(&mut session.account, ns, paid, outside || own.takes_turns);
    }

    /// The virtual time of the sessions that take turns: the mean of their use relative to their shares, weighted by
    /// the shares.
    pub(crate) fn mean_virtual_time(&self) -> u128 {
        let (mut sum, mut weights) = (0u128, 0u128);
        let wanting = self.asking.iter().chain(&self.holding).filter_map(|&id| self.of(id));
        for (_, session) in wanting.filter(|(own, _)| own.is_dense() && own.takes_turns) {
            let order = session.account.order();
            let weight = u128::from(order.share_ppm());
            sum += order.virtual_time(Paid::Own).saturating_mul(weight);
            weights += weight;
        }
        sum.checked_div(weights).unwrap_or(self.virtual_now)
    }

    /// Records that a session begins a turn.
    pub(crate) fn begin_turn(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            self.virtual_now = session.account.order().virtual_time(Paid::Own);
            session.account.order_mut().turn_begins();
        }
    }

    /// Advances the virtual time of spare time to that of the session that is granted some.
    pub(crate) fn reach_spare(&mut self, session: SessionId) {
        if let Some(account) = self.account(session) {
            self.spare_now = self.spare_now.max(account.order().virtual_time(Paid::Spare));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limits::ComputeLimit;

    const MS: u64 = 1_000_000;

    #[test]
    fn short_polls_keep_their_place() {
        let (session, worker) = (SessionId(1), WorkerId(1));
        let mut roster = Roster::default();
        roster.add(session, Account::new(ComputeLimit::fixed(100_000), 0));
        roster.join(worker, session);
        let place =
            |roster: &Roster| roster.account(session).unwrap().order().virtual_time(Paid::Own);
        let stops_asking = |roster: &mut Roster, at| {
            assert!(roster.ask_no_more(worker));
            roster.worker_mut(worker).unwrap().active_until = Some(at);
        };
        roster.virtual_now = 1_000_000_000_000;
        roster.ask(worker, session, 10 * MS);
        let first = place(&roster);
        roster.virtual_now = 2_000_000_000_000;
        for poll in 0..50 {
            stops_asking(&mut roster, (30 + poll * 20) * MS);
            roster.ask(worker, session, (31 + poll * 20) * MS);
        }
        assert_eq!(place(&roster), first);
        stops_asking(&mut roster, 1_100 * MS);
        roster.ask(worker, session, 1_300 * MS);
        assert!(place(&roster) > first);
    }
}
