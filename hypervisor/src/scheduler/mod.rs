//! Who may use a device now, and for how long: one [`Scheduler`] per device.
//!
//! A pure state machine. It does no I/O, looks at no clock and starts nothing: each call is told
//! the time, in nanoseconds of one monotonic clock, and the caller acts on what comes back.
//!
//! * A **session** owns a share of the device's time; its **workers** (processes) use it together.
//! * Time is earned by the clock and paid by holding (`utils::quota`). A session is charged from
//!   the grant of a lease until its report, whichever of its workers hold: the union, once.
//! * One session at a time has its **turn**. During it any of its workers that ask are let in.
//!   The turn is over when all of them have reported.
//! * The next turn goes to the session that has used the least time in relation to its share, of
//!   those that ask and have earned enough.
//! * Nothing waits for ever on a worker that does not report: a while after its lease has ended the
//!   lease is **revoked**, others take their turns, and its session goes on paying until the report
//!   comes or the worker leaves.

mod account;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
mod tuning;
mod view;

use std::collections::BTreeMap;

use account::Account;
pub use tuning::Tuning;
pub use view::{DeviceView, LeaseView, SessionView};

/// Names a session, within one scheduler's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Names a worker, within one scheduler's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// Names a lease; unique within one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A worker may use the device from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who may.
    pub worker: WorkerId,
    /// Names the lease in its report.
    pub lease: LeaseId,
    /// How long it may launch work, in nanoseconds.
    pub length_ns: u64,
}

/// A call that makes no sense in the scheduler's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No such session has been added.
    #[error("session {0:?} is not known")]
    UnknownSession(SessionId),
    /// No such worker has joined.
    #[error("worker {0:?} is not known")]
    UnknownWorker(WorkerId),
    /// A session with a share of zero can never be granted anything.
    #[error("a share must be at least one millionth")]
    NoShare,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    lease: LeaseId,
    granted_at: u64,
    ends_at: u64,
    /// Others no longer wait for it.
    revoked: bool,
}

#[derive(Debug)]
struct Worker {
    session: SessionId,
    asks: bool,
    held: Option<Held>,
}

/// The session whose workers may hold the device, and until when new ones are let in.
#[derive(Clone, Copy, Debug)]
struct Turn {
    session: SessionId,
    ends_at: u64,
}

/// Shares one device among sessions. See the module's description.
#[derive(Debug)]
pub struct Scheduler {
    tuning: Tuning,
    sessions: BTreeMap<SessionId, Account>,
    workers: BTreeMap<WorkerId, Worker>,
    turn: Option<Turn>,
    /// The virtual time of the turn granted last: where a session that returns from idling starts.
    virtual_now: u128,
    leases: u64,
}

impl Scheduler {
    /// A device that nobody uses yet.
    pub fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            sessions: BTreeMap::new(),
            workers: BTreeMap::new(),
            turn: None,
            virtual_now: 0,
            leases: 0,
        }
    }

    /// Adds a session with an empty account, or changes the share of one that is there: what it has
    /// earned and what it owes stay.
    ///
    /// # Errors
    /// [`ScheduleError::NoShare`].
    pub fn set_session(
        &mut self,
        session: SessionId,
        share_ppm: u32,
        now: u64,
    ) -> Result<(), ScheduleError> {
        if share_ppm == 0 {
            return Err(ScheduleError::NoShare);
        }
        match self.sessions.get_mut(&session) {
            Some(account) => account.set_share(share_ppm, now, &self.tuning),
            None => {
                let account = Account::new(share_ppm, now, self.virtual_now);
                self.sessions.insert(session, account);
            }
        }
        Ok(())
    }

    /// Adds a worker to a session; a worker that is there already keeps its state.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownSession`].
    pub fn join(&mut self, worker: WorkerId, session: SessionId) -> Result<(), ScheduleError> {
        if !self.sessions.contains_key(&session) {
            return Err(ScheduleError::UnknownSession(session));
        }
        self.workers.entry(worker).or_insert(Worker { session, asks: false, held: None });
        Ok(())
    }

    /// Removes a worker. What it held is free at once and is charged until now.
    pub fn leave(&mut self, worker: WorkerId, now: u64) {
        self.release(worker, now);
        self.workers.remove(&worker);
    }

    /// Forgets the sessions that have no workers and owe nothing, and returns them. (One that owes
    /// stays, or leaving and coming back would cancel the debt.)
    pub fn forget_idle(&mut self, now: u64) -> Vec<SessionId> {
        let mut gone = Vec::new();
        for (&session, account) in &mut self.sessions {
            account.settle(now, &self.tuning);
            let used = self.workers.values().any(|worker| worker.session == session);
            if !used && account.balance_ns() >= 0 {
                gone.push(session);
            }
        }
        for session in &gone {
            self.sessions.remove(session);
        }
        gone
    }

    /// Whether no session is known.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The worker wants to use the device. A worker that asks while it holds a lease has lost the
    /// grant on its way (or has forgotten it): that lease ends now.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn ask(&mut self, worker: WorkerId, now: u64) -> Result<(), ScheduleError> {
        let session = self.session_of(worker)?;
        self.release(worker, now);
        let active = self.asks(session) || self.holds(session);
        if let Some(account) = self.sessions.get_mut(&session)
            && !active
        {
            // Idling earns no more precedence than what may be saved up: one period's worth.
            account.catch_up(self.virtual_now.saturating_sub(self.tuning.period_ns.into()));
        }
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.asks = true;
        }
        Ok(())
    }

    /// The worker no longer wants to use the device. Does not end a lease.
    pub fn withdraw(&mut self, worker: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.asks = false;
        }
    }

    /// The worker is done with a lease: its work has drained. It says that it held the device for
    /// `held_ns`; it is charged what was measured here, less a small allowance for the messages'
    /// way ([`Tuning::allowance`]). Returns whether it held that lease: a report that comes late or
    /// twice changes nothing.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn report(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        held_ns: u64,
        now: u64,
    ) -> Result<bool, ScheduleError> {
        let session = self.session_of(worker)?;
        let held = self.workers.get(&worker).and_then(|worker| worker.held);
        let Some(held) = held.filter(|held| held.lease == lease) else { return Ok(false) };
        self.release(worker, now);
        if !self.holds(session) {
            let measured = now.saturating_sub(held.granted_at);
            let refund = self.tuning.allowance(measured).min(measured.saturating_sub(held_ns));
            if let Some(account) = self.sessions.get_mut(&session) {
                account.refund(refund, &self.tuning);
            }
        }
        Ok(true)
    }

    /// Grants what can be granted now. To be called after every change and when
    /// [`Self::next_deadline`] is reached.
    pub fn decide(&mut self, now: u64) -> Vec<Grant> {
        for account in self.sessions.values_mut() {
            account.settle(now, &self.tuning);
        }
        self.revoke_overdue(now);
        if let Some(turn) = self.turn
            && self.blocks(turn.session)
        {
            return self.let_in(turn, now);
        }
        self.turn = None;
        match self.next_session() {
            Some(session) => self.start_turn(session, now),
            None => Vec::new(),
        }
    }

    /// When [`Self::decide`] has something to do although nothing has happened: somebody has earned
    /// enough, or a lease that others wait for is to be revoked. `None`: not without an event.
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        let waiting = || self.workers.values().filter(|worker| worker.asks);
        waiting().next()?;
        let overdue = self
            .workers
            .values()
            .filter_map(|worker| worker.held)
            .filter(|held| !held.revoked)
            .map(|held| self.overdue_at(held))
            .min();
        // While somebody holds, the next event that matters is the report, or its absence.
        overdue.or_else(|| {
            waiting()
                .filter_map(|worker| self.sessions.get(&worker.session)?.ready_at(&self.tuning))
                .min()
                .map(|at| at.max(now))
        })
    }

    fn start_turn(&mut self, session: SessionId, now: u64) -> Vec<Grant> {
        let Some(account) = self.sessions.get(&session) else { return Vec::new() };
        self.virtual_now = self.virtual_now.max(account.virtual_time());
        let length = account.lease_length(&self.tuning);
        let turn = Turn { session, ends_at: now.saturating_add(length) };
        self.turn = Some(turn);
        self.grant_all(turn, now)
    }

    /// The session that has the turn still holds: let in more of its workers.
    fn let_in(&mut self, turn: Turn, now: u64) -> Vec<Grant> {
        if turn.ends_at.saturating_sub(now) >= self.tuning.shortest_rest_ns {
            return self.grant_all(turn, now);
        }
        // The turn is over and draining. It goes on only if nobody else could use it.
        let prolonged = self.next_session() == Some(turn.session)
            && !self.workers.values().any(|other| other.asks && other.session != turn.session);
        if prolonged { self.start_turn(turn.session, now) } else { Vec::new() }
    }

    fn grant_all(&mut self, turn: Turn, now: u64) -> Vec<Grant> {
        let mut grants = Vec::new();
        let asking = self
            .workers
            .iter_mut()
            .filter(|(_, worker)| worker.session == turn.session && worker.asks);
        for (&id, worker) in asking {
            self.leases += 1;
            let lease = LeaseId(self.leases);
            worker.asks = false;
            worker.held =
                Some(Held { lease, granted_at: now, ends_at: turn.ends_at, revoked: false });
            let length_ns = turn.ends_at.saturating_sub(now);
            grants.push(Grant { worker: id, lease, length_ns });
        }
        if let Some(account) = self.sessions.get_mut(&turn.session) {
            account.set_holding(!grants.is_empty() || account.is_holding(), now, &self.tuning);
        }
        grants
    }

    /// Of the sessions that ask and can afford a turn, the one that has used the least.
    fn next_session(&self) -> Option<SessionId> {
        self.workers
            .values()
            .filter(|worker| worker.asks)
            .filter_map(|worker| Some((worker.session, self.sessions.get(&worker.session)?)))
            .filter(|(_, account)| account.is_ready(&self.tuning))
            .min_by_key(|(session, account)| (account.virtual_time(), *session))
            .map(|(session, _)| session)
    }

    fn revoke_overdue(&mut self, now: u64) {
        let grace = self.tuning.grace_ns;
        let held = self.workers.values_mut().filter_map(|worker| worker.held.as_mut());
        for held in held.filter(|held| held.ends_at.saturating_add(grace) <= now) {
            held.revoked = true;
        }
    }

    fn overdue_at(&self, held: Held) -> u64 {
        held.ends_at.saturating_add(self.tuning.grace_ns)
    }

    /// Ends whatever the worker holds or asks for.
    fn release(&mut self, worker: WorkerId, now: u64) {
        let Some(state) = self.workers.get_mut(&worker) else { return };
        state.asks = false;
        if state.held.take().is_none() {
            return;
        }
        let session = state.session;
        let holding = self.holds(session);
        if let Some(account) = self.sessions.get_mut(&session) {
            account.set_holding(holding, now, &self.tuning);
        }
    }

    fn session_of(&self, worker: WorkerId) -> Result<SessionId, ScheduleError> {
        self.workers
            .get(&worker)
            .map(|worker| worker.session)
            .ok_or(ScheduleError::UnknownWorker(worker))
    }

    fn members(&self, session: SessionId) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(move |worker| worker.session == session)
    }

    fn asks(&self, session: SessionId) -> bool {
        self.members(session).any(|worker| worker.asks)
    }

    fn holds(&self, session: SessionId) -> bool {
        self.members(session).any(|worker| worker.held.is_some())
    }

    /// Whether others have to wait for this session.
    fn blocks(&self, session: SessionId) -> bool {
        self.members(session).any(|worker| worker.held.is_some_and(|held| !held.revoked))
    }
}
