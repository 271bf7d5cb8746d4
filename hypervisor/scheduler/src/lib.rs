//! Decides who may use a device now, and for how long. There is one [`Scheduler`] per device.
//!
//! It is a pure state machine: no I/O, no clock, no threads. Each call carries the time, in
//! nanoseconds of one monotonic clock. The caller acts on what comes back.
//!
//! * A **session** owns a share of the device's time. Its **workers** (processes) use that share
//!   together.
//! * A worker asks and is granted a **lease**. While the lease lasts, the worker reports how it
//!   uses it and asks for it to be prolonged. When all its work is done, it reports the end.
//! * A session earns time continuously, and pays when use is reported (`account`,
//!   `limits::bucket`).
//! * A worker that fills the device is **dense**; one that leaves it idle part of the time is
//!   **sparse** (`density`). Dense workers exclude each other, because the hardware loses a tenth
//!   of the device when it slices two of them. Sparse workers may hold beside any other worker:
//!   slicing serves them well.
//! * Of the workers that ask and have earned enough, the next is the one with the earliest **virtual
//!   deadline**: when its session will have had its next turn, in relation to its share (`account`,
//!   `limits::turns`). Time that would then be idle is **spare**: it goes to sessions that may have
//!   more than their share (`spare`).
//! * A lease can end early where a worker's gates are in its streams, because another is to have the
//!   device now (`preempt`).
//! * A session can be **frozen**: it is granted nothing until it is thawed (`frozen`). A device can be **suspended**:
//!   nobody is granted anything there until it is resumed (`suspended`).
//! * A worker whose class is in doubt gets a **turn alone** (`alone`).
//! * A worker that does not report does not stop others for long. A while after its lease has
//!   ended, the lease is **revoked** and others go on. Its session goes on paying until the report
//!   comes or the worker leaves.
//!
//! How far reports are believed: for each interval a process may report any use, from nothing to
//! all of the time measured here. Most programs leave the device idle part of the time that they
//! hold it. If a report could lower the charge by a little only, they would pay for the time in
//! which their CPU works. But the report comes from inside the process, whose user may have replaced
//! the limiter. So what all holders of a moment report has to add up to it (`audit`), and a session
//! that is found out takes turns and pays by the clock (`trust`). What was seen from outside
//! outranks all reports ([`Scheduler::observe`]). Time without a report (none came, the lease was
//! revoked, the process died) is charged in full.

#![forbid(unsafe_code)]

mod account;
mod alone;
mod audit;
mod decision;
mod density;
mod frozen;
mod gang;
mod overcommitted;
mod preempt;
mod reports;
mod spare;
mod suspended;
mod together;
mod trust;
mod tuning;
mod types;
mod view;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use limits::turns;
use limits::units::PPM_ONE;
use limits::{ComputeLimit, Policy};

use account::{Account, Untold};
pub use account::{Paid, SavedBalance};
use audit::Audit;
pub use density::Class;
pub use gang::{Gangs, NoGang};
pub use limits::turns::Handover;
use preempt::Next;
pub use together::Offer;
use together::Reserved;
use trust::Doubt;
pub use tuning::Tuning;
pub use types::{Grant, LeaseId, ScheduleError, SessionId, Told, WorkerId};
pub use view::{DeviceView, LeaseView, SessionView, WorkerState};
use worker::{Company, Held, Worker};

#[derive(Debug)]
struct Session {
    account: Account,
    members: Vec<WorkerId>,
    /// How many of them ask.
    asking: usize,
    /// How many of them hold, with a revoked lease, too.
    holding: usize,
    /// What is known of when it can pay (guaranteed, and spare time) may be too late: a lease of its own has ended
    /// since, which may have used less than was assumed, or its turns cost less.
    may_pay_sooner: [bool; 2],
    doubt: Doubt,
    /// Who owns it, as far as the caller has said so.
    owner: Option<u64>,
    /// Its leases are granted together with those on other devices.
    together: bool,
    /// It is granted nothing. These of its workers ask.
    frozen: Option<BTreeSet<WorkerId>>,
}

impl Session {
    /// Remembers until when it cannot pay. To be called when it cannot now.
    fn remember_wait(&mut self, paid: Paid) {
        self.account.remember_wait(paid);
        self.may_pay_sooner[paid as usize] = false;
    }
}

/// Shares one device among sessions. See the module's description.
#[derive(Debug)]
pub struct Scheduler {
    tuning: Tuning,
    /// In no order: nothing that is decided may depend on it.
    sessions: FxHashMap<SessionId, Session>,
    workers: FxHashMap<WorkerId, Worker>,
    /// The workers that ask.
    asking: BTreeSet<WorkerId>,
    /// The workers that hold, with a revoked lease, too.
    holding: BTreeSet<WorkerId>,
    /// Since when some workers are suspected; `None`: none is.
    suspects_since: Option<u64>,
    /// These, and others that were since then.
    suspects: Vec<WorkerId>,
    /// No worker is suspected before this, only to make sure of what is known.
    sure_until: u64,
    /// The virtual time that turns and spare time have reached.
    virtual_now: u128,
    spare_now: u128,
    leases: u64,
    /// Leases that were ended early, of which the caller does not know yet.
    stops: Vec<(WorkerId, LeaseId)>,
    audit: Audit,
    /// A session that was found out before shares the device again. The next one has to wait until
    /// then.
    watched_until: u64,
    /// Before this, none does.
    shares_at: u64,
    /// The owners of sessions that were found out, and until when this is remembered.
    owners: BTreeMap<u64, u64>,
    /// Time that may be kept from others and paid by word, as of `word_at`.
    word_ns: u64,
    word_at: u64,
    /// When the length of a round is looked at again.
    rounds_at: u64,
    /// How long they are. Before that is known, as long as one likes.
    round_ns: u64,
    /// For whom the device is kept.
    reserved: Option<Reserved>,
    /// When the device is divided among owners anew.
    divide_at: u64,
    /// Nothing is granted.
    suspended: bool,
}

impl Scheduler {
    /// A device that no worker uses yet.
    pub fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            sessions: FxHashMap::default(),
            workers: FxHashMap::default(),
            asking: BTreeSet::new(),
            holding: BTreeSet::new(),
            suspects_since: None,
            suspects: Vec::new(),
            sure_until: 0,
            virtual_now: 0,
            spare_now: 0,
            leases: 0,
            stops: Vec::new(),
            audit: Audit::default(),
            watched_until: 0,
            shares_at: u64::MAX,
            owners: BTreeMap::new(),
            word_ns: 0,
            word_at: 0,
            rounds_at: 0,
            round_ns: u64::MAX,
            reserved: None,
            divide_at: 0,
            suspended: false,
        }
    }

    /// Adds a session with an empty account, or changes a known session's quota from now on. What
    /// the session has earned and what it owes stay. Where it may have less than before, its leases end now, if they can
    /// be stopped: they were granted for more.
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
        self.settle(session, now);
        let virtual_now = self.mean_virtual_time();
        match self.sessions.get_mut(&session) {
            Some(present) => {
                let before = most_ppm(present.account.quota());
                present.account.set_quota(quota, now);
                if most_ppm(&quota) < before {
                    for worker in present.members.clone() {
                        self.stop_early(worker, Next::InTurn, now);
                    }
                }
            }
            None => {
                let mut account = Account::new(quota, now);
                account.join_turns(virtual_now);
                account.join_spare(self.spare_now);
                self.sessions.insert(
                    session,
                    Session {
                        account,
                        members: Vec::new(),
                        asking: 0,
                        holding: 0,
                        may_pay_sooner: [false; 2],
                        doubt: Doubt::default(),
                        owner: None,
                        together: false,
                        frozen: None,
                    },
                );
            }
        }
        Ok(())
    }

    /// Gives a new session the account that it had in an earlier scheduler. What it earned since `at`
    /// comes on top. To be called after [`Self::set_session`].
    pub fn restore(&mut self, session: SessionId, left: SavedBalance, at: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.restore(left, at);
        }
    }

    /// Removes what the session has saved up; what it owes stays. This is for a session that was
    /// not limited until now: it has not been idle. To be called after [`Self::set_session`].
    pub fn forget_savings(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.forget_savings();
        }
    }

    /// Adds a worker to a session. A known worker keeps its state.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSession`].
    pub fn join(&mut self, worker: WorkerId, session: SessionId) -> Result<(), ScheduleError> {
        let present =
            self.sessions.get_mut(&session).ok_or(ScheduleError::UnknownSession(session))?;
        if !self.workers.contains_key(&worker) {
            present.members.push(worker);
            let mut state = Worker::new(session, &self.tuning);
            state.density.distrust(present.doubt.is_found_out());
            self.workers.insert(worker, state);
        }
        Ok(())
    }

    /// Removes a worker. Its lease is charged until now and ends at once.
    pub fn leave(&mut self, worker: WorkerId, now: u64) {
        self.stop(worker, now);
        if let Some(gone) = self.workers.remove(&worker)
            && let Some(session) = self.sessions.get_mut(&gone.session)
        {
            session.members.retain(|member| *member != worker);
        }
    }

    /// Forgets the sessions that have no workers and owe nothing. Returns them with all that they were
    /// charged, and the part of it that was spare. A session that owes stays: otherwise, leaving and
    /// coming back would cancel the debt.
    pub fn forget_idle(&mut self, now: u64) -> Vec<(SessionId, u64, u64)> {
        let mut gone = Vec::new();
        for (&id, session) in &mut self.sessions {
            if session.members.is_empty() {
                session.account.settle(now, Untold::default());
                if session.account.balance_ns() >= 0 && session.account.headroom_ns() >= 0 {
                    gone.push((id, session.account.charged_ns(), session.account.spare_ns()));
                }
            }
        }
        for (session, ..) in &gone {
            self.sessions.remove(session);
        }
        gone.sort_unstable();
        gone
    }

    /// Forgets a session that has no workers, whatever it owes. For a caller that has no place for it.
    /// Returns all that it was charged, and the part of it that was spare.
    pub fn forget(&mut self, session: SessionId) -> Option<(u64, u64)> {
        let present = self.sessions.get(&session).filter(|session| session.members.is_empty())?;
        let charged = (present.account.charged_ns(), present.account.spare_ns());
        self.sessions.remove(&session);
        Some(charged)
    }

    /// Ends all leases, charged until now, and forgets all asks. For a caller that could not answer
    /// any worker for longer than leases last.
    pub fn dismiss_all(&mut self, now: u64) {
        for worker in self.holding.clone() {
            self.stop(worker, now);
        }
        for worker in self.asking.clone() {
            self.withdraw(worker, now);
        }
        self.sessions
            .values_mut()
            .filter_map(|session| session.frozen.as_mut())
            .for_each(BTreeSet::clear);
    }

    /// Whether any worker holds or asks.
    pub fn is_in_use(&self) -> bool {
        !(self.holding.is_empty() && self.asking.is_empty())
    }

    /// Whether no session is known.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The worker wants to use the device. If it asks while it holds a lease, the grant was lost on
    /// its way, or the worker has forgotten it: that lease ends now.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn ask(&mut self, worker: WorkerId, now: u64) -> Result<(), ScheduleError> {
        let session = self.session_of(worker)?;
        self.stop(worker, now);
        if self.set_aside(worker, session) {
            return Ok(());
        }
        if !self.is_active(session, now) {
            let mean = self.mean_virtual_time();
            if let Some(session) = self.sessions.get_mut(&session) {
                session.account.join_turns(mean);
                session.account.join_spare(self.spare_now);
            }
        }
        self.asks(worker, session);
        Ok(())
    }

    fn asks(&mut self, worker: WorkerId, session: SessionId) {
        if !self.asking.insert(worker) {
            return;
        }
        if let Some(state) = self.workers.get_mut(&worker) {
            state.asks = true;
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.asking += 1;
        }
    }

    /// The worker does not ask any more. Returns whether it did.
    fn asks_no_more(&mut self, worker: WorkerId) -> bool {
        let asked = self.asking.remove(&worker);
        if asked && let Some(state) = self.workers.get_mut(&worker) {
            state.asks = false;
            if let Some(session) = self.sessions.get_mut(&state.session) {
                session.asking = session.asking.saturating_sub(1);
            }
        }
        asked
    }

    /// The worker no longer wants to use the device, or its poll has ended. This ends no lease.
    pub fn withdraw(&mut self, worker: WorkerId, now: u64) {
        self.forget_aside(worker);
        if self.asks_no_more(worker)
            && let Some(worker) = self.workers.get_mut(&worker)
        {
            worker.active_until = Some(now);
        }
    }

    /// The workers that hold a lease that is neither revoked nor stopped, and whether each fills the
    /// device by itself.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, Class)> {
        self.holding.iter().filter_map(|id| {
            let worker = self.workers.get(id)?;
            worker.held.filter(Held::counts)?;
            let dense = worker.density.is_dense();
            Some((*id, if dense { Class::Dense } else { Class::Sparse }))
        })
    }

    /// Brings a session's account up to now.
    fn settle(&mut self, session: SessionId, now: u64) {
        let untold = self.untold(session, now);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.settle(now, untold);
        }
    }

    fn untold(&self, session: SessionId, now: u64) -> Untold {
        let mut untold = Untold::default();
        let held = self.sessions.get(&session).filter(|session| session.holding > 0);
        let Some(session) = held else { return untold };
        for member in &session.members {
            let Some(worker) = self.workers.get(member) else { continue };
            let Some(held) = worker.held else { continue };
            let elapsed = held.unreported_ns(now);
            untold.longest_ns = untold.longest_ns.max(elapsed);
            let used = if held.revoked {
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

    /// The virtual time of those that take turns: the mean of what they have used in relation to
    /// their shares, weighted by the shares.
    fn mean_virtual_time(&self) -> u128 {
        let (mut sum, mut weights) = (0u128, 0u128);
        let taking_turns = self.asking.iter().chain(&self.holding);
        for worker in taking_turns.filter_map(|id| self.workers.get(id)) {
            if let Some(session) = self.sessions.get(&worker.session)
                && worker.density.is_dense()
                && worker.takes_turns
            {
                let weight = u128::from(session.account.turns_ppm());
                sum += session.account.virtual_time(Paid::Own).saturating_mul(weight);
                weights += weight;
            }
        }
        sum.checked_div(weights).unwrap_or(self.virtual_now)
    }

    /// Whether the session wants the device, or did so just now.
    fn is_active(&self, session: SessionId, now: u64) -> bool {
        self.members(session).any(|(_, worker)| {
            worker.held.is_some() || worker.asks || worker.was_active_within(turns::PERIOD_NS, now)
        })
    }

    fn session_of(&self, worker: WorkerId) -> Result<SessionId, ScheduleError> {
        self.workers
            .get(&worker)
            .map(|worker| worker.session)
            .ok_or(ScheduleError::UnknownWorker(worker))
    }

    fn members(&self, session: SessionId) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let members = self.sessions.get(&session).map_or(&[][..], |session| &session.members);
        members.iter().filter_map(|&id| Some((id, self.workers.get(&id)?)))
    }

    fn held(&self, worker: WorkerId) -> Option<Held> {
        self.workers.get(&worker).and_then(|worker| worker.held)
    }

    /// The workers other than `except` that hold a lease that others wait for.
    fn present(&self, except: WorkerId) -> impl Iterator<Item = (WorkerId, &Worker, Held)> {
        self.holding.iter().filter(move |&&id| id != except).filter_map(|&id| {
            let worker = self.workers.get(&id)?;
            let held = worker.held.filter(Held::counts)?;
            Some((id, worker, held))
        })
    }

    /// The worker's co-holders.
    fn company(&self, worker: WorkerId) -> Company {
        let session = self.workers.get(&worker).map(|worker| worker.session);
        let mut company = Company::default();
        self.present(worker).for_each(|(_, other, _)| company.add(&other.density));
        let others = self.holding.iter().filter(|&&id| id != worker);
        // What such a lease has left is done in a moment.
        company.shared = others
            .filter_map(|id| self.workers.get(id))
            .any(|other| Some(other.session) != session && !other.has_passed());
        company
    }
}

/// The most that a session gets, however little others want.
fn most_ppm(quota: &ComputeLimit) -> u32 {
    if quota.takes_spare() { quota.ceiling_ppm().unwrap_or(PPM_ONE) } else { quota.share_ppm }
}

/// `ppm` millionths of a time.
fn share_of(ns: u64, ppm: u64) -> u64 {
    let part = u128::from(ns) * u128::from(ppm) / u128::from(PPM_ONE);
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn short_polls_keep_their_place() {
        let (session, worker) = (SessionId(1), WorkerId(1));
        let mut scheduler = Scheduler::new(Tuning::default());
        scheduler.set_session(session, ComputeLimit::fixed(100_000), 0).unwrap();
        scheduler.join(worker, session).unwrap();
        scheduler.set_session(SessionId(2), ComputeLimit::fixed(900_000), 0).unwrap();
        scheduler.join(WorkerId(2), SessionId(2)).unwrap();
        let virtual_time =
            |scheduler: &Scheduler| scheduler.sessions[&session].account.virtual_time(Paid::Own);
        scheduler.virtual_now = 1_000_000_000_000;
        scheduler.ask(worker, 10 * MS).unwrap();
        let place = virtual_time(&scheduler);
        scheduler.virtual_now = 2_000_000_000_000;
        for poll in 0..50 {
            scheduler.withdraw(worker, (30 + poll * 20) * MS);
            scheduler.ask(worker, (31 + poll * 20) * MS).unwrap();
        }
        assert_eq!(virtual_time(&scheduler), place);
        scheduler.withdraw(worker, 1_100 * MS);
        scheduler.ask(worker, 1_300 * MS).unwrap();
        assert!(virtual_time(&scheduler) > place);
    }

    #[test]
    fn a_session_whose_lease_ended_early_is_looked_at_anew() {
        let session = SessionId(1);
        let mut scheduler = Scheduler::new(Tuning::default());
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
        // While the first holds, what it may have used is missing for the others.
        for worker in [2, 3] {
            scheduler.ask(WorkerId(worker), 68 * MS).unwrap();
            assert!(scheduler.decide(68 * MS).is_empty());
        }
        scheduler.settle(session, 68 * MS);
        let account = &mut scheduler.sessions.get_mut(&session).unwrap().account;
        account.remember_wait(Paid::Own);
        account.remember_wait(Paid::Spare);
        assert!(account.not_before(Paid::Own) > 69 * MS);
        let done = Told { held_ns: 9 * MS, ..done };
        scheduler.report(WorkerId(1), lease, done, 69 * MS).unwrap();
        // It has used less. Of those that ask, the one goes first that was never served.
        assert_eq!(scheduler.decide(69 * MS)[0].worker, WorkerId(3));
        let held = scheduler.workers.values().filter(|worker| worker.held.is_some()).count();
        assert_eq!(scheduler.sessions[&session].holding, held);
    }
}
